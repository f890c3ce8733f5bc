"""One choice simulated: what a worker process does. Plain data in, plain data out."""

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

ROLLOUTS = 2100
"""What a simulation for the page may launch, or `LEAST_STEPS`: 0.1 to 0.25 s of one core."""

LEAST_STEPS, MOST_STEPS = 6, 8
"""Fewer do not tell an asynchronous start-up from steady steps: with 4 a step of fully_async took
1.5 times what it takes over 40, with 8 it is within a tenth or so."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to simulate: a scenario under a chain of policies."""

    raw: RawScenario
    chain: str

    @property
    def key(self) -> str:
        """Equal where the results are."""
        return json.dumps([self.raw.data, self.chain], sort_keys=True, default=str)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a choice. problem: why it cannot be run, else ''; then the rest holds nothing.

    gpus: all that are held. use: as `simulator.report.ledger.gpu_use` has it.
    """

    chain: str
    problem: str = ""
    gpus: int = 0
    figures: Measured | None = None
    use: Mapping[str, float] = field(default_factory=dict)
    timeline: Timeline | None = None


def prepare() -> None:
    """Makes a fresh worker: it stops with the page, not by a key of its own, and has imported what
    a simulation needs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def steps_for(data: dict[str, Any]) -> int:
    """How many steps are simulated for the page."""
    workload = data["workload"]
    rollouts = int(workload["batch_groups"]) * int(workload["group_size"])
    return min(max(ROLLOUTS // max(rollouts, 1), LEAST_STEPS), MOST_STEPS)


def outcome(choice: Choice) -> Outcome:
    """Simulates a few steps of a choice; never raises for what a user may set."""
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
        figures=measured(result),
        use=gpu_use(result.run),
        timeline=timeline_of(result.run, choice.chain, s),
    )
