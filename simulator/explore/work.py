"""A worker's simulation of one choice, on plain data."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.planner.measure import Measured, measured
from rollcast.simulator.report.ledger import gpu_use
from rollcast.simulator.report.timeline import timeline_of
from rollcast.simulator.results.lanes import Timeline
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.studies.simulate import from_raw, simulate

ROLLOUTS = 2100  # budget of a simulation: 0.1 to 0.25 s
LEAST_STEPS, MOST_STEPS = 6, 8
"""With 4 steps a start-up of fully_async hides its steady step time; 8 are within a tenth."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A scenario under a chain of policies. drawn: whether to draw its interval."""

    raw: RawScenario
    chain: str
    drawn: bool = False

    @property
    def key(self) -> str:
        """Equal for equal results."""
        return json.dumps([self.raw.data, self.chain, self.drawn], sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A choice's result, or why it cannot run. use: of `simulator.report.ledger.gpu_use`."""

    chain: str
    problem: str = ""
    gpus: int = 0
    figures: Measured | None = None
    use: Mapping[str, float] = field(default_factory=dict)
    timeline: Timeline | None = None


def prepare() -> None:
    """Initialises a worker, which ends with the page alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def steps_for(data: dict[str, Any]) -> int:
    """Steps to simulate."""
    workload = data["workload"]
    rollouts = int(workload["batch_groups"]) * int(workload["group_size"])
    return min(max(ROLLOUTS // max(rollouts, 1), LEAST_STEPS), MOST_STEPS)


def outcome(choice: Choice) -> Outcome:
    """Simulates a choice; returns problems of the user's settings."""
    try:
        steps = steps_for(choice.raw.data)
        scenario = from_raw(override(choice.raw, [f"steps={steps}"]))
        result = simulate(scenario.with_policy(choice.chain))
    except RollcastError as error:
        return Outcome(choice.chain, problem=str(error))
    s = result.summary
    return Outcome(
        choice.chain,
        gpus=s["gpus"],
        figures=measured(result, steps if choice.drawn else None),
        use=gpu_use(result.run),
        timeline=timeline_of(result.run, choice.chain, s),
    )
