"""An asynchronous LoRA run in five configurations: what bounds a step, and what packing gains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from benchmarks.validation.files import number, one_of, read_rows, whole
from benchmarks.validation.verdict import Case, Check, Role, Source, mape
from rollcast.simulator.costs import Iteration, RooflineCost, RooflineTrainer, TrainLoad
from rollcast.simulator.costs.memory.training import Recompute
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.trainer.attention_kernels import with_kernel

FILE = "async_lora_steps.csv"
COLUMNS = (
    "run",
    "trainer_gpus",
    "replicas",
    "in_flight",
    "microbatch",
    "recompute",
    "forward_backward_s",
)
ALONE = "one sequence"
TARGET = 0.20
PROMPT, COMPLETION = 135, 1065  # tokens: about 1,200 a sequence
GROUP = 8
PACKED_SAMPLES, SAMPLES = 152, 128  # a step; about 150 where they are packed, here whole groups
# A layer's forward of one sequence: fitted to the run of one sequence a microbatch.
LAUNCH_S_PER_LAYER = 2.97e-3
# What the trainer waited for, as far as published: its step is forward and backward and 0.2 to 1 s,
# but for the third run, where it waited 0.6 s for rollouts. The fourth one's is not published.
Bottleneck = Literal["training", "generation"]
KNOWN: dict[int, Bottleneck] = {1: "training", 2: "training", 3: "generation", 5: "training"}


def _model() -> Model:
    return load_model("qwen2.5-1.5b")  # the widths of Qwen2.5-Math-1.5B


def _gpu() -> Gpu:
    return with_kernel(load_gpu("h200-sxm"), "flash_2", "gpu")


@dataclass(frozen=True)
class Run:
    """One configuration. forward_backward_s: of a step."""

    run: int
    trainer_gpus: int
    replicas: int
    in_flight: int
    packed: bool
    recompute: Recompute
    forward_backward_s: float

    @property
    def name(self) -> str:
        """The configuration in words."""
        return (
            f"run {self.run}: {'packed' if self.packed else 'one sequence a microbatch'}, "
            f"recomputation {self.recompute}, {self.replicas} replicas, {self.in_flight} in flight"
        )

    @property
    def role(self) -> Role:
        """Only the run of one sequence a microbatch had a part in a figure of the trainer."""
        return "held out" if self.packed else "calibrated"

    @cached_property
    def load(self) -> TrainLoad:
        """What a step trains on."""
        samples = PACKED_SAMPLES if self.packed else SAMPLES
        return TrainLoad([(PROMPT, [COMPLETION] * GROUP)] * (samples // GROUP))

    @cached_property
    def training_s(self) -> float:
        """Forecast of forward and backward of a step."""
        trainer = RooflineTrainer(
            _model(),
            _gpu(),
            self.trainer_gpus,
            weights="lora",
            recompute=self.recompute,
            log_prob_passes=0,
            batching="packed" if self.packed else "one_sequence",
            microbatch_tokens=16_384 if self.packed else None,
            launch_s_per_layer=LAUNCH_S_PER_LAYER,
        )
        return trainer.train(self.load).total_s

    @cached_property
    def generation_s(self) -> float:
        """Forecast of the time in which the replicas generate what a step trains on, all that may
        be in flight running, half done in the mean. A sync holds up trainer and engines alike."""
        engine = RooflineCost(_model(), _gpu())
        running = self.in_flight // self.replicas
        context = running * (PROMPT + COMPLETION // 2)
        rate = self.replicas * running / engine.iteration_s(Iteration(running, context))
        return self.load.rollouts * COMPLETION / rate

    @property
    def bottleneck(self) -> Bottleneck:
        """Forecast of what a step waits for."""
        return "training" if self.training_s > self.generation_s else "generation"


def read_runs(path: Path) -> list[Run]:
    """The configurations. Raises AbsentError or ScenarioError."""
    runs = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        counts = {key: whole(row, key, where) for key in COLUMNS[:4]}
        packed = one_of(row, "microbatch", where, (ALONE, "16384 tokens")) != ALONE
        recompute: Recompute = (
            "full" if one_of(row, "recompute", where, ("full", "none")) == "full" else "none"
        )
        measured = number(row, "forward_backward_s", where, 1e-9)
        runs.append(Run(**counts, packed=packed, recompute=recompute, forward_backward_s=measured))
    return runs


def gains(runs: list[Run]) -> list[Case]:
    """Steps of one sequence a microbatch over packed ones, recomputation alike."""
    alone = [run for run in runs if not run.packed]
    return [
        Case(
            "packing",
            f"run {before.run} over run {after.run}, forward and backward",
            "",
            before.forward_backward_s / after.forward_backward_s,
            before.training_s / after.training_s,
        )
        for before in alone
        for after in runs
        if after.packed and after.recompute == before.recompute
    ]


def judge(runs: list[Run]) -> tuple[list[Case], float]:
    """Cases of forward and backward and of packing's gain; the share of the known bottlenecks that
    are forecast as the other one."""
    cases = [
        Case("forward and backward", r.name, "s", r.forward_backward_s, r.training_s, r.role)
        for r in runs
    ]
    known = [run for run in runs if run.run in KNOWN]
    wrong = sum(run.bottleneck != KNOWN[run.run] for run in known)
    return cases + gains(runs), wrong / len(known) if known else 0.0


def source(data: Path) -> Source:
    """The five runs. Raises AbsentError."""
    runs = read_runs(data / FILE)
    cases, wrong = judge(runs)
    held = [case for case in cases if case.group != "packing" and case.role == "held out"]
    packing = [case for case in cases if case.group == "packing"]
    spelt = "; ".join(
        f"run {run.run} {run.bottleneck} ({run.training_s:.1f} s to train, "
        f"{run.generation_s:.1f} s to generate)"
        for run in runs
    )
    checks = [
        Check("held out, forward and backward", mape(held), TARGET, len(held)),
        Check("gain of packing", mape(packing), TARGET, len(packing)),
        Check("bottlenecks misnamed", wrong, 0.0, sum(run.run in KNOWN for run in runs)),
    ]
    return Source(
        "async_lora",
        "An asynchronous LoRA run: the bottleneck, and packing",
        "Hugging Face's blog on TRL's AsyncGRPO with LoRA (asyncgrpo-lora-hfjobs): "
        "Qwen2.5-Math-1.5B on two H200, two or three replicas",
        calibrated="launch_s_per_layer, on the run of one sequence a microbatch",
        held_out="forward and backward of the packed runs; the gain of packing; the bottlenecks",
        assumed=(
            "152 sequences a step where they are packed (about 150 published), 1,065 tokens each "
            "after prompts of 135, FlashAttention 2",
            "a sync holds up trainer and engines alike",
            "what bounded runs 1, 2 and 5 is read from steps that hardly exceed forward and "
            "backward; the fourth run's is not published and not judged",
        ),
        cases=tuple(cases),
        checks=tuple(checks),
        misses=(f"Forecast bottlenecks: {spelt}.",),
    )
