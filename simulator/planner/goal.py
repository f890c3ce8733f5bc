"""What a plan makes least, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollcast.simulator.planner.measure import Measured, Setup
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.planner.words import hours as hours_said
from rollcast.simulator.planner.words import usd as usd_said
from rollcast.simulator.scenario.plan_section import LimitSection, ObjectiveName


def objective_of(objective: ObjectiveName | None, limits: LimitSection) -> ObjectiveName:
    """The objective where none is given: the least cost by a deadline, the least time within a
    budget, and without limits hours x cost, so that twice the speed is worth twice the price."""
    if objective is not None:
        return objective
    if limits.hours is not None:
        return "usd"
    return "balanced" if limits.usd is None and limits.gpus is None else "hours"


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective under limits (`simulator.planner.race.Goal`)."""

    name: ObjectiveName
    limits: LimitSection

    def value(self, run_cost: RunCost) -> float:
        """The objective. Raises ScenarioError where it needs a price that is missing."""
        return run_cost.value(self.name)

    def excess(self, run_cost: RunCost) -> float:
        """Of hours and cost, the greater of what each is over its limit."""
        excesses = [0.0]
        if self.limits.hours is not None:
            excesses.append(run_cost.hours / self.limits.hours)
        if self.limits.usd is not None and run_cost.usd is not None:
            excesses.append(run_cost.usd / self.limits.usd)
        return max(excesses)

    def violation(self, gpus: int, measured: Measured | None) -> float:
        """Of GPUs and staleness; a version too old counts as if it were one more of one."""
        violations = [0.0]
        if self.limits.gpus is not None:
            violations.append(gpus / self.limits.gpus)
        if self.limits.staleness is not None and measured is not None:
            violations.append((1 + measured.staleness_max) / (1 + self.limits.staleness))
        return max(violations)

    def sure(self, measured: Measured) -> bool:
        """Whether its staleness cannot come to break the limit, however long the run."""
        return self.limits.staleness is None or measured.staleness_max == 0

    def beyond(
        self, setup: Setup, measured: Measured, run_cost: RunCost
    ) -> Iterator[tuple[str, str]]:
        """(name, sentence) of each limit that a choice breaks."""
        limits = self.limits
        if limits.hours is not None and run_cost.hours > limits.hours:
            yield "hours", f"the limit of {hours_said(limits.hours)} ({hours_said(run_cost.hours)})"
        if limits.usd is not None and run_cost.usd is not None and run_cost.usd > limits.usd:
            yield "usd", f"the limit of {usd_said(limits.usd)} ({usd_said(run_cost.usd)})"
        if limits.gpus is not None and setup.gpus > limits.gpus:
            yield "gpus", f"the limit of {limits.gpus} GPU{'s' * (limits.gpus != 1)} ({setup.gpus})"
        if limits.staleness is not None and measured.staleness_max > limits.staleness:
            yield (
                "staleness",
                f"the limit of staleness {limits.staleness:g} ({measured.staleness_max})",
            )
