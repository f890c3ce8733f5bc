"""How sure a comparison is: intervals of speed-ups, and which policies may change places.

Two sources of draws. *Steps*: stretches of consecutive steps of the runs at hand are drawn again,
the same ones for all policies (`simulator.studies.bootstrap`), which tells what other lengths and
rewards would have done and costs nothing. *Redrawn*: the runs are made again with other lengths and
rewards, and with costs drawn from what is not known of them: what a calibration leaves open, or how
far the roofline is off published measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from simulator.scenario.scenario import Scenario
from simulator.spans import StepRecord
from simulator.studies.bootstrap import BLOCK_STEPS, block_rows
from simulator.studies.interval import ends
from simulator.studies.redrawn import redrawn
from simulator.studies.simulate import Result, simulate

SURE = 0.95
"""A ranking that holds in a smaller share of the draws is not called sure."""

LEAST_STEPS = 4 * BLOCK_STEPS
"""Runs with fewer steps say nothing about their own spread."""

BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True, slots=True)
class Ranking:
    """Mean step times of policies, drawn many times.

    names: of the policies. step_s: mean seconds of a step, shape (policies,). draws: the same by
    draw, shape (draws, policies), draw by draw under the same circumstances. source: ``steps`` or
    ``redrawn``.
    """

    names: tuple[str, ...]
    step_s: NDArray[np.float64]
    draws: NDArray[np.float64]
    source: str

    @property
    def order(self) -> list[str]:
        """The policies, fastest first."""
        return [self.names[i] for i in np.argsort(self.step_s, kind="stable")]

    def speedup(self, name: str) -> tuple[float, float]:
        """The 90 % interval of the first policy's mean step time over this one's."""
        ratios = self.draws[:, 0] / self.draws[:, self.names.index(name)]
        low, high = ends(ratios).tolist()
        return low, high

    def sure(self, faster: str, slower: str) -> float:
        """The share of the draws in which ``faster`` is."""
        one, other = (self.draws[:, self.names.index(name)] for name in (faster, slower))
        return float(np.mean((one < other) + 0.5 * (one == other)))

    def sure_of_next(self, name: str) -> float:
        """The share of the draws in which ``name`` is faster than the policy ranked next; not a
        number for the last."""
        order = self.order
        place = order.index(name) + 1
        return self.sure(name, order[place]) if place < len(order) else float("nan")

    def may_flip(self) -> list[tuple[str, str, float]]:
        """Pairs whose order is not sure: the faster, the slower, and the share of the draws."""
        pairs = ((a, b, self.sure(a, b)) for a, b in combinations(self.order, 2))
        return [pair for pair in pairs if pair[2] < SURE]


def from_steps(results: Mapping[str, Result], seed: int = 0) -> Ranking | None:
    """The ranking of finished runs, with draws from those of their steps that are steady in all of
    them; None where they have too few, or not equally many."""
    steps = [np.array([record.step_s for record in r.run.steps]) for r in results.values()]
    if any(len(each) != len(steps[0]) for each in steps):
        return None
    spans = [result.summary["steady_steps"] for result in results.values()]
    times = np.column_stack(steps)[max(a for a, _ in spans) : min(b for _, b in spans)]
    count = len(times)
    if count < LEAST_STEPS:
        return None
    rows = block_rows(count, count, BOOTSTRAP_DRAWS, np.random.default_rng(seed))
    draws = times[rows].mean(axis=1)
    return Ranking(tuple(results), times.mean(axis=0), draws, "steps")


def redraw(
    results: Mapping[str, Result],
    draws: int,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Ranking:
    """The ranking of finished runs, with ``draws`` further runs of each (`redrawn`), drawn alike
    for all policies in each draw.

    Raises ScenarioError or RunError where one of them cannot be run.
    """
    scenarios = [result.scenario for result in results.values()]
    drawn = []
    for draw in range(1, draws + 1):
        alike = redrawn(scenarios[0], draw)
        drawn.append(
            [
                _mean_step(replace(each, workload=alike.workload, cost=alike.cost), on_step)
                for each in scenarios
            ]
        )
    step_s = np.array([result.summary["step_s"] for result in results.values()])
    return Ranking(tuple(results), step_s, np.array(drawn), "redrawn")


def _mean_step(scenario: Scenario, on_step: Callable[[StepRecord], None] | None) -> float:
    return float(simulate(scenario, on_step).summary["step_s"])
