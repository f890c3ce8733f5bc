"""The one door to the loop: what is to be run comes whole, so that nobody forgets a part of it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.core.world import World
from rollcast.simulator.loop import Loop

OnStep = Callable[[StepRecord], None] | None
"""Called after each step."""


class Job(Protocol):
    """What is run: a `simulator.scenario.scenario.Scenario`, or what an engine makes of one.
    poll_s, trial_timeout_s: as of `simulator.loop.Loop`."""

    @property
    def policy(self) -> Policy: ...  # noqa: D102

    @property
    def plan(self) -> StepPlan: ...  # noqa: D102

    @property
    def poll_s(self) -> float: ...  # noqa: D102

    @property
    def trial_timeout_s(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Parts:
    """A job of which no scenario can be built: a record does not need its costs."""

    policy: Policy
    plan: StepPlan
    poll_s: float
    trial_timeout_s: float | None = None


def loop_of(job: Job, world: World, on_step: OnStep = None) -> Loop:
    """The loop of a job on ``world``, for who advances, saves or resumes it. Raises ScenarioError
    for a plan that contradicts itself."""
    return Loop(world, job.policy, job.plan, on_step, job.poll_s, job.trial_timeout_s)


def drive(job: Job, world: World, steps: int, on_step: OnStep = None) -> Run:
    """Runs ``steps`` updates of a job on ``world``. Raises RunError where the run cannot go on, and
    ScenarioError where world or policy refuses the scenario."""
    with collecting_seldom():
        return loop_of(job, world, on_step).run(steps)


@contextmanager
def collecting_seldom() -> Iterator[None]:
    """Has Python look for cycles among its objects less often: a run makes many objects and hardly
    a cycle, and the search was a fifth of its time."""
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, 100_000) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)
