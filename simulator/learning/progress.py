"""The law of progress itself: many runs, or many draws of one, advanced together.

The log-odds z of a right answer grow in an update by

    dz = speed * (steps * rate)^power * exp(-slowing * (z - z0)) * g * d
    g = S / sqrt(S^2 + noise / n),   d = 1 / sqrt(1 + drift^2)

- S: expected standard deviation of the rewards of a group that has right and wrong answers, which
  is the push of a group-relative advantage (`group_signal`).
- n: rollouts of such groups in an optimiser step; the others add neither signal nor noise.
- g: what is left of a step of an optimiser that divides by the gradient's root mean square; noise
  is that of one rollout's gradient in units of S (the noise scale of arXiv 1812.06162).
- steps: minibatches. rate: the learning rate over that of the fitted runs, in each update.
- slowing: what is easy is learned first. Below 0 it counts as 0.
- d: what clipping leaves of an update whose tokens are ``age`` updates old: drift = staleness *
  age * (an update's progress without age): the policy that samples may lag, but not move away.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.group_signal import LOG_ODDS, group_signal
from rollcast.simulator.learning.signals import IntArray, Signals

FloatArray = NDArray[np.float64]

_FIRST, _LAST = float(LOG_ODDS[0]), float(LOG_ODDS[-1])
_WIDTH = float(LOG_ODDS[1] - LOG_ODDS[0])
_FINE = 16
"""From twice as many updates on, this share of those so far is taken at once."""


@dataclass(frozen=True, eq=False)
class Columns:
    """What the law reads of runs, each (runs, updates): rollouts, age, minibatches, their number
    times the learning rate over the run's own (pushes); which row of ``signal`` and ``mixed``, each
    (rows, `LOG_ODDS`), is that of its groups. Beyond a run's own updates rollouts are 0."""

    rollouts: FloatArray
    age: FloatArray
    minibatches: FloatArray
    pushes: FloatArray
    row: IntArray
    signal: FloatArray
    mixed: FloatArray

    def times(self, count: int) -> Columns:
        """All runs so many times, one time after another."""
        by_run = ("rollouts", "age", "minibatches", "pushes", "row")
        return replace(self, **{name: np.tile(getattr(self, name), (count, 1)) for name in by_run})


def columns_of(runs: Sequence[Signals], concentration: float) -> Columns:
    """The columns of runs. concentration: of the success probability over prompts."""
    most = max(map(len, runs), default=0)
    rows: dict[tuple[int, int, str, bool], int] = {}
    blank = np.zeros((len(runs), most))
    rollouts, age, minibatches, pushes = blank.copy(), blank.copy(), blank + 1.0, blank + 1.0
    row = np.zeros((len(runs), most), dtype=np.int64)
    for i, run in enumerate(runs):
        own = len(run)
        rollouts[i, :own], age[i, :own] = run.rollouts, run.age
        minibatches[i, :own] = np.maximum(run.minibatches, 1.0)
        pushes[i, :own] = minibatches[i, :own] * (1.0 if run.rates is None else run.rates)
        sampled = np.maximum(np.rint(run.group_size), 1).astype(int)
        trained = np.clip(np.rint(sampled * run.kept), 1, sampled).astype(int)
        sizes, which = np.unique(np.stack((sampled, trained)), axis=1, return_inverse=True)
        places = [
            rows.setdefault((*pair, run.selection, run.filtered), len(rows))
            for pair in sizes.T.tolist()
        ]
        row[i, :own] = np.array(places, dtype=np.int64)[which.reshape(-1)]
    signal = np.zeros((max(len(rows), 1), len(LOG_ODDS)))
    mixed = np.ones_like(signal)
    for (size, kept, selection, filtered), at in rows.items():
        spread, share = group_signal(size, kept, selection, concentration)
        signal[at] = spread / np.maximum(share, 1e-9)
        mixed[at] = 1.0 if filtered else share
    return Columns(rollouts, age, minibatches, pushes, row, signal, mixed)


def progress(
    columns: Columns,
    start: FloatArray,
    speed: FloatArray,
    slowing: FloatArray,
    noise: FloatArray,
    power: FloatArray,
    staleness: FloatArray,
    together: IntArray | None = None,
) -> FloatArray:
    """Log-odds before the first and after each update, shape (n, updates + 1). start: log-odds, and
    the parameters: each of shape (n,) or (1,), for n runs, or n draws of one. speed: with the
    learning rate's part in it. together: how many updates each of the columns' stands for, which
    are alike, shape (updates,); 1 by default.
    """
    n = max(len(columns.rollouts), *map(len, (start, speed, slowing, noise, power, staleness)))
    z = np.broadcast_to(start, (n,)).astype(float)
    updates = columns.rollouts.shape[1]
    curve = np.empty((n, updates + 1))
    curve[:, 0] = z
    width = columns.signal.shape[1]
    tables = np.stack((columns.signal.ravel(), columns.mixed.ravel()))
    slowing = np.maximum(slowing, 0.0)
    plain: list[bool] = np.all(columns.pushes == 1.0, axis=0).tolist()
    fresh: list[bool] = np.all(columns.age == 0.0, axis=0).tolist()
    trained: list[bool] = np.all(columns.rollouts > 0.0, axis=0).tolist()
    rows = columns.row * width

    def gain(z: FloatArray, u: int) -> FloatArray:
        """What update ``u`` adds to log-odds z, each of shape (n,)."""
        place = np.minimum(np.maximum((z - _FIRST) / _WIDTH, 0.0), width - 1.000001)
        below = place.astype(np.int64)
        at, part = rows[:, u] + below, place - below
        signal, mixed = tables.take(at, 1) * (1.0 - part) + tables.take(at + 1, 1) * part
        steps, rollouts = columns.minibatches[:, u], columns.rollouts[:, u]
        noisy = noise * steps / np.maximum(rollouts * mixed, 1e-6)
        step = speed * np.exp(-slowing * np.maximum(z - start, 0.0))
        if not plain[u]:
            step = step * columns.pushes[:, u] ** power
        step = np.minimum(step * signal / np.sqrt(signal * signal + noisy), _LAST)
        if not fresh[u]:
            drift = staleness * columns.age[:, u] * step
            step = step / np.sqrt(1.0 + drift * drift)
        return np.asarray(step if trained[u] else np.where(rollouts > 0, step, 0.0))

    for u, count in enumerate([1] * updates if together is None else together.tolist()):
        added = gain(z, u)
        if count > 1:  # at the middle of them
            added = count * gain(np.minimum(z + count * added / 2.0, _LAST), u)
        z = np.minimum(z + added, _LAST)
        curve[:, u + 1] = z
    return curve


def nodes(updates: int) -> IntArray:
    """Numbers of updates, from 0 to ``updates``, between which a curve is as good as a line: all of
    them up to twice `_FINE`, then one in ever more."""
    numbers = [0]
    while numbers[-1] < updates:
        numbers.append(min(numbers[-1] + max(numbers[-1] // _FINE, 1), updates))
    return np.array(numbers, dtype=np.int64)
