"""The sampling error of a finite run: its spread over lengths and rewards of the same kind.

A block bootstrap of the run's own steps gives the spread; a short run is extended by steps with
another seed. The unobserved tail is added: the rate of rollouts longer than any observed, from the
length distribution, times the effect of one in a short run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.results.steady import steady_of
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.drawn import BLOCK_STEPS, block_rows, ends
from rollcast.simulator.studies.redrawn import drift_of, reseeded
from rollcast.simulator.studies.short_runs import (
    FIGURES,
    LEAST_STEPS,
    Kind,
    figures_of,
    rollouts_of,
    settled,
    sums,
)
from rollcast.simulator.values.words import counted_are
from rollcast.simulator.workload.base import DerivedWorkload, GroupDraw, Workload
from rollcast.simulator.workload.lengths import LengthModel
from rollcast.simulator.workload.synthetic import SyntheticWorkload

_POINTS = 200  # lengths, from where the tail begins to the cap
_NODES = np.arange(-8.6, 8.61, 0.2)  # of a standard normal: the trapezoid rule
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def tail_of_groups(lengths: LengthModel, size: int, beyond: int, cap: int) -> tuple[float, float]:
    """(probability that the longest of a prompt's ``size`` rollouts exceeds ``beyond`` tokens, its
    mean then); (0, ``beyond``) if none can."""
    if beyond >= cap:
        return 0.0, float(beyond)
    tokens = np.geomspace(max(beyond, 1), cap, _POINTS)
    log_tokens = np.log(tokens)
    shorter = np.zeros(_POINTS)
    for weight, component in zip(lengths.weights, lengths.components, strict=True):
        for z, node in zip(_NODES, _WEIGHTS, strict=True):
            shorter += weight * node * (1.0 - component.sf_given(z, log_tokens)) ** size
    if lengths.runaway > 0:
        shorter *= float(_WEIGHTS @ (1.0 - lengths.runaway_given(_NODES)) ** size)
    longer = np.clip(1.0 - shorter, 0.0, 1.0)
    if longer[0] <= 1e-12:
        return 0.0, float(beyond)
    area = float(np.diff(tokens) @ (longer[1:] + longer[:-1])) / 2
    return float(longer[0]), float(tokens[0]) + area / float(longer[0])


@dataclass(frozen=True)
class WithOne(DerivedWorkload):
    """A workload of which one group's first rollout has ``tokens`` tokens."""

    base: Workload
    group: int
    tokens: int

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        if group != self.group or attempt:
            return drawn
        return replace(drawn, new_tokens=[self.tokens, *drawn.new_tokens[1:]])


FloatArray = NDArray[np.float64]
OnStep = Callable[[StepRecord], None] | None

DRAWS = 2048

LEAST_STEPS_SEEN = 8  # steps for a sampling error
MANY_STEPS = 24  # runs of fewer steps are extended by another seed
LEAST_ROLLOUTS = 3000  # budget of short runs for the shortest run
FEW = 0.1  # relative error of a mean step that is worth a warning
CLOSE = 0.02
"""Relative error of a mean step after `SamplingError.enough` steps, in nine of ten runs."""

TOO_FEW = f"steps would bring it to {100 * CLOSE:.0f} %"  # end of the warning of too few steps
_MOST_DRAWN = 1000  # steps of a run; the sampling error of a longer one is next to nothing
_NEGLIGIBLE = 0.005  # of the mean step, by what no step met
_PROBED = 12  # steps of a run with a rare rollout put into it


@dataclass(frozen=True, slots=True)
class SamplingError:
    """ratios: `FIGURES` over the run's own, shape (draws, figures). steps: of the run. spent:
    rollouts of further runs."""

    ratios: FloatArray = field(default_factory=lambda: np.ones((1, len(FIGURES))))
    steps: int = 0
    spent: int = 0

    @property
    def share(self) -> float:
        """Half the 90 % interval of a mean step over its middle."""
        low, high = ends(self.ratios[:, 0]).tolist()
        return float((high - low) / (high + low))

    @property
    def enough(self) -> int:
        """Steps for an error of `CLOSE`, to two digits."""
        exact = max(self.steps * (self.share / CLOSE) ** 2, 1.0)
        unit = 10.0 ** max(math.floor(math.log10(exact)) - 1, 0)
        return round(math.ceil(exact / unit) * unit)

    @property
    def warning(self) -> str:
        """The warning of too few steps; empty for enough."""
        if self.share <= FEW:
            return ""
        return (
            f"{counted_are(self.steps, 'step')} few, because steps differ: the sampling error of "
            f"their mean is {100 * self.share:.0f} %; about {self.enough:,} {TOO_FEW}"
        )


