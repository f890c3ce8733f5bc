"""From a short simulated run to accuracy over a whole one.

A simulated run has some 4 to 40 updates, and learning takes hundreds: the signals of the steady
updates (`simulator.results.steady`) are repeated, after those of the start-up, for as many updates
as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.plan import StepPlan, describe
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.progress import nodes
from rollcast.simulator.learning.signals import (
    NO_SELECTION,
    IntArray,
    Signals,
    signals_of,
    signals_of_steps,
)
from rollcast.simulator.results.steady import Steady, steady_of

FloatArray = NDArray[np.float64]

DRAWS = 512
MOST_UPDATES = 100_000
FIRST_UPDATES = 64
"""Updates that are tried first; `MOST_UPDATES` follow where too few draws reach the target."""
WIDE = 1.0  # standard deviation of a log speed whose slow draws need more than these
ENOUGH = 0.97  # of the draws, so that the upper end of a 90 % interval is known
SHOWN = 200  # updates without a target


class Recorded(NamedTuple):
    """The signals of a run's updates, and which of them are steady."""

    signals: Signals
    steady: Steady

    @classmethod
    def of(cls, run: Run, learning: Learning) -> Recorded:
        """Of a finished run."""
        return cls(signals_of(run, learning.minibatches), steady_of(run))

    def over(self, numbers: IntArray, learning: Learning) -> Signals:
        """The signals of these updates, from 0."""
        signals = at(self.signals, repeated(self.steady, numbers))
        return replace(signals, rates=learning.schedule.rates(numbers, learning.minibatches))


