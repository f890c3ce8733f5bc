"""What a plan makes least, and the limits that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.planner.measure import Measured, Setup
from simulator.planner.whole_run import Bill
from simulator.planner.words import hours as hours_said
from simulator.planner.words import usd as usd_said
from simulator.scenario.plan_section import LimitSection, Objective


def objective_of(said: Objective | None, limits: LimitSection) -> Objective:
    """The objective where none is given: the least cost by a deadline, the least time within a
    budget, and without limits hours x cost, so that twice the speed is worth twice the price."""
    if said is not None:
        return said
    if limits.hours is not None:
        return "usd"
    return "balanced" if limits.usd is None and limits.gpus is None else "hours"


@dataclass(frozen=True, slots=True)
class Aim:
    """An objective under limits (`simulator.planner.race.Goal`)."""

    objective: Objective
    limits: LimitSection

    def value(self, bill: Bill) -> float:
        """The objective. Raises ScenarioError where it needs a price that is missing."""
        return bill.value(self.objective)

    def excess(self, bill: Bill) -> float:
        """Of hours and cost, the greater of what each is over its limit."""
        found = [0.0]
        if self.limits.hours is not None:
            found.append(bill.hours / self.limits.hours)
        if self.limits.usd is not None and bill.usd is not None:
            found.append(bill.usd / self.limits.usd)
        return max(found)

    def barred(self, gpus: int, measured: Measured | None) -> float:
        """Of GPUs and staleness; a version too old counts as if it were one more of one."""
        found = [0.0]
        if self.limits.gpus is not None:
            found.append(gpus / self.limits.gpus)
        if self.limits.staleness is not None and measured is not None:
            found.append((1 + measured.staleness_max) / (1 + self.limits.staleness))
        return max(found)

    def sure(self, measured: Measured) -> bool:
        """Whether its staleness cannot come to break the limit, however long the run."""
        return self.limits.staleness is None or measured.staleness_max == 0

    def beyond(self, setup: Setup, measured: Measured, bill: Bill) -> Iterator[tuple[str, str]]:
        """(name, sentence) of each limit that a choice breaks."""
        limits = self.limits
        if limits.hours is not None and bill.hours > limits.hours:
            yield "hours", f"the limit of {hours_said(limits.hours)} ({hours_said(bill.hours)})"
        if limits.usd is not None and bill.usd is not None and bill.usd > limits.usd:
            yield "usd", f"the limit of {usd_said(limits.usd)} ({usd_said(bill.usd)})"
        if limits.gpus is not None and setup.gpus > limits.gpus:
            yield "gpus", f"the limit of {limits.gpus} GPU{'s' * (limits.gpus != 1)} ({setup.gpus})"
        if limits.staleness is not None and measured.staleness_max > limits.staleness:
            yield (
                "staleness",
                f"the limit of staleness {limits.staleness:g} ({measured.staleness_max})",
            )
