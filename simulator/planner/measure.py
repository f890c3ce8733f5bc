"""What one simulation of one choice says, small enough to be sent between processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.results.steady import steady_of
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies.simulate import Result, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

DRAWS = 512
"""Of what is not known of a scenario."""

BoundBy = Literal["rollout tail", "rollout throughput", "trainer", "sync", "environment"]


@dataclass(frozen=True, slots=True)
class Setup:
    """Which GPUs a choice holds, and what one of them costs an hour; None where there is no
    price."""

    gpu: str
    gpus: int
    placement: str
    replicas: int
    tensor_parallel: int
    trainer_gpus: int
    usd_per_gpu_hour: float | None
    stages: int = 1

    @property
    def gpus_per_replica_said(self) -> str:
        """How one replica is laid out."""
        return f"TP {self.tensor_parallel}" + (f" x PP {self.stages}" if self.stages > 1 else "")


@dataclass(frozen=True, slots=True)
class Measured:
    """What ``steps`` simulated updates of a choice came to.

    step_s, fill_s: seconds of a steady step, and of the start-up beyond it. taken, used, trained:
    rollouts that a mean update took in, prompts it used up, rollouts it trained on. series_s:
    seconds of each step. staleness_max: versions, of the oldest token trained on. length_bias: None
    where nothing says. settled: whether the run was long enough to tell its start-up from its
    steady state. factors: what the step time of the whole run may be, over step_s, by draw; choices
    with the same seed are drawn alike.
    """

    steps: int
    step_s: float
    fill_s: float
    taken: float
    used: float
    trained: float
    series_s: tuple[float, ...]
    bound_by: BoundBy
    bubble_fraction: float
    rollout_tokens_per_s: float
    staleness_mean: float
    staleness_max: int
    length_bias: float | None
    warnings: tuple[str, ...]
    settled: bool = True
    factors: tuple[float, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON types."""
        return asdict(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Measured:
        """Back from `plain`."""
        lists = {key: tuple(content[key]) for key in ("series_s", "warnings", "factors")}
        return cls(**{**content, **lists})


def setup_of(scenario: Scenario) -> Setup:
    """The GPUs of a scenario."""
    shape, gpu = scenario.shape, scenario.gpu
    stages = int((scenario.raw.data.get("cluster") or {}).get("pipeline_parallel") or 1)
    price = gpu.usd_per_hour if gpu is not None else None
    return Setup(
        gpu.name if gpu is not None else "",
        shape.held_gpus,
        "colocated" if shape.colocated else "disaggregated",
        shape.replicas,
        shape.gpus_per_replica // stages,
        shape.trainer_gpus,
        price or None,
        stages,
    )


def measured(result: Result, whole: int | None = None) -> Measured:
    """What a finished run says; of ``whole`` updates, how sure it is."""
    factors, errors = (), ""
    if whole is not None:
        sure = uncertainty(result, steps=whole)
        draws, errors = sure.draws.get("step_s"), sure.sampling_error.said
        if draws is not None:
            factors = tuple((draws[:DRAWS] / result.summary["step_s"]).tolist())
    summary, records = result.summary, result.run.steps
    count = max(len(records), 1)
    return Measured(
        len(records),
        summary["step_s"],
        summary.get("fill_s") or 0.0,
        sum(record.taken_rollouts for record in records) / count,
        sum(record.trained_groups + record.rejected_groups for record in records) / count,
        sum(record.trained_rollouts for record in records) / count,
        tuple(record.step_s for record in records),
        bound_by(summary, records),
        summary["bubble_fraction"],
        summary["rollout_tokens_per_s"] or 0.0,
        summary["staleness_mean"] or 0.0,
        max(map(int, summary["staleness"]), default=0),
        summary["length_bias"],
        (*summary["warnings"], *([errors] if errors else ())),
        steady_of(result.run).known,
        factors,
    )


MOSTLY = 0.9
"""A trainer at work for this share of the time leaves nothing for rollouts to gain."""


def bound_by(summary: Mapping[str, Any], records: Sequence[StepRecord]) -> BoundBy:
    """What a run's steps wait for most. Where training overlaps with rollout, the trainer or its
    weight syncs bound it if they are at work nearly all of the time; else the rollouts do: their
    tail, if for most of what they take replicas are underfilled, or their throughput, or the
    environment, if replicas wait for it more than that."""
    total_s = sum(record.step_s for record in records)
    sync_s = summary["sync_s"] + summary["switch_s"]
    train_s = summary["train_s"]
    tail_s = summary["underfilled_fraction"] * summary["rollout_s"]
    steady_s = summary["rollout_s"] - tail_s
    idle = summary["bubble_by_cause"].get("environment", 0.0) * total_s
    if idle > max(steady_s - idle, tail_s, train_s, sync_s):
        return "environment"
    overlapped = summary["rollout_s"] + train_s + sync_s > 1.02 * total_s
    if overlapped and train_s + sync_s < MOSTLY * total_s:
        return "rollout tail" if tail_s > steady_s else "rollout throughput"
    parts: dict[BoundBy, float] = {"trainer": train_s, "sync": sync_s}
    if not overlapped:
        parts |= {"rollout tail": tail_s, "rollout throughput": steady_s}
    return max(parts, key=lambda part: parts[part])


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation to make: which choice, for how many steps. more: further settings of the
    scenario. whole: how many updates the whole run has, where it is to be said how sure its hours
    are (`Measured.factors`)."""

    choice: Choice
    steps: int
    more: Mapping[str, Any] | None = None
    whole: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a task could not be done: a sentence for the user."""

    problem: str


def run_task(raw: RawScenario, task: Task) -> Measured | Failure:
    """Does a task; a choice that cannot be run to its end is a `Failure`."""
    choice = task.choice
    try:
        settings = {**choice.settings, "steps": task.steps, **(task.more or {})}
        scenario = Choice(choice.chosen, settings, choice.policy).scenario(raw)
        result = simulate(scenario)
        return measured(result, task.whole)
    except RollcastError as error:
        return Failure(str(error))


__all__ = [
    "BoundBy",
    "Failure",
    "Measured",
    "Setup",
    "Task",
    "bound_by",
    "measured",
    "run_task",
    "setup_of",
]
