"""RL steps of large mixtures, whose generation is known from a run with training beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from calibration.jury.architectures import architecture
from calibration.jury.files import PUBLISHED, number, read_rows, whole
from calibration.jury.rl_steps import STACKS, megatron, read_parallel
from calibration.jury.verdict import Case, Kind, Source, explain, mape_checks
from simulator.costs import RooflineCost, RooflineTrainer, TrainLoad
from simulator.costs.hardware import load_gpu

FILE = "rl_mixtures.csv"
COLUMNS = (
    "name", "gpu", "model", "gpus", "tensor_parallel", "parallel", "groups", "group_size",
    "prompt_tokens", "total_tokens", "mean_new_tokens", "step_s", "overlapped_step_s", "source",
)  # fmt: skip
COUNTS = ("gpus", "tensor_parallel", "groups", "group_size", "prompt_tokens", "total_tokens")
TARGET = 0.25


_MODELS = {
    "qwen3-235b-a22b": "Qwen/Qwen3-235B-A22B-Instruct-2507",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
}


@dataclass(frozen=True)
class MixtureRun:
    """An on-policy run on ``gpus`` GPUs, all of which generate and then train.

    overlapped_step_s: of the same model where as many GPUs generate and as many more train beside
    them, one step off. Training is by far the shorter, so it is what generation and the sync
    between them take, and what a step holds besides.
    """

    name: str
    gpu: str
    model: str
    gpus: int
    tensor_parallel: int
    parallel: tuple[int, ...]
    groups: int
    group_size: int
    prompt_tokens: int
    total_tokens: int
    mean_new_tokens: float
    step_s: float
    overlapped_step_s: float

    @cached_property
    def cost(self) -> RooflineCost:
        """The costs of training and of switches: the engine sleeps with its weights in host memory
        (level 1), the trainer's states are copied tensor by tensor."""
        model, gpu = (
            replace(architecture(_MODELS[self.model]), precision="bf16"),
            load_gpu(self.gpu),
        )
        options = megatron(self.gpu, self.parallel, self.total_tokens, "full")
        if self.gpu == "gb200":  # Transformer Engine's
            options["attention"] = "cudnn"
        trainer = RooflineTrainer(model, gpu, self.gpus, log_prob_passes=2, **options)
        return RooflineCost(
            model, gpu, trainer_gpus=self.gpus, trainer=trainer, stack=STACKS["nemo"]
        )

    @cached_property
    def sync_more_s(self) -> float:
        """By how much the sync between GPUs that share is longer than the overlapped run's."""
        apart = replace(self.cost, placement="disaggregated", sync=None)
        return self.cost.sync_s - apart.sync_s

    @cached_property
    def training_s(self) -> float:
        """Forecast of log-probs and the update, every response of the mean length."""
        responses = [round(self.mean_new_tokens)] * self.group_size
        load = TrainLoad([(self.prompt_tokens, responses)] * self.groups)
        return self.cost.trainer_of.train(load).total_s

    @property
    def switches_s(self) -> float:
        """Forecast of the switch to training and back."""
        return self.cost.switch_to_train_s + self.cost.switch_to_rollout_s

    @property
    def forecast_s(self) -> float:
        """Generation as published, training, switches and what the sync takes more as forecast."""
        return self.overlapped_step_s + self.sync_more_s + self.training_s + self.switches_s


def read_runs(path: Path) -> list[MixtureRun]:
    """The runs typed in. Raises ScenarioError for a row that is wrong."""
    runs = []
    for line, row in enumerate(read_rows(path, COLUMNS), start=2):
        where = f"{path.name}, line {line}"
        counts = {key: whole(row, key, where) for key in COUNTS}
        runs.append(
            MixtureRun(
                row["name"],
                row["gpu"],
                row["model"],
                parallel=read_parallel(row["parallel"], where),
                mean_new_tokens=number(row, "mean_new_tokens", where, 1.0),
                step_s=number(row, "step_s", where, 1e-9),
                overlapped_step_s=number(row, "overlapped_step_s", where, 1e-9),
                **counts,
            )
        )
    return runs


def judge(runs: list[MixtureRun]) -> list[Case]:
    """A case for each step, by model."""
    return [Case(run.model, run.name, "s", run.step_s, run.forecast_s) for run in runs]


def source(data: Path) -> Source:
    """Steps of DeepSeek-V3 and Qwen3-235B; needs no data set."""
    runs = read_runs(PUBLISHED / FILE)
    cases = judge(runs)
    spelt = ", ".join(f"{run.name} {run.training_s:.0f} and {run.switches_s:.0f} s" for run in runs)
    return Source(
        "rl_mixtures",
        "On-policy steps of large mixtures, generation given",
        "NVIDIA-NeMo/RL performance summary v0.4 to v0.6 (H100, GB200)",
        calibrated="nothing here; the trainer's figures on prime-rl's and NeMo-RL's smaller "
        "models, syncs and switches on published ones",
        held_out="all",
        assumed=(
            "generation takes what the one-step-off run's step takes, in which as many GPUs "
            "generate, less its sync",
            "layouts, packing and recomputation from the recipes; every response of the mean "
            "length",
        ),
        cases=tuple(cases),
        checks=tuple(mape_checks(cases, TARGET)),
        misses=(
            *explain(cases, _KINDS, beyond=TARGET),
            f"Training and both switches are forecast as {spelt}",
        ),
    )


_KINDS = (
    Kind(
        "DeepSeek-V3",
        lambda case: case.group == "deepseek-v3",
        "microbatches of 1,536 tokens of many kernels (launch_s_per_layer, here 0), experts that "
        "Megatron exchanges between nodes, and a colocated refit, which takes longer than one "
        "between nodes (Qwen3-235B: 7 to 18 s, NeMo-RL pull request 3294, against 5.5 s, 1379)",
    ),
)
