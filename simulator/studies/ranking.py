"""The uncertainty of a comparison: intervals of speed-ups, and policies that may change places.

Lengths, rewards and costs are redrawn alike for all policies, by short or whole runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.results.steady import per_rollout
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.learned import add_learning
from rollcast.simulator.studies.redrawn import from_whole_runs, redrawn
from rollcast.simulator.studies.short_runs import kind_of, widest
from rollcast.simulator.studies.simulate import Result, simulate
from rollcast.simulator.studies.uncertainty import add_intervals, cost_draws

FloatArray = NDArray[np.float64]

SURE = 0.95  # A ranking that holds in a smaller share of the draws is not called sure


@dataclass(frozen=True, slots=True)
class Ranking:
    """Draws of policies' mean step times.

    step_s: seconds per as many rollouts as a step of the first takes in, shape (policies,). draws:
    the same, shape (draws, policies); a draw is alike for all. source: ``short runs`` or ``whole
    runs``.
    """

    names: tuple[str, ...]
    step_s: FloatArray
    draws: FloatArray
    source: str

    @property
    def order(self) -> list[str]:
        """The policies, fastest first."""
        return [self.names[i] for i in np.argsort(self.step_s, kind="stable")]

    def speedup(self, name: str) -> tuple[float, float]:
        """The 90 % interval of the first policy's step time over this one's."""
        place = self.names.index(name)
        speedup = float(self.step_s[0] / self.step_s[place])
        low, high = ends(self.draws[:, 0] / self.draws[:, place]).tolist()
        return min(low, speedup), max(high, speedup)

    def factors(self, name: str) -> FloatArray:
        """Draws of a policy's step time over its own, shape (draws,)."""
        place = self.names.index(name)
        return np.asarray(self.draws[:, place] / self.step_s[place])

    def sure(self, faster: str, slower: str) -> float:
        """The share of the draws in which ``faster`` is."""
        one, other = (self.draws[:, self.names.index(name)] for name in (faster, slower))
        return float(np.mean((one < other) + 0.5 * (one == other)))

    def sure_of_next(self, name: str) -> float:
        """The share of draws in which ``name`` beats the next policy; nan for the last."""
        order = self.order
        place = order.index(name) + 1
        return self.sure(name, order[place]) if place < len(order) else float("nan")

    def may_flip(self) -> list[tuple[str, str, float]]:
        """Pairs whose order is not sure: the faster, the slower, and the share of the draws."""
        pairs = ((a, b, self.sure(a, b)) for a, b in combinations(self.order, 2))
        return [pair for pair in pairs if pair[2] < SURE]


def from_short_runs(
    results: Mapping[str, Result],
    on_step: Callable[[StepRecord], None] | None = None,
    sources: bool = True,
) -> Ranking:
    """The ranking of finished runs by the draws of `simulator.studies.uncertainty`, alike for all
    policies. Adds intervals to the runs' summaries (`add_intervals`, also on ``sources``)."""
    runs = list(results.values())
    costs = {id(result.scenario.cost): cost_draws(result.scenario) for result in _unlike(runs)}
    alike = widest(kind_of(result.run.steps) for result in runs)
    add = partial(add_intervals, on_short_step=on_step, alike=alike, sources=sources)
    drawn = [add(run, costs=costs[id(run.scenario.cost)]).draws["step_s"] for run in runs]
    step_s = np.array([result.summary["step_s"] for result in runs])
    alike_s = per_rollout([result.run for result in runs])
    drawn_s = np.column_stack(drawn) * alike_s
    ranking = Ranking(tuple(results), step_s * alike_s, drawn_s, "short runs")
    add_learning(results, {name: ranking.factors(name) for name in results})
    return ranking


def _unlike(runs: Sequence[Result]) -> Iterable[Result]:
    """The first run of each model of costs: another key than a policy may change the costs."""
    return {id(result.scenario.cost): result for result in reversed(runs)}.values()


def redraw(
    results: Mapping[str, Result], draws: int, on_step: Callable[[StepRecord], None] | None = None
) -> Ranking:
    """The ranking of finished runs by ``draws`` whole further runs of each (`redrawn`). Adds
    intervals to the runs' summaries (`from_whole_runs`).

    Raises ScenarioError or RunError for a run that cannot be made.
    """
    scenarios = [result.scenario for result in results.values()]
    first = scenarios[0]
    drawn, summaries = [], []
    for draw in range(1, draws + 1):
        alike = redrawn(first, draw)
        runs = []
        for scenario in scenarios:
            of_first = scenario.cost is first.cost and scenario.workload is first.workload
            own = alike if of_first else redrawn(scenario, draw)
            other = replace(scenario, workload=own.workload, cost=own.cost, learning=None)
            runs.append(simulate(other, on_step))
        drawn.append(_step_s(runs))
        summaries.append([run.summary for run in runs])
    for result, theirs in zip(results.values(), zip(*summaries, strict=True), strict=True):
        from_whole_runs(result.summary, theirs)
    ranking = Ranking(tuple(results), _step_s([*results.values()]), np.array(drawn), "whole runs")
    add_learning(results, {name: ranking.factors(name) for name in results})
    return ranking


def _step_s(results: Sequence[Result]) -> FloatArray:
    step_s = np.array([result.summary["step_s"] for result in results])
    return step_s * per_rollout([result.run for result in results])
