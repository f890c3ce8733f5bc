"""The luck of a finite run: what other lengths and rewards of the same kind would have made of it.

Its own steps, drawn again in stretches, say how much steps differ; a run of few is joined by some
with other seeds, and then their mean counts, not its own. What none of them met is added: a rare
rollout that is longer than any of theirs. How often one comes is known from the distribution of
lengths, and what it does under the policy from a short run into which one is put.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from simulator.errors import RollcastError
from simulator.loop import run as run_loop
from simulator.results.steady import steady_of
from simulator.scenario.scenario import Scenario
from simulator.spans import Run, StepRecord
from simulator.studies.bootstrap import BLOCK_STEPS, block_rows
from simulator.studies.interval import ends
from simulator.studies.redrawn import drift_of, reseeded
from simulator.studies.short_runs import (
    FIGURES,
    LEAST_STEPS,
    Kind,
    rollouts_of,
    settled,
    sums,
)
from simulator.workload.longest import WithOne, tail_of_groups
from simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]
OnStep = Callable[[StepRecord], None] | None

DRAWS = 2048

LUCK_STEPS = 8
"""Of which luck is told at least; a run of fewer is followed by some with other seeds."""

MANY_STEPS = 24
"""A run of fewer is, too, as far as the work goes that this may take."""

LEAST_ROLLOUTS = 3000
"""That short runs may take however short the run was: a fraction of a second."""

FEW = 0.1
"""A run whose luck moves its steps by more is said to be short."""

CLOSE = 0.02
"""As near to what very many steps would say a run of `Luck.enough` steps is, nine times in ten."""

TOO_FEW = f"would be within {100 * CLOSE:.0f} %"
"""How a warning of too few steps ends."""

_MOST_DRAWN = 1000  # steps of a run; the luck of a longer one is next to nothing
_NEGLIGIBLE = 0.005  # of the mean step, by what no step met
_PROBED = 12  # steps of a run with a rare rollout put into it


@dataclass(frozen=True, slots=True)
class Luck:
    """ratios: of `FIGURES` over the run's own, by draw, shape (draws, figures). steps: that it is
    the luck of. spent: rollouts of the further runs that were made for it."""

    ratios: FloatArray = field(default_factory=lambda: np.ones((1, len(FIGURES))))
    steps: int = 0
    spent: int = 0

    @property
    def off(self) -> float:
        """Half of the 90 % interval of a mean step, as a share of its middle."""
        low, high = ends(self.ratios[:, 0]).tolist()
        return float((high - low) / (high + low))

    @property
    def enough(self) -> int:
        """About how many steps would be within `CLOSE`, to two digits."""
        exact = max(self.steps * (self.off / CLOSE) ** 2, 1.0)
        unit = 10.0 ** max(math.floor(math.log10(exact)) - 1, 0)
        return round(math.ceil(exact / unit) * unit)

    @property
    def said(self) -> str:
        """That the steps are few for how much they differ; nothing where they are enough."""
        if self.off <= FEW:
            return ""
        return (
            f"{self.steps} steps are few for how much steps differ: luck alone moves their mean by "
            f"{100 * self.off:.0f} % either way; about {self.enough:,} {TOO_FEW}"
        )


def luck_of(
    scenario: Scenario,
    run: Run,
    kind: Kind,
    on_step: OnStep = None,
    whole: int | None = None,
) -> Luck:
    """The luck of a finished run, or, if that is less certain, of ``whole`` steps of its scenario.
    kind: of runs of which steps are taken alike, for pairs."""
    records = run.steps
    steps = len(records)
    counted = min(whole or steps, steps, _MOST_DRAWN)
    long = kind == "alone" and steps > 2 * LUCK_STEPS  # leaves out as many as others, for pairs
    mine = _rows(settled(records, "carried" if long else kind))
    if len(mine) > 2 and drift_of(scenario.raw):  # which is no luck
        place = np.arange(len(mine)) - (len(mine) - 1) / 2
        mine = mine - np.outer(place, place @ mine / (place @ place))
    purse = _Purse(scenario, kind, work_of_a_step(run), steps, on_step)
    own = _Seen.of(run, mine, 0)
    seen = [own, *_others(purse, len(mine))]
    pool = np.concatenate([each.rows for each in seen])
    count = len(pool)
    if count < 2:
        return Luck(np.ones((DRAWS, len(FIGURES))), counted, purse.spent)
    rng = np.random.default_rng(scenario.seed)
    if len(seen) > 1:  # not one run's steps in order: singly
        length = 1
        rows = rng.integers(count, size=(DRAWS, counted))
    else:
        length = min(BLOCK_STEPS, count)
        rows = block_rows(count, counted, DRAWS, rng)
    # Stretches of n steps vary among themselves by n / steps too little: their mean is the run's.
    wider = 1.0 / np.sqrt(max(1.0 - length / count, 0.25))
    centre = np.average([each.steady for each in seen], axis=0, weights=[e.steps for e in seen])
    means = centre + wider * (pool[rows].mean(axis=1) - pool.mean(axis=0))
    means += _unmet(purse, seen, counted, rng)
    ratios = np.divide(means, own.steady, out=np.ones_like(means), where=own.steady > 0)
    return Luck(np.asarray(np.maximum(ratios, 1e-3)), counted, purse.spent)


def work_of_a_step(run: Run) -> int:
    """In rollouts of a turn."""
    stays = len(run.stays["start_s"]) // max(len(run.steps), 1)
    return max(rollouts_of(run.steps), stays, 1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Of a run. rows: figures of steps that may be drawn, shape (steps, figures). steady: mean
    figures of its steady steps, and steps: how many, of ``whole``. groups: that it launched, of
    ``size`` rollouts at most. number: of its seed, 0 for the scenario's own."""

    rows: FloatArray
    steady: FloatArray
    steps: int
    whole: int
    groups: int
    size: int
    number: int

    @classmethod
    def of(cls, run: Run, rows: FloatArray, number: int) -> _Seen:
        records, found = run.steps, steady_of(run)
        steady = _rows(records[found.start : found.stop])
        return cls(
            rows,
            steady.mean(axis=0),
            len(steady),
            len(records),
            sum(record.launched_groups for record in records),
            max(record.group_size for record in records),
            number,
        )


