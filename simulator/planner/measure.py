"""The figures of one simulation of a choice, small enough to send between processes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.learning.answer import Needs, needs_of
from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.whole_run import RunCost, Work, run_cost
from rollcast.simulator.results.phases import said
from rollcast.simulator.results.steady import steady_of
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.redrawn import add_phases
from rollcast.simulator.studies.simulate import Result, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

DRAWS = 512  # kept of the step time's uncertainty


@dataclass(frozen=True, slots=True)
class Setup:
    """The GPUs that a choice holds. usd_per_gpu_hour: their mean; None without a price.
    trainer_gpu: empty where it is ``gpu``."""

    gpu: str
    gpus: int
    placement: str
    replicas: int
    tensor_parallel: int
    trainer_gpus: int
    usd_per_gpu_hour: float | None
    stages: int = 1
    trainer_gpu: str = ""

    @property
    def kinds(self) -> str:
        """The GPUs' names."""
        return f"{self.gpu} and {self.trainer_gpu}" if self.trainer_gpu else self.gpu

    @property
    def replica(self) -> str:
        """The layout of one replica."""
        return f"TP {self.tensor_parallel}" + (f" x PP {self.stages}" if self.stages > 1 else "")


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of ``steps`` simulated updates of a choice.

    step_s: seconds of a steady step. taken, used, trained: of a mean update, rollouts taken in,
    prompts used up, rollouts trained on. series_s: seconds by step, the first ``startup_steps``
    before the steady state. staleness_max: versions. settled: whether the steady state was reached.
    said: of its phases (`simulator.results.phases.said`). factors: draws of the whole run's time
    over that of its step_s; choices with the same seed share their draws. needs: updates to the
    target by the law of learning; None without one. memory: the ``peak`` of a GPU and
    ``fits_probability``, of the run's ledger; None where no memory is known.
    """

    steps: int
    step_s: float
    startup_steps: int
    taken: float
    used: float
    trained: float
    series_s: tuple[float, ...]
    said: Mapping[str, Any]
    bubble_fraction: float
    rollout_tokens_per_s: float
    staleness_mean: float
    staleness_max: int
    length_bias: float | None
    warnings: tuple[str, ...]
    settled: bool = True
    factors: tuple[float, ...] = ()
    memory: Mapping[str, Any] | None = None
    needs: Needs | None = None

    @property
    def peak_memory_bytes(self) -> int | None:
        """Of a GPU in the phase that comes closest to what it has."""
        return None if self.memory is None else round(self.memory["peak"]["bytes"])

    @property
    def startup_s(self) -> float:
        """Seconds before the steady state."""
        return math.fsum(self.series_s[: self.startup_steps])

    def run_cost(
        self, work: Work, gpus: int, usd_per_gpu_hour: float | None, quality: float = 1.0
    ) -> RunCost:
        """Hours and cost of the whole run; see `simulator.planner.whole_run.run_cost`."""
        reacts = work.accuracy is not None and self.needs is not None
        return run_cost(
            work,
            step_s=self.step_s * (self.needs.slower if reacts and self.needs else 1.0),
            taken=self.taken,
            used=self.used,
            trained=self.trained,
            gpus=gpus,
            usd_per_gpu_hour=usd_per_gpu_hour,
            quality=quality,
            startup_s=self.startup_s,
            startup_steps=self.startup_steps,
            level=None if self.needs is None else self.needs.level,
        )

    def up_to_target(self) -> Measured:
        """The same for a run that ends at the target, whose updates are drawn, too."""
        if self.needs is None or not self.needs.factors or not self.factors:
            return self
        updates = np.resize(self.needs.factors, len(self.factors))
        return replace(self, factors=tuple((updates * self.factors).tolist()))

    def plain(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Measured:
        """The inverse of `plain`."""
        lists = {key: tuple(content[key]) for key in ("series_s", "warnings", "factors")}
        needs = content.get("needs")
        if needs is not None:
            needs = Needs(**{**needs, "factors": tuple(needs["factors"])})
        return cls(**{**content, **lists, "needs": needs})


def setup_of(scenario: Scenario) -> Setup:
    """The GPUs of a scenario."""
    shape, gpu = scenario.shape, scenario.gpu
    stages = int((scenario.raw.data.get("cluster") or {}).get("pipeline_parallel") or 1)
    trainer_gpu = scenario.trainer_gpu
    return Setup(
        gpu.name if gpu is not None else "",
        shape.held_gpus,
        "colocated" if shape.colocated else "disaggregated",
        shape.replicas,
        shape.gpus_per_replica // stages,
        shape.trainer_gpus,
        scenario.usd_per_gpu_hour,
        stages,
        "" if trainer_gpu is None else trainer_gpu.name,
    )


def measured(result: Result, whole: int | None = None) -> Measured:
    """Figures of a finished run; with ``whole``, also the uncertainty of that many updates."""
    factors, warnings, summary = (), list(result.summary["warnings"]), dict(result.summary)
    if whole is not None:
        uncertain = uncertainty(result, steps=whole, sources=False)
        draws, few = uncertain.draws.get("step_s"), uncertain.sampling_error.warning
        warnings += [few] if few else []
        if draws is not None:
            factors = tuple((draws[:DRAWS] / summary["step_s"]).tolist())
        if uncertain.step is not None:
            add_phases(summary, uncertain.step.phases, uncertain.step.bound_by)
    records, steady = result.run.steps, steady_of(result.run)
    count = max(len(records), 1)
    return Measured(
        len(records),
        summary["step_s"],
        steady.start,
        sum(record.taken_rollouts for record in records) / count,
        sum(record.trained_groups + record.rejected_groups for record in records) / count,
        sum(record.trained_rollouts for record in records) / count,
        tuple(record.step_s for record in records),
        said(summary),
        summary["bubble_fraction"],
        summary["rollout_tokens_per_s"] or 0.0,
        summary["staleness_mean"] or 0.0,
        max(map(int, summary["staleness"]), default=0),
        summary["length_bias"],
        tuple(warnings),
        steady.known,
        factors,
        _memory(summary),
        _needs(result),
    )


def _needs(result: Result) -> Needs | None:
    learning = result.scenario.learning
    if learning is None or learning.target is None or result.progress is None:
        return None
    return needs_of(result.run, learning, result.scenario.seed, result.progress)


def _memory(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    memory = summary.get("memory")
    return memory and {key: memory[key] for key in ("peak", "fits_probability")}


@dataclass(frozen=True, slots=True)
class Task:
    """A simulation to make. more: further settings of the scenario. whole: updates of the whole
    run, to draw `Measured.factors`."""

    choice: Choice
    steps: int
    more: Mapping[str, Any] | None = None
    whole: int | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that could not be done. problem: a sentence for the user."""

    problem: str


class Simulator(Protocol):
    """Who makes simulations."""

    def simulate(self, what: str, tasks: Sequence[Task]) -> list[Measured | Failure]:
        """Their results, in order."""


def run_task(raw: RawScenario, task: Task) -> Measured | Failure:
    """The result of a task; a `Failure` for a choice that cannot run to its end."""
    choice = task.choice
    try:
        settings = {**choice.settings, "steps": task.steps, **(task.more or {})}
        scenario = Choice(choice.chosen, settings, choice.policy).scenario(raw)
        return measured(simulate(scenario), task.whole)
    except RollcastError as error:
        return Failure(str(error))
