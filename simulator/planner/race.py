"""The race: rungs of simulations of growing length.

All choices have estimates. The first rung simulates the most promising, learns the error of each
policy's estimates, and ends once no other choice could catch up. Successive halving follows
(Jamieson and Talwalkar, AISTATS 2016) under common random numbers: choices not clearly worse than
the best, and those near the front, go on. The last rung is as exact as `simulate`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.planner.frontier import behind_front
from rollcast.simulator.planner.measure import Failure, Measured
from rollcast.simulator.planner.whole_run import RunCost

Simulate = Callable[[Sequence[tuple[int, int]]], Sequence[Measured | Failure]]
"""Simulates (candidate, steps) pairs; results in order."""


EASY = 512  # rollouts of a step up to which every rung has all of its steps
LEAST = (4, 8, 12)  # steps of the rungs at least: pipelines must have filled
MOST_ROLLOUTS = 400_000  # of all rungs: some forty seconds of one core


@dataclass(frozen=True, slots=True)
class Rungs:
    """Steps of each rung, the most candidates on each, and the most steps of all."""

    first: int = 6
    second: int = 16
    last: int = 40
    most: tuple[int, int, int] = (300, 48, 12)
    of_brute_force: float = 0.1
    most_steps: int = MOST_ROLLOUTS // EASY

    @classmethod
    def of(cls, rollouts: int) -> Rungs:
        """For steps of so many rollouts: large ones take longer to simulate and differ less, so
        that fewer are enough."""
        usual, share = cls(), min(1.0, EASY / rollouts)
        first, second, last = (
            max(round(share * steps), least)
            for steps, least in zip((usual.first, usual.second, usual.last), LEAST, strict=True)
        )
        return cls(first, second, last, most_steps=MOST_ROLLOUTS // rollouts)

    @property
    def brief(self) -> int:
        """Steps that show what a change of one choice brings."""
        return max(self.second * self.last // Rungs().last, LEAST[1])

    def tries(self, most: int) -> int:
        """Changes to try of so many that could be."""
        return max(2, most * self.last // Rungs().last)

    def places(self, candidates: int, kinds: int = 1) -> tuple[int, int, int]:
        """Candidates of each rung: within a share of brute force and the most steps, less one long
        run (the best synchronous choice's), but at least six (and one of each kind), three and two.
        """
        budget = min(self.of_brute_force * candidates * self.last, self.most_steps) - self.last
        last = _within(0.3 * budget / self.last, 2, self.most[2])
        left = budget - last * self.last
        second = _within(0.45 * left / self.second, 3, self.most[1])
        first = _within((left - second * self.second) / self.first, max(6, kinds), self.most[0])
        return min(first, candidates), min(second, candidates), min(last, candidates)

    def steps(self, places: tuple[int, int, int]) -> int:
        """Steps of so many candidates on each rung."""
        first, second, last = places
        return first * self.first + second * self.second + last * self.last


def _within(wanted: float, least: int, most: int) -> int:
    return max(least, min(int(wanted), most))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A choice that can run. kind: its policy, whose estimates err alike. estimate: cost of the
    whole run for a factor on rollout time. factor: that factor from a simulation; None if hidden.
    run_cost: from a simulation."""

    kind: str
    gpus: int
    estimate: Callable[[float], RunCost]
    factor: Callable[[Measured], float | None]
    run_cost: Callable[[Measured], RunCost]


class Goal(Protocol):
    """The objective and its limits."""

    def value(self, run_cost: RunCost) -> float:
        """The figure to minimise."""

    def excess(self, run_cost: RunCost) -> float:
        """Largest ratio of hours and cost to their limits."""

    def violation(self, gpus: int, measured: Measured | None) -> float:
        """Largest ratio of GPUs and staleness to their limits; above 1 is never on the front."""

    def sure(self, measured: Measured) -> bool:
        """Whether more steps cannot break a limit."""


@dataclass(slots=True)
class Results:
    """measured: the longest simulation by candidate. failed: problems by candidate. final:
    candidates of the last rung. steps: simulated in all."""

    measured: dict[int, Measured] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    final: list[int] = field(default_factory=list)
    steps: int = 0


CLOSE = 0.03  # margin by which a candidate of the first rung must be able to win
DOUBT = 2.0  # standard errors of a difference that are not trusted
HOPE = 0.85  # factor to hope for while few of a kind were simulated
UNSETTLED = 0.25  # relative error of a simulation too short to settle
_KNOWN = 3  # simulations of a kind that tell the error of its estimates


def race(
    candidates: Sequence[Candidate], goal: Goal, simulate: Simulate, rungs: Rungs, batch: int = 8
) -> Results:
    """Runs the race. batch: candidates simulated at a time on the first rung."""
    results = Results()
    if not candidates:
        return results
    allowed = rungs.places(len(candidates), len({candidate.kind for candidate in candidates}))
    first, second, last = allowed
    if (
        rungs.steps(allowed) >= len(candidates) * rungs.last
    ):  # so few that all of them are less work
        _simulate(simulate, range(len(candidates)), rungs.last, results)
        results.final = sorted(results.measured)
        return results
    _look(candidates, goal, simulate, rungs.first, first, batch, results)
    for steps, places, mistrust in ((rungs.second, second, 0.05), (rungs.last, last, 0.015)):
        chosen = _survivors(candidates, goal, results, places, mistrust)
        _simulate(simulate, chosen, steps, results)
        results.final = [i for i in chosen if i in results.measured]
    return results


def _simulate(simulate: Simulate, chosen: Sequence[int], steps: int, results: Results) -> None:
    outcomes = simulate([(i, steps) for i in chosen])
    for i, result in zip(chosen, outcomes, strict=True):
        if isinstance(result, Failure):
            results.failed[i] = result.problem
            results.measured.pop(i, None)
        else:
            results.measured[i] = result
            results.steps += result.steps


def _look(
    candidates: Sequence[Candidate],
    goal: Goal,
    simulate: Simulate,
    steps: int,
    places: int,
    batch: int,
    results: Results,
) -> None:
    """The first rung: one of each kind, then by promise, until no other could win."""
    kinds = sorted({candidate.kind for candidate in candidates})
    at_once = max(2, min(batch, places // 4))
    left = set(range(len(candidates)))
    while left and (room := places - len(candidates) + len(left)) > 0:
        promises = _promises(candidates, goal, results, _hopes(candidates, results, kinds))
        orders = [[int(i) for i in np.argsort(off, kind="stable") if i in left] for off in promises]
        tried = Counter(candidate.kind for i, candidate in enumerate(candidates) if i not in left)
        untried = [
            next(i for i in orders[0] if candidates[i].kind == kind)
            for kind in kinds
            if tried[kind] < min(2, places // len(kinds))
            and any(candidates[i].kind == kind for i in left)
        ]  # each is tried, lest an estimate condemn it
        if results.measured:
            promising = [
                [i for i in order if off[i] <= 1.0 + CLOSE]
                for order, off in zip(orders, promises, strict=True)
            ]
            in_turn = [i for pair in zip_longest(*promising) for i in pair if i is not None]
            chosen = list(dict.fromkeys([*untried, *in_turn]))[: min(at_once, room)]
        else:
            chosen = untried[:room] or orders[0][:room]
        if not chosen:
            return
        _simulate(simulate, chosen, steps, results)
        left.difference_update(chosen)


def _hopes(
    candidates: Sequence[Candidate], results: Results, kinds: Sequence[str]
) -> dict[str, float]:
    """By kind, the least factor on rollout time to hope for."""
    hopes = {}
    for kind in kinds:
        ratios = [
            candidates[i].factor(result)
            for i, result in results.measured.items()
            if candidates[i].kind == kind
        ]
        factors = [factor for factor in ratios if factor is not None]
        if len(factors) < _KNOWN:
            hopes[kind] = HOPE * (float(np.mean(factors)) if factors else 1.0)
        else:
            hopes[kind] = float(np.mean(factors) - 1.5 * np.std(factors, ddof=1))
    return hopes


def _run_costs(
    candidates: Sequence[Candidate], results: Results, hopes: Mapping[str, float]
) -> list[RunCost]:
    """Measured, else hoped for; infinite for failures."""
    costs = []
    for i, candidate in enumerate(candidates):
        if i in results.measured:
            costs.append(candidate.run_cost(results.measured[i]))
        elif i in results.failed:
            costs.append(RunCost(math.inf, math.inf, math.inf, math.inf))
        else:
            costs.append(candidate.estimate(max(hopes[candidate.kind], 0.05)))
    return costs


def _promises(
    candidates: Sequence[Candidate], goal: Goal, results: Results, hopes: Mapping[str, float]
) -> list[NDArray[np.float64]]:
    """Factors behind the best, the front, and the best that surely keeps all limits; at most 1 for
    a candidate that may be better."""
    run_costs = _run_costs(candidates, results, hopes)
    return [off(candidates, run_costs, goal, results) for off in (_off_best, _off_front, _off_sure)]


def _off_sure(
    candidates: Sequence[Candidate], run_costs: Sequence[RunCost], goal: Goal, results: Results
) -> NDArray[np.float64]:
    """Factors behind the best that surely keeps all limits; infinite for others. Unsimulated
    candidates count as their kind did."""
    sure: dict[str, bool] = {}
    for i, result in results.measured.items():
        kind = candidates[i].kind
        sure[kind] = sure.get(kind, True) and goal.sure(result)
    among = [
        i
        for i, candidate in enumerate(candidates)
        if (goal.sure(results.measured[i]) if i in results.measured else sure.get(candidate.kind))
    ]
    off = np.full(len(candidates), np.inf)
    if any(i in results.measured for i in among):
        part = Results(
            {n: results.measured[i] for n, i in enumerate(among) if i in results.measured}
        )
        off[among] = _off_best(
            [candidates[i] for i in among], [run_costs[i] for i in among], goal, part
        )
    return off


def _off_best(
    candidates: Sequence[Candidate], run_costs: Sequence[RunCost], goal: Goal, results: Results
) -> NDArray[np.float64]:
    violation = _violations(candidates, goal, results)
    excess = np.maximum(
        np.maximum(1.0, violation), [goal.excess(run_cost) for run_cost in run_costs]
    )
    value = np.array([goal.value(run_cost) for run_cost in run_costs])
    done = np.array(sorted(results.measured), dtype=int)
    allowed = done[excess[done] <= 1.0] if len(done) else done
    if len(allowed):
        return np.asarray(np.maximum(value / value[allowed].min(), excess))
    if len(done):  # nothing measured is within the limits: what may be, first, then the nearest
        return np.where(excess <= 1.0, 0.0, excess / excess[done].min())
    return np.where(excess <= 1.0, value / value.min(), excess)


def _off_front(
    candidates: Sequence[Candidate], run_costs: Sequence[RunCost], goal: Goal, results: Results
) -> NDArray[np.float64]:
    """Factors behind the front of candidates without violation."""
    hours = np.array([run_cost.hours for run_cost in run_costs])
    cost = np.array([run_cost.cost for run_cost in run_costs])
    out = _violations(candidates, goal, results) > 1.0
    hours[out] = cost[out] = np.inf
    return behind_front(hours, cost)


def _violations(
    candidates: Sequence[Candidate], goal: Goal, results: Results
) -> NDArray[np.float64]:
    """Violations; of unsimulated candidates the least of their kind, once two were simulated."""
    seen: dict[str, list[float]] = {}
    for i, result in results.measured.items():
        seen.setdefault(candidates[i].kind, []).append(goal.violation(0, result))
    violations = []
    for i, candidate in enumerate(candidates):
        limits_broken = goal.violation(candidate.gpus, results.measured.get(i))
        kind = seen.get(candidate.kind, [])
        if i not in results.measured and len(kind) > 1:
            limits_broken = max(limits_broken, min(kind))
        violations.append(limits_broken)
    return np.array(violations)


def _survivors(
    candidates: Sequence[Candidate], goal: Goal, results: Results, places: int, mistrust: float
) -> list[int]:
    """The next rung's candidates: those not clearly worse than the best, some that surely keep all
    limits, then those near the front. mistrust: relative error of a short simulation beyond its
    sampling error."""
    done = sorted(results.final or results.measured)
    if not done:
        return []
    mine = [candidates[i] for i in done]
    finished = Results({n: results.measured[i] for n, i in enumerate(done)})
    run_costs = [candidate.run_cost(finished.measured[n]) for n, candidate in enumerate(mine)]
    off = _off_best(mine, run_costs, goal, finished)
    behind = _off_front(mine, run_costs, goal, finished)
    order = sorted(range(len(done)), key=lambda n: (off[n], n))
    best = finished.measured[order[0]]
    close = [
        n
        for n in order
        if off[n]
        <= 1.0
        + (mistrust if finished.measured[n].settled else UNSETTLED)
        + DOUBT * _error_of_ratio(finished.measured[n], best)
    ]
    front = [n for n in order if behind[n] <= 1.0 + mistrust]
    half = close[: max(2, -(-places // 2))]
    sure = [n for n in order if goal.sure(finished.measured[n])][: max(1, places // 4)]
    chosen = list(
        dict.fromkeys([*half, *sure, *sorted(front, key=lambda n: (behind[n], off[n], n)), *close])
    )
    return sorted(done[n] for n in chosen[:places])


def _error_of_ratio(one: Measured, other: Measured) -> float:
    """Standard error of the ratio of two mean step times under common draws."""
    count = min(len(one.series_s), len(other.series_s))
    if count < 2 or one is other:
        return 0.0
    a, b = np.array(one.series_s[:count]), np.array(other.series_s[:count])
    spread = np.std(a / a.mean() - b / b.mean(), ddof=1)
    return float(spread / np.sqrt(count))
