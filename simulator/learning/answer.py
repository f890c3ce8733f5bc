"""From a short simulated run to accuracy over a whole one.

A simulated run has some 4 to 40 updates, and learning takes hundreds: the signals of the steady
updates (`simulator.results.steady`) are repeated, after those of the start-up, for as many updates
as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.signals import Signals, signals_of
from rollcast.simulator.results.steady import Steady, steady_of
from rollcast.simulator.spans import Run

FloatArray = NDArray[np.float64]

DRAWS = 512
MOST_UPDATES = 4096
FIRST_UPDATES = 64
"""Updates that are tried first; four times as many follow while too few draws reach the target."""
ENOUGH = 0.97  # of the draws, so that the upper end of a 90 % interval is known
SHOWN = 200  # updates without a target


@dataclass(frozen=True, eq=False)
class Progress:
    """Accuracy over a run's updates.

    accuracy: at the law's fitted parameters, before the first and after each update, shape
    (updates + 1,). drawn: the same by draw, shape (draws, updates + 1). seconds: since the start,
    shape (updates + 1,).
    """

    accuracy: FloatArray
    drawn: FloatArray
    seconds: FloatArray


def progress_of(
    run: Run, learning: Learning, seed: int, draws: int = DRAWS, *, level: bool = False
) -> Progress | str:
    """The progress of a finished run, or why the law abstains, in a sentence. seed: of the draws;
    the same parameters are drawn for every run. level: as if every token were trained on at once,
    without selection: synchronous training with the same batch."""
    signals, steady = signals_of(run, learning.minibatches), steady_of(run)
    if level:
        signals = on_policy(signals)
    reason = learning.law.domain_reason(
        at(signals, np.arange(steady.start, steady.stop)),
        learning.start,
        learning_rate_factor=learning.learning_rate_factor,
    )
    if reason is not None:
        return reason
    return _whole(learning, signals, steady, seed, draws)


def _whole(learning: Learning, signals: Signals, steady: Steady, seed: int, draws: int) -> Progress:
    """The progress over as many updates as bring enough draws to the target."""
    factor, start = learning.learning_rate_factor, learning.start
    updates = SHOWN if learning.target is None else FIRST_UPDATES
    while True:
        long = at(signals, repeated(steady, updates))
        drawn = learning.law.curves(
            long, start, learning_rate_factor=factor, draws=draws, seed=seed
        )
        reached = learning.target is None or np.mean(drawn.max(axis=1) >= learning.target) >= ENOUGH
        if reached or updates >= MOST_UPDATES:
            break
        updates *= 4
    accuracy = learning.law.best(long, start, learning_rate_factor=factor)
    return Progress(accuracy, drawn, seconds_over(signals.seconds, steady, updates))


def repeated(steady: Steady, updates: int) -> NDArray[np.int64]:
    """Numbers of the recorded updates that stand for each of ``updates``, shape (updates,): the
    start-up, then the steady ones in turn."""
    count = max(steady.stop - steady.start, 1)
    after = steady.start + np.arange(max(updates - steady.start, 0)) % count
    return np.concatenate((np.arange(min(steady.start, updates)), after))


def seconds_over(ends_s: FloatArray, steady: Steady, updates: int) -> FloatArray:
    """Seconds at the start and after each update, shape (updates + 1,): as recorded in the start-up
    (``ends_s``, shape (recorded,)), then a mean steady step each."""
    first = ends_s[: min(steady.start, updates)]
    begun = float(first[-1]) if len(first) else 0.0
    after = begun + steady.step_s * np.arange(1, updates - len(first) + 1)
    return np.concatenate(([0.0], first, after))


def at(signals: Signals, rows: NDArray[np.int64]) -> Signals:
    """The signals of these updates, in this order."""
    columns: dict[str, Any] = {
        field.name: value[rows]
        for field in fields(signals)
        if isinstance(value := getattr(signals, field.name), np.ndarray)
    }
    return replace(signals, **columns)


def on_policy(signals: Signals) -> Signals:
    """The signals of synchronous training on batches of as many rollouts."""
    zeros, ones = np.zeros_like(signals.age), np.ones_like(signals.kept)
    return replace(signals, age=zeros, age_spread=zeros, kept=ones, selection="none")


def updates_to(target: float, curves: FloatArray) -> FloatArray:
    """Updates after which each curve, of shape (..., updates + 1), first reaches the target, the
    last of them counted by its share (linear between updates), shape (...); infinite if never."""
    reached = curves >= target
    last = np.argmax(reached, axis=-1)[..., None]
    before, after = (np.take_along_axis(curves, k, -1)[..., 0] for k in (last - (last > 0), last))
    rise = np.where(after > before, after - before, 1.0)
    share = np.clip((target - before) / rise, 0.0, 1.0)
    updates = np.where(last[..., 0] > 0, last[..., 0] - 1 + share, 0.0)
    return np.where(reached.any(axis=-1), updates, np.inf)


def between(values: FloatArray, places: FloatArray) -> FloatArray:
    """Values of shape (..., n) at fractional places from 0 to n - 1, of shape (..., m)."""
    places = np.clip(places, 0, values.shape[-1] - 1)
    low = np.minimum(places.astype(np.int64), values.shape[-1] - 2)
    share = places - low
    first, second = (np.take_along_axis(values, low + k, -1) for k in (0, 1))
    return np.asarray((1 - share) * first + share * second)