@dataclass(frozen=True, eq=False)
class Progress:
    """Accuracy over a run's updates, at some of them (`simulator.learning.progress.nodes`).

    accuracy: at the law's fitted parameters, before the first and after further updates, shape
    (nodes,). drawn: the same by draw, shape (draws, nodes). seconds: since the start, shape
    (nodes,). numbers: of updates then, shape (nodes,). drawn_seconds: as ``seconds`` by draw, shape
    (draws, nodes), where the time of an update follows accuracy; None: as ``seconds``. recorded:
    what it was made from, where that was a run.
    """

    accuracy: FloatArray
    drawn: FloatArray
    seconds: FloatArray
    numbers: FloatArray
    drawn_seconds: FloatArray | None = None
    recorded: Recorded | None = None

    @property
    def updates(self) -> int:
        """That were looked at."""
        return int(self.numbers[-1])

    def updates_to(self, target: float) -> tuple[float, FloatArray]:
        """Updates to a target at the law's parameters, and by draw, shape (draws,); infinite where
        it is never reached."""
        places = np.arange(len(self.numbers))
        own, drawn = (
            np.where(np.isfinite(at), np.interp(at, places, self.numbers), np.inf)
            for at in (first_at(target, self.accuracy), first_at(target, self.drawn))
        )
        return float(own), drawn

    def hours_after(self, updates: FloatArray | float) -> FloatArray:
        """Hours after so many updates at the law's parameters; infinite for infinitely many."""
        seconds = np.interp(updates, self.numbers, self.seconds)
        return np.where(np.isfinite(updates), seconds / 3600, np.inf)

    def drawn_hours_after(self, updates: FloatArray) -> FloatArray:
        """The same by draw, shape (draws,)."""
        if self.drawn_seconds is None:
            return self.hours_after(updates)
        known = np.isfinite(updates)
        places = np.interp(
            np.where(known, updates, 0.0), self.numbers, np.arange(len(self.numbers))
        )
        return np.where(known, between(self.drawn_seconds, places[:, None])[:, 0] / 3600, np.inf)

    def at_hours(self, grid: FloatArray, factors: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Accuracy at hours of a grid, shape (hours,), and by draw, shape (draws, hours). factors:
        on the draws' seconds, shape (draws,)."""
        places, seconds = np.arange(len(self.seconds)), 3600 * grid
        own = np.interp(seconds, self.seconds, places)[None]
        asked = seconds / factors[:, None]
        if self.drawn_seconds is None:
            drawn = np.interp(asked, self.seconds, places)
        else:
            rows = zip(asked, self.drawn_seconds, strict=True)
            drawn = np.array([np.interp(one, clock, places) for one, clock in rows])
        return between(self.accuracy[None], own)[0], between(self.drawn, drawn)


def progress_of(run: Run, learning: Learning, seed: int, draws: int = DRAWS) -> Progress | str:
    """The progress of a finished run, or why the law abstains, in a sentence. seed: of the draws;
    the same parameters are drawn for every run."""
    return _progress(Recorded.of(run, learning), learning, seed, draws)


def _progress(recorded: Recorded, learning: Learning, seed: int, draws: int) -> Progress | str:
    signals, steady = recorded
    law, start, target = learning.law, learning.start, learning.target
    reason = _abstains(at(signals, np.arange(steady.start, steady.stop)), learning)
    if reason is not None:
        return reason
    factor = learning.learning_rate_factor
    wide = law.covariance[0][0] > WIDE**2
    updates = SHOWN if target is None else MOST_UPDATES if wide else FIRST_UPDATES
    while True:
        numbers = nodes(updates)
        together = np.diff(numbers)
        # As they are in the middle of those that are taken together.
        long = recorded.over(numbers[:-1] + (together - 1) // 2, learning)
        accuracy, drawn = law.over(
            long, together, start, learning_rate_factor=factor, draws=draws, seed=seed
        )
        if target is None or updates >= MOST_UPDATES:
            break
        if accuracy.max() >= target and np.mean(drawn.max(axis=1) >= target) >= ENOUGH:
            break
        updates = MOST_UPDATES
    seconds = seconds_over(signals.seconds, steady, numbers)
    return Progress(accuracy, drawn, seconds, numbers.astype(float), recorded=recorded)


def _abstains(signals: Signals, learning: Learning) -> str | None:
    """Why the law says nothing of steady updates like these, in a sentence."""
    if learning.schedule.open_ended:
        return (
            f"The learning rate falls over the run (engine.trainer.schedule: "
            f"{learning.schedule.schedule}), whose length is not known; give "
            "engine.trainer.schedule_updates."
        )
    factor = learning.learning_rate_factor
    return learning.law.domain_reason(signals, learning.start, learning_rate_factor=factor)


@dataclass(frozen=True, slots=True)
class Needs:
    """Updates to the target.

    level: those of synchronous training that takes in as many rollouts. quality: its own over
    these. factors: draws of their time over that at the law's parameters; finite, as a draw that
    does not reach the target counts with all updates that were looked at. slower: time of a mean
    update up to the target over a simulated one's, where lengths react. reason: why level or
    quality is not known, in a sentence.
    """

    level: float | None
    quality: float | None
    factors: tuple[float, ...] = ()
    slower: float = 1.0
    reason: str = ""


def needs_of(run: Run, learning: Learning, seed: int, progress: Progress | str) -> Needs:
    """What a run with a target needs. seed: see `progress_of`. progress: of the run."""
    known = None if isinstance(progress, str) else progress.recorded
    signals, steady = known or Recorded.of(run, learning)
    draws = DRAWS if isinstance(progress, str) else 1  # only where there are no others
    level = _progress(Recorded(on_policy(signals), steady), learning, seed, draws)
    needs = _needs(progress, level, learning)
    if isinstance(progress, str) or progress.drawn_seconds is None or needs.quality is None:
        return needs
    assert needs.level is not None
    updates = needs.quality * needs.level
    as_simulated = seconds_over(signals.seconds, steady, progress.numbers.astype(np.int64))
    usual = float(np.interp(updates, progress.numbers, as_simulated)) / 3600
    return replace(needs, slower=float(progress.hours_after(updates)) / usual)


def planned_needs(plan: StepPlan, learning: Learning, draws: int = 1) -> Needs:
    """What training as planned needs if no token is older than its update."""
    own = _planned(plan, learning)
    level = _progress(Recorded(on_policy(own), _PLANNED), learning, 0, draws)
    return _needs(_progress(Recorded(own, _PLANNED), learning, 0, draws), level, learning)


def planned_curve(plan: StepPlan, learning: Learning, updates: int) -> FloatArray | str:
    """Accuracy over training as planned, at the law's parameters, shape (updates + 1,); or why the
    law abstains."""
    planned = _planned(plan, learning)
    reason = _abstains(planned, learning)
    if reason is not None:
        return reason
    signals = Recorded(planned, _PLANNED).over(np.arange(updates), learning)
    factor = learning.learning_rate_factor
    return learning.law.best(signals, learning.start, learning_rate_factor=factor)


_PLANNED = Steady(0, 1, 1.0, 0.0, 0.0, True)


def _planned(plan: StepPlan, learning: Learning) -> Signals:
    """The signals of one update as planned, whose tokens are of the newest weights."""
    batch = plan.batch
    kept = plan.select[-1].keep if plan.select else batch.group_size
    record = StepRecord(
        0,
        0.0,
        end_s=1.0,
        group_size=batch.group_size,
        trained_groups=batch.groups,
        taken_rollouts=batch.groups * batch.group_size,
        trained_rollouts=batch.groups * min(kept, batch.group_size),
    )
    return signals_of_steps([record], [{"plan": describe(plan)}], 0.0, learning.minibatches)


def _needs(own: Progress | str, level: Progress | str, learning: Learning) -> Needs:
    if isinstance(level, str):
        return Needs(None, None, reason=level)
    known = _times(level, learning)
    if isinstance(known, str):
        return Needs(None, None, reason=known)
    found = own if isinstance(own, str) else _times(own, learning)
    if isinstance(found, str):
        return Needs(known.updates, None, known.factors, reason=found)
    return Needs(known.updates, found.updates / known.updates, found.factors)


class _Times(NamedTuple):
    """Updates to the target, and draws of the time to it over the one at the law's parameters."""

    updates: float
    factors: tuple[float, ...]


def _times(progress: Progress, learning: Learning) -> _Times | str:
    """Of a run; or why they are not known."""
    assert learning.target is not None
    own, drawn = progress.updates_to(learning.target)
    note = unreached(learning, own, drawn, progress.updates)
    if note:
        return note
    # A draw that does not reach it takes all updates that were looked at, at least.
    drawn = np.minimum(drawn, progress.updates)
    factors = progress.drawn_hours_after(drawn) / progress.hours_after(own)
    return _Times(own, tuple(factors.tolist()))


def unreached(learning: Learning, own: float, drawn: FloatArray, within: int) -> str:
    """That no run that the law was fitted to reached the target, or that it takes more updates than
    are looked at, and the share of the draws that reach it; '' otherwise. own, drawn: updates to
    it, at the law's parameters and by draw. within: updates that were looked at."""
    target, most = learning.target, learning.law.domain.reached
    assert target is not None
    if target <= most and np.isfinite(own):
        return ""
    why = f"in what was measured (up to {most:.2g})" if target > most else f"in {within:,} updates"
    would = f"{np.mean(np.isfinite(drawn)):.0%} of the draws would within {within:,} updates"
    return f"Accuracy {target:g} is not reached {why}; by the law, {would}."


def repeated(steady: Steady, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the recorded updates that stand for these, from 0: the start-up's own, then the
    steady ones in turn."""
    count = max(steady.stop - steady.start, 1)
    after = steady.start + (numbers - steady.start) % count
    return np.where(numbers < steady.start, numbers, after)


def seconds_over(ends_s: FloatArray, steady: Steady, numbers: NDArray[np.int64]) -> FloatArray:
    """Seconds after so many updates, in the shape of ``numbers``: as recorded in the start-up
    (``ends_s``, shape (recorded,)), then a mean steady step each."""
    first = np.concatenate(([0.0], ends_s[: steady.start]))
    last = len(first) - 1
    after = first[-1] + steady.step_s * (numbers - last)
    return np.where(numbers <= last, first[np.minimum(numbers, last)], after)


def at(signals: Signals, rows: NDArray[np.int64]) -> Signals:
    """The signals of these updates, in this order."""
    columns: dict[str, Any] = {
        field.name: value[rows]
        for field in fields(signals)
        if isinstance(value := getattr(signals, field.name), np.ndarray)
    }
    return replace(signals, **columns)


def on_policy(signals: Signals) -> Signals:
    """The signals of synchronous training that takes in as many rollouts."""
    zeros, ones = np.zeros_like(signals.age), np.ones_like(signals.kept)
    kept = np.where(signals.kept > 0, signals.kept, 1.0)
    return replace(
        signals,
        rollouts=np.rint(signals.rollouts / kept).astype(np.int64),
        age=zeros,
        age_spread=zeros,
        kept=ones,
        selection=NO_SELECTION,
        filtered=False,
    )


def first_at(target: float, curves: FloatArray) -> FloatArray:
    """Places at which each curve, of shape (..., n), first reaches the target, from 0 to n - 1 and
    linear between two of them, shape (...); infinite if never."""
    reached = curves >= target
    last = np.argmax(reached, axis=-1)[..., None]
    before, after = (np.take_along_axis(curves, k, -1)[..., 0] for k in (last - (last > 0), last))
    rise = np.where(after > before, after - before, 1.0)
    share = np.clip((target - before) / rise, 0.0, 1.0)
    places = np.where(last[..., 0] > 0, last[..., 0] - 1 + share, 0.0)
    return np.where(reached.any(axis=-1), places, np.inf)


def between(values: FloatArray, places: FloatArray) -> FloatArray:
    """Values of shape (..., n) at fractional places from 0 to n - 1, of shape (..., m)."""
    places = np.clip(places, 0, values.shape[-1] - 1)
    low = np.minimum(places.astype(np.int64), values.shape[-1] - 2)
    share = places - low
    first, second = (np.take_along_axis(values, low + k, -1) for k in (0, 1))
    return np.asarray((1 - share) * first + share * second)