class _Purse:
    """Makes further runs of a scenario: each kind of them as far as a quarter of the run's own work
    goes, or `LEAST_ROLLOUTS`."""

    def __init__(
        self, scenario: Scenario, kind: Kind, each: int, steps: int, on_step: OnStep
    ) -> None:
        self.scenario, self.kind, self._each, self._on_step = scenario, kind, each, on_step
        self.steps = max(LEAST_ROLLOUTS, each * steps // 4) // each
        self.spent = 0

    def run(self, scenario: Scenario, steps: int) -> Run:
        """Raises RollcastError where it cannot be made."""
        self.spent += steps * self._each
        return run_loop(scenario.world(), scenario.policy, scenario.plan, steps, self._on_step)


def _others(purse: _Purse, known: int) -> list[_Seen]:
    """A run with another seed, so long that many steps are known; none where it cannot be made."""
    least = LEAST_STEPS[purse.kind]
    steps = min(MANY_STEPS - known, purse.steps)
    if steps < least:
        return []
    try:
        made = purse.run(reseeded(purse.scenario, 1), steps)
    except RollcastError:
        return []
    return [_Seen.of(made, _rows(settled(made.steps, purse.kind)), 1)]


# What none of them met


def _unmet(
    purse: _Purse, seen: Sequence[_Seen], counted: int, rng: np.random.Generator
) -> FloatArray | float:
    """What groups whose longest rollout is longer than any that was met add to the mean of a step,
    shape (DRAWS, figures); 0 where that is next to nothing, or where lengths are not drawn."""
    scenario, own = purse.scenario, seen[0]
    met = 0
    for each in seen:
        workload = reseeded(scenario, each.number).workload if each.number else scenario.workload
        if not isinstance(workload, SyntheticWorkload) or not each.groups:
            return 0.0
        met = max(met, _longest(workload, each.groups, each.size))
    workload = scenario.workload
    assert isinstance(workload, SyntheticWorkload)
    share, mean = tail_of_groups(workload.lengths, own.size, met, workload.max_new_tokens)
    per_step = own.groups / own.whole
    rate = share * per_step
    if rate * (mean / met - 1.0) <= _NEGLIGIBLE:  # were a step as long as the longest that was met
        return 0.0
    added = _probed(purse, per_step, round(mean))
    if added is None:
        return 0.0
    return np.outer(rng.poisson(rate * counted, size=DRAWS) / counted, added)


def _longest(workload: SyntheticWorkload, groups: int, size: int) -> int:
    return max(max(workload.draw(group, size).new_tokens) for group in range(groups))


def _probed(purse: _Purse, per_step: float, tokens: int) -> FloatArray | None:
    """What one rollout of so many tokens adds to a run, by figure; None where it cannot be run."""
    scenario = purse.scenario
    steps = 1 if purse.kind == "alone" else min(_PROBED, purse.steps // 2)
    if steps < LEAST_STEPS[purse.kind]:
        return None
    put_in = replace(
        scenario, workload=WithOne(scenario.workload, round(per_step * (steps // 4)), tokens)
    )
    try:
        base, found = (sums(purse.run(each, steps).steps) for each in (scenario, put_in))
    except RollcastError:
        return None
    return np.array([getattr(found, name) - getattr(base, name) for name in FIGURES])


def _rows(records: Sequence[StepRecord]) -> FloatArray:
    """Figures by step, shape (steps, figures)."""
    rows = [(r.step_s, r.rollout_s, r.train_s, float(r.generated_tokens)) for r in records]
    return np.array(rows).reshape(-1, len(FIGURES))
