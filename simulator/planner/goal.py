"""The objective of a plan and its limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.simulator.planner.measure import Measured, Setup
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.results.text import hours, usd
from rollcast.simulator.scenario.plan_section import LimitSection, ObjectiveName


def objective_of(objective: ObjectiveName | None, limits: LimitSection) -> ObjectiveName:
    """The objective; by default cost under a limit of hours, hours under one of cost or GPUs, and
    hours x cost without limits."""
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
        """The figure to minimise. Raises ScenarioError for a missing price."""
        return run_cost.value(self.name)

    def excess(self, run_cost: RunCost) -> float:
        """The largest ratio of hours and cost to their limits."""
        excesses = [0.0]
        if self.limits.hours is not None:
            excesses.append(run_cost.hours / self.limits.hours)
        if self.limits.usd is not None and run_cost.usd is not None:
            excesses.append(run_cost.usd / self.limits.usd)
        return max(excesses)

    def violation(self, gpus: int, measured: Measured | None) -> float:
        """The largest ratio of GPUs and (1 + staleness) to their limits."""
        violations = [0.0]
        if self.limits.gpus is not None:
            violations.append(gpus / self.limits.gpus)
        if self.limits.staleness is not None and measured is not None:
            violations.append((1 + measured.staleness_max) / (1 + self.limits.staleness))
        return max(violations)

    def beyond_by(self, gpus: int, measured: Measured | None, run_cost: RunCost) -> float:
        """The largest ratio to any limit."""
        return max(self.excess(run_cost), self.violation(gpus, measured))

    def chances(self, run_cost: RunCost, factors: Sequence[float]) -> dict[str, float]:
        """By limit of hours and cost, the share of draws that meet it. factors: of the whole run's
        time, drawn; a limit without draws is left out."""
        if not factors:
            return {}
        drawn = np.asarray(factors)
        chances = {}
        for name in ("hours", "usd"):
            limit, value = getattr(self.limits, name), getattr(run_cost, name)
            if limit is not None and value is not None:
                chances[name] = float(np.mean(drawn * value <= limit))
        return chances

    def sure(self, measured: Measured) -> bool:
        """Whether a longer run cannot break the limit of staleness."""
        return self.limits.staleness is None or measured.staleness_max == 0

    def beyond(
        self, setup: Setup, measured: Measured, run_cost: RunCost
    ) -> Iterator[tuple[str, str]]:
        """(name, sentence) of each broken limit."""
        limits = self.limits
        if limits.hours is not None and run_cost.hours > limits.hours:
            taken = hours(run_cost.hours, like=limits.hours)
            yield "hours", f"the limit of {hours(limits.hours)} ({taken})"
        if limits.usd is not None and run_cost.usd is not None and run_cost.usd > limits.usd:
            yield "usd", f"the limit of {usd(limits.usd)} ({usd(run_cost.usd)})"
        if limits.gpus is not None and setup.gpus > limits.gpus:
            yield "gpus", f"the limit of {limits.gpus} GPU{'s' * (limits.gpus != 1)} ({setup.gpus})"
        if limits.staleness is not None and measured.staleness_max > limits.staleness:
            yield (
                "staleness",
                f"the limit of staleness {limits.staleness:g} ({measured.staleness_max})",
            )
