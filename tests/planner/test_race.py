"""The race against synthetic choices, whose truth is known."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.planner.measure import Failure, Measured
from rollcast.simulator.planner.race import Candidate, Results, Rungs, _survivors, race
from rollcast.simulator.planner.whole_run import RunCost
from tests.laws import examples

RUNGS = Rungs()


@dataclass(frozen=True)
class Least:
    """Hours, with limits of hours and GPUs."""

    hours: float = np.inf
    gpus: float = np.inf
    staleness: float = np.inf

    def value(self, run_cost: RunCost) -> float:
        return run_cost.hours

    def excess(self, run_cost: RunCost) -> float:
        return 0.0 if self.hours == np.inf else run_cost.hours / self.hours

    def violation(self, gpus: int, measured: Measured | None) -> float:
        old = 0 if measured is None else measured.staleness_max
        return max(gpus / self.gpus, (1 + old) / (1 + self.staleness))

    def sure(self, measured: Measured) -> bool:
        return self.staleness == np.inf or measured.staleness_max == 0


def measured(series: Sequence[float], staleness: int = 0) -> Measured:
    return Measured(
        len(series),
        float(np.mean(series)),
        0,
        1.0,
        1.0,
        1.0,
        tuple(series),
        {"bound_by": "trainer"},
        0.0,
        1.0,
        0.0,
        staleness,
        1.0,
        (),
    )


class World:
    """Choices with true hours a step, estimates that are off by a factor of their kind and a
    little luck, and steps that share theirs."""

    def __init__(self, seed: int, count: int, noise: float = 0.05, kinds: int = 4) -> None:
        rng = np.random.default_rng(seed)
        self.true = np.exp(rng.normal(0, 0.5, count)) * 10
        self.gpus = rng.choice([8, 16, 32], count)
        self.kind = rng.integers(kinds, size=count)
        bias = np.exp(rng.normal(0, 0.15, kinds))
        self.estimate = self.true * bias[self.kind] * np.exp(rng.normal(0, 0.04, count))
        shared = np.exp(rng.normal(0, 0.2, 400))
        own = np.exp(rng.normal(0, noise, (count, 400)))
        self.steps = self.true[:, None] * shared * own
        self.asked: list[tuple[int, int]] = []
        self.failing: set[int] = set()
        self.stale = np.zeros(count, dtype=int)
        self.older = np.zeros(count, dtype=int)  # beyond `RUNGS.second` steps

    def candidates(self) -> list[Candidate]:
        def run_cost(i: int, hours: float) -> RunCost:
            return RunCost(1.0, float(hours), float(hours * self.gpus[i]), None)

        return [
            Candidate(
                str(self.kind[i]),
                int(self.gpus[i]),
                lambda factor, i=i: run_cost(i, factor * self.estimate[i]),
                lambda m, i=i: m.step_s / self.estimate[i],
                lambda m, i=i: run_cost(i, m.step_s),
            )
            for i in range(len(self.true))
        ]

    def simulate(self, wanted: Sequence[tuple[int, int]]) -> list[Measured | Failure]:
        self.asked += wanted
        return [
            Failure("no") if i in self.failing else measured(self.steps[i, :n], self.oldest(i, n))
            for i, n in wanted
        ]

    def oldest(self, i: int, steps: int) -> int:
        return int(self.stale[i] + self.older[i] * (steps > RUNGS.second))

    def exact(self, n: int = RUNGS.last) -> np.ndarray:
        return np.asarray(self.steps[:, :n].mean(axis=1))


@given(st.integers(0, 10**6), st.integers(30, 400))
@settings(max_examples=examples(40))
def test_it_finds_the_best_or_one_as_good_for_a_tenth_of_the_work(seed: int, count: int) -> None:
    world = World(seed, count)
    results = race(world.candidates(), Least(), world.simulate, RUNGS)
    best = min(results.final, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.1 * world.exact().min()
    assert results.steps == sum(n for _, n in world.asked)
    allowed = max(0.1 * count * RUNGS.last, 6 * 6 + 3 * 16 + 2 * 40)
    assert results.steps <= allowed


def test_most_of_the_time_it_is_the_best() -> None:
    ratios = []
    for seed in range(30):
        world = World(seed, 150)
        results = race(world.candidates(), Least(), world.simulate, RUNGS)
        best = min(results.final, key=lambda i: results.measured[i].step_s)
        ratios.append(world.exact()[best] / world.exact().min())
    assert np.mean(np.array(ratios) <= 1.02) > 0.93


def test_the_same_race_each_time() -> None:
    runs = []
    for _ in range(2):
        world = World(7, 120)
        race(world.candidates(), Least(), world.simulate, RUNGS)
        runs.append(world.asked)
    assert runs[0] == runs[1]


def test_limits_are_kept_where_they_can_be() -> None:
    world = World(3, 100)
    limit = float(np.quantile(world.exact()[world.gpus == 8], 0.4))
    goal = Least(hours=limit, gpus=8)
    results = race(world.candidates(), goal, world.simulate, RUNGS)
    allowed = [
        i for i in results.final if world.gpus[i] == 8 and results.measured[i].step_s <= limit
    ]
    best = min(allowed, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.05 * world.exact()[world.gpus == 8].min()


def test_staleness_is_known_only_by_simulation() -> None:
    world = World(5, 100)
    world.stale[np.argsort(world.true)[:10]] = 3
    results = race(world.candidates(), Least(staleness=1), world.simulate, RUNGS)
    allowed = [i for i in results.measured if world.stale[i] <= 1]
    best = min(allowed, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.1 * world.exact()[world.stale <= 1].min()


def test_a_kind_that_is_too_stale_is_left_alone() -> None:
    world = World(6, 200)
    world.estimate[world.kind == 1] /= 3
    world.true[world.kind == 1] /= 3
    world.steps[world.kind == 1] /= 3
    world.stale[world.kind == 1] = 4
    results = race(world.candidates(), Least(staleness=1), world.simulate, RUNGS)
    assert sum(world.kind[i] == 1 for i in results.measured) < 12
    best = min(results.final, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.05 * world.exact()[world.stale == 0].min()


def test_what_grows_too_old_in_the_end_has_kept_no_other_out() -> None:
    """Three kinds of four are faster, within the limit on two rungs and beyond it on the last."""
    for seed in range(20):
        world = World(seed, 200)
        fast = world.kind != 1
        for each in (world.true, world.estimate, world.steps):
            each[fast] *= 0.7
        world.stale[fast] = world.older[fast] = 1
        results = race(world.candidates(), Least(staleness=1), world.simulate, RUNGS)
        within = [i for i in results.final if results.measured[i].staleness_max <= 1]
        best = min(within, key=lambda i: results.measured[i].step_s)
        assert world.exact()[best] <= 1.03 * world.exact()[~fast].min()


def test_nothing_within_the_limits_leaves_the_nearest() -> None:
    world = World(4, 80)
    results = race(world.candidates(), Least(hours=0.01), world.simulate, RUNGS)
    best = min(results.measured, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.05 * world.exact().min()


def test_those_that_fail_are_left_behind() -> None:
    world = World(2, 60)
    world.failing = set(np.argsort(world.true)[:5].tolist())
    results = race(world.candidates(), Least(), world.simulate, RUNGS)
    assert set(results.failed) <= world.failing
    assert results.failed
    assert not set(results.failed) & set(results.measured)
    left = [i for i in range(60) if i not in world.failing]
    best = min(results.final, key=lambda i: results.measured[i].step_s)
    assert world.exact()[best] <= 1.05 * world.exact()[left].min()


def test_a_few_are_all_run_to_the_end() -> None:
    for count in (1, 2, 3):
        world = World(1, count)
        results = race(world.candidates(), Least(), world.simulate, RUNGS)
        assert results.final == list(range(count))
        assert results.steps == count * RUNGS.last


def test_what_is_off_by_its_own_luck_goes_on() -> None:
    """Of two that differ by 6 %, the worse goes on only where their steps do not share their luck,
    or where it was too short to settle."""
    shared = np.exp(np.random.default_rng(0).normal(0, 0.3, 16))
    own = np.exp(np.random.default_rng(1).normal(0, 0.3, 16))
    best = measured((10 * shared).tolist())
    own *= 10.6 / (10 * own).mean() * shared.mean() * 10
    candidates = World(0, 3).candidates()
    sure = measured((10.6 * shared).tolist())

    def survivors(other: Measured) -> list[int]:
        far = measured((40 * shared).tolist())
        results = Results({0: best, 1: other, 2: far}, final=[0, 1, 2])
        return _survivors([replace(e, gpus=8) for e in candidates], Least(), results, 3, 0.015)

    assert survivors(sure) == [0]
    assert survivors(replace(sure, settled=False)) == [0, 1]
    assert survivors(measured(own.tolist())) == [0, 1]


def test_nobody_comes() -> None:
    assert race([], Least(), lambda _: [], RUNGS) == Results()


@pytest.mark.parametrize("count", [1, 2, 5, 40, 400, 20_000])
def test_the_budget(count: int) -> None:
    first, second, last = RUNGS.places(count)
    assert 1 <= last <= count
    assert last <= second <= first or count < 6
    spent = first * RUNGS.first + second * RUNGS.second + last * RUNGS.last + RUNGS.last
    assert spent <= max(0.1 * count * RUNGS.last, 6 * 6 + 3 * 16 + 3 * 40)


@given(st.integers(1, 10**6), st.integers(1, 2000), st.integers(1, 12))
def test_larger_steps_are_simulated_fewer_times(rollouts: int, count: int, kinds: int) -> None:
    rungs, usual = Rungs.of(rollouts), Rungs()
    steps = rungs.first, rungs.second, rungs.last
    assert all(a <= b for a, b in zip(steps, (6, 16, 40), strict=True))
    assert all(a >= b for a, b in zip(steps, (4, 8, 12), strict=True))
    assert 8 <= rungs.brief <= usual.brief
    assert 2 <= rungs.tries(8) <= 8
    places = rungs.places(count, kinds)
    assert places[0] >= min(count, kinds)
    least = (max(6, kinds), 3, 2)
    if any(place > few for place, few in zip(places, least, strict=True)):
        assert rungs.steps(places) <= max(rungs.steps(least), rungs.most_steps)
    if rollouts <= 512:
        assert steps == (usual.first, usual.second, usual.last)
        assert rungs.brief == usual.second


def test_every_kind_is_tried_where_few_can_be_simulated() -> None:
    world = World(1, 120, kinds=9)
    race(world.candidates(), Least(), world.simulate, Rungs.of(8192))
    first = {int(world.kind[i]) for i, steps in world.asked if steps == 4}
    assert first == set(range(9))