def sampling_error_of(
    scenario: Scenario,
    run: Run,
    kind: Kind,
    on_step: OnStep = None,
    whole: int | None = None,
    figures: FloatArray | None = None,
    again: bool = True,
) -> SamplingError:
    """The sampling error of a finished run, or of ``whole`` steps if fewer. kind: of the runs that
    are drawn alike. figures: `figures_of` the run, if known. again: whether others like it can be
    made; without, it is of its own steps, and of what they met."""
    figures = figures_of(run) if figures is None else figures
    steps = len(figures)
    counted = min(whole or steps, steps, _MOST_DRAWN)
    # a long run leaves out as many as others, for pairs
    long = kind == "alone" and steps > 2 * LEAST_STEPS_SEEN
    mine = settled(figures, "carried" if long else kind)
    reacts = scenario.learning is not None and scenario.learning.lengths
    if len(mine) > 2 and (reacts or drift_of(scenario.raw)):  # which is no sampling error
        place = np.arange(len(mine)) - (len(mine) - 1) / 2
        mine = mine - np.outer(place, place @ mine / (place @ place))
    budget = _Budget(scenario, kind, work_of_a_step(run), steps, on_step)
    of_run = _Seen.of(run, figures, mine, 0)
    seen = [of_run, *(_others(budget, len(mine)) if again else ())]
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
    if again:
        means += _unmet(budget, seen, counted, rng)
    ratios = np.divide(means, of_run.steady, out=np.ones_like(means), where=of_run.steady > 0)
    return SamplingError(np.asarray(np.maximum(ratios, 1e-3)), counted, budget.spent)


def work_of_a_step(run: Run) -> int:
    """In rollouts of a turn."""
    segments = len(run.segments["start_s"]) // max(len(run.steps), 1)
    return max(rollouts_of(run.steps), segments, 1)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A run's steps. rows: figures of drawable steps, shape (steps, figures). steady: mean figures
    of its ``steps`` steady steps, of ``whole``. groups: launched, of up to ``size`` rollouts.
    number: of its seed."""

    rows: FloatArray
    steady: FloatArray
    steps: int
    whole: int
    groups: int
    size: int
    number: int

    @classmethod
    def of(cls, run: Run, figures: FloatArray, rows: FloatArray, number: int) -> _Seen:
        records, found = run.steps, steady_of(run)
        steady = figures[found.start : found.stop]
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
    """Makes further runs; each kind costs up to a quarter of the run, or `LEAST_ROLLOUTS`."""

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
    """A run with another seed; none if it cannot be made."""
    least = LEAST_STEPS[budget.kind]
    steps = min(MANY_STEPS - known, budget.steps)
    if steps < least:
        return []
    try:
        made = budget.run(reseeded(budget.scenario, 1), steps)
    except RollcastError:
        return []
    figures = figures_of(made)
    return [_Seen.of(made, figures, settled(figures, budget.kind), 1)]


# What none of them met


def _unmet(
    budget: _Budget, seen: Sequence[_Seen], counted: int, rng: np.random.Generator
) -> FloatArray | float:
    """What groups longer than all observed add to a mean step, shape (DRAWS, figures); 0 if
    negligible or if lengths are not drawn."""
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
    """What one rollout of ``tokens`` adds to a run, by figure; None if it cannot run."""
    scenario = budget.scenario
    steps = 1 if budget.kind == "alone" else min(_PROBED, budget.steps // 2)
    if steps < LEAST_STEPS[budget.kind]:
        return None
    put_in = replace(
        scenario, workload=WithOne(scenario.workload, round(per_step * (steps // 4)), tokens)
    )
    try:
        base, with_rollout = (
            sums(figures_of(budget.run(variant, steps))) for variant in (scenario, put_in)
        )
    except RollcastError:
        return None
    return np.array([getattr(with_rollout, name) - getattr(base, name) for name in FIGURES])
