"""The sampling error of a finite run: what other lengths and rewards of the same kind would have
made of it.

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

from rollcast.simulator.errors import RollcastError
from rollcast.simulator.results.steady import steady_of
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import Run, StepRecord
from rollcast.simulator.studies.bootstrap import BLOCK_STEPS, block_rows
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.redrawn import drift_of, reseeded
from rollcast.simulator.studies.short_runs import (
    FIGURES,
    LEAST_STEPS,
    Kind,
    rollouts_of,
    settled,
    sums,
)
from rollcast.simulator.workload.longest import WithOne, tail_of_groups
from rollcast.simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]
OnStep = Callable[[StepRecord], None] | None

DRAWS = 2048

LEAST_STEPS_SEEN = 8
"""Of which sampling error is told at least; a run of fewer is followed by some with other seeds."""

MANY_STEPS = 24
"""A run of fewer is, too, as far as the work goes that this may take."""

LEAST_ROLLOUTS = 3000
"""That short runs may take however short the run was: a fraction of a second."""

FEW = 0.1
"""A run whose sampling error moves its steps by more is said to be short."""

CLOSE = 0.02
"""As near to what very many steps would say a run of `SamplingError.enough` steps is, nine times
in ten."""

TOO_FEW = f"would be within {100 * CLOSE:.0f} %"
"""How a warning of too few steps ends."""

_MOST_DRAWN = 1000  # steps of a run; the sampling error of a longer one is next to nothing
_NEGLIGIBLE = 0.005  # of the mean step, by what no step met
_PROBED = 12  # steps of a run with a rare rollout put into it


@dataclass(frozen=True, slots=True)
class SamplingError:
    """ratios: of `FIGURES` over the run's own, by draw, shape (draws, figures). steps: that it is
    the sampling error of. spent: rollouts of the further runs that were made for it."""

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
    def warning(self) -> str:
        """That the steps are few for how much they differ; nothing where they are enough."""
        if self.off <= FEW:
            return ""
        return (
            f"{self.steps} steps are few for how much steps differ: sampling error alone moves "
            f"their mean by {100 * self.off:.0f} % either way; about {self.enough:,} {TOO_FEW}"
        )


def sampling_error_of(
    scenario: Scenario,
    run: Run,
    kind: Kind,
    on_step: OnStep = None,
    whole: int | None = None,
) -> SamplingError:
    """The sampling error of a finished run, or, if that is less certain, of ``whole`` steps of its
    scenario. kind: of runs of which steps are taken alike, for pairs."""
    records = run.steps
    steps = len(records)
    counted = min(whole or steps, steps, _MOST_DRAWN)
    # a long run leaves out as many as others, for pairs
    long = kind == "alone" and steps > 2 * LEAST_STEPS_SEEN
    mine = _rows(settled(records, "carried" if long else kind))
    if len(mine) > 2 and drift_of(scenario.raw):  # which is no sampling error
        place = np.arange(len(mine)) - (len(mine) - 1) / 2
        mine = mine - np.outer(place, place @ mine / (place @ place))
    budget = _Budget(scenario, kind, work_of_a_step(run), steps, on_step)
    of_run = _Seen.of(run, mine, 0)
    seen = [of_run, *_others(budget, len(mine))]
    pool = np.concatenate([one.rows for one in seen])
    count = len(pool)
    if count < 2:
        return SamplingError(np.ones((DRAWS, len(FIGURES))), counted, budget.spent)
    rng = np.random.default_rng(scenario.seed)
    if len(seen) > 1:  # not one run's steps in order: singly
        length = 1
        rows = rng.integers(count, size=(DRAWS, counted))
    else:
        length = min(BLOCK_STEPS, count)
        rows = block_rows(count, counted, DRAWS, rng)
    # Stretches of n steps vary among themselves by n / steps too little: their mean is the run's.
    wider = 1.0 / np.sqrt(max(1.0 - length / count, 0.25))
    centre = np.average([one.steady for one in seen], axis=0, weights=[e.steps for e in seen])
    means = centre + wider * (pool[rows].mean(axis=1) - pool.mean(axis=0))
    means += _unmet(budget, seen, counted, rng)
    ratios = np.divide(means, of_run.steady, out=np.ones_like(means), where=of_run.steady > 0)
    return SamplingError(np.asarray(np.maximum(ratios, 1e-3)), counted, budget.spent)


def work_of_a_step(run: Run) -> int:
    """In rollouts of a turn."""
    segments = len(run.segments["start_s"]) // max(len(run.steps), 1)
    return max(rollouts_of(run.steps), segments, 1)


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


class _Budget:
    """Makes further runs of a scenario: each kind of them as far as a quarter of the run's own work
    goes, or `LEAST_ROLLOUTS`."""

    def __init__(
        self, scenario: Scenario, kind: Kind, per_run: int, steps: int, on_step: OnStep
    ) -> None:
        self.scenario, self.kind, self._each, self._on_step = scenario, kind, per_run, on_step
        self.steps = max(LEAST_ROLLOUTS, per_run * steps // 4) // per_run
        self.spent = 0

    def run(self, scenario: Scenario, steps: int) -> Run:
        """Raises RollcastError where it cannot be made."""
        self.spent += steps * self._each
        return drive(scenario, scenario.world(), steps, self._on_step)


def _others(budget: _Budget, known: int) -> list[_Seen]:
    """A run with another seed, so long that many steps are known; none where it cannot be made."""
    least = LEAST_STEPS[budget.kind]
    steps = min(MANY_STEPS - known, budget.steps)
    if steps < least:
        return []
    try:
        made = budget.run(reseeded(budget.scenario, 1), steps)
    except RollcastError:
        return []
    return [_Seen.of(made, _rows(settled(made.steps, budget.kind)), 1)]


# What none of them met


def _unmet(
    budget: _Budget, seen: Sequence[_Seen], counted: int, rng: np.random.Generator
) -> FloatArray | float:
    """What groups whose longest rollout is longer than any that was met add to the mean of a step,
    shape (DRAWS, figures); 0 where that is next to nothing, or where lengths are not drawn."""
    scenario, of_run = budget.scenario, seen[0]
    met = 0
    for one in seen:
        workload = reseeded(scenario, one.number).workload if one.number else scenario.workload
        if not isinstance(workload, SyntheticWorkload) or not one.groups:
            return 0.0
        met = max(met, _longest(workload, one.groups, one.size))
    workload = scenario.workload
    assert isinstance(workload, SyntheticWorkload)
    share, mean = tail_of_groups(workload.lengths, of_run.size, met, workload.max_new_tokens)
    per_step = of_run.groups / of_run.whole
    rate = share * per_step
    if rate * (mean / met - 1.0) <= _NEGLIGIBLE:  # were a step as long as the longest that was met
        return 0.0
    added = _probed(budget, per_step, round(mean))
    if added is None:
        return 0.0
    return np.outer(rng.poisson(rate * counted, size=DRAWS) / counted, added)


def _longest(workload: SyntheticWorkload, groups: int, size: int) -> int:
    return max(max(workload.draw(group, size).new_tokens) for group in range(groups))


def _probed(budget: _Budget, per_step: float, tokens: int) -> FloatArray | None:
    """What one rollout of so many tokens adds to a run, by figure; None where it cannot be run."""
    scenario = budget.scenario
    steps = 1 if budget.kind == "alone" else min(_PROBED, budget.steps // 2)
    if steps < LEAST_STEPS[budget.kind]:
        return None
    put_in = replace(
        scenario, workload=WithOne(scenario.workload, round(per_step * (steps // 4)), tokens)
    )
    try:
        base, with_rollout = (
            sums(budget.run(variant, steps).steps) for variant in (scenario, put_in)
        )
    except RollcastError:
        return None
    return np.array([getattr(with_rollout, name) - getattr(base, name) for name in FIGURES])


def _rows(records: Sequence[StepRecord]) -> FloatArray:
    """Figures by step, shape (steps, figures)."""
    rows = [(r.step_s, r.rollout_s, r.train_s, float(r.generated_tokens)) for r in records]
    return np.array(rows).reshape(-1, len(FIGURES))
