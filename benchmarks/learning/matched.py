"""The prior law at a paper's own speed.

The prior knows how a price in updates follows from a batch and the age of its tokens, but not how
fast a paper's model learns, and the price of age depends on it: an update that moves the policy
less lags less behind. So the speed of each draw is set to what takes the paper's *synchronous* run
from its first accuracy to its last in its number of updates; nothing else is taken from the paper,
and no other row of it is looked at.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.judge.learning import time_to
from rollcast.simulator.learning.law import PARAMETERS, Law
from rollcast.simulator.learning.progress import columns_of, progress
from rollcast.simulator.learning.signals import FloatArray, Signals

DRAWS, HALVINGS, LONGER = 100, 30, 4
_SLOWEST, _FASTEST = -14.0, 3.0  # log speeds


def alike(
    updates: int,
    rollouts: int,
    size: float,
    *,
    kept: float = 1.0,
    age: float = 0.0,
    minibatches: float = 1.0,
    selection: str = "none",
    filtered: bool = False,
) -> Signals:
    """A run whose updates are all alike. rollouts: trained on in an update; size: of a group, as
    sampled; age: of its tokens, in updates."""
    ones = np.ones(updates)
    return Signals(
        rollouts=np.full(updates, rollouts),
        groups=np.full(updates, max(round(rollouts / (size * kept)), 1)),
        group_size=size * ones,
        kept=kept * ones,
        age=age * ones,
        age_spread=0 * ones,
        minibatches=minibatches * ones,
        seconds=np.arange(1.0, updates + 1),
        selection=selection,
        filtered=filtered,
    )


@dataclass(frozen=True, eq=False)
class Matched:
    """A law whose draws all learn as fast as a synchronous run. base: one of its updates."""

    law: Law
    start: float
    end: float
    updates: int
    drawn: FloatArray

    def curves(self, run: Signals) -> FloatArray:
        """Accuracies before the first and after each update, (draws, updates + 1); the first draw
        is the fit."""
        return _curves(self.law, run, self.start, self.drawn)

    def after(self, update: Callable[[int], Signals]) -> tuple[float, float, float]:
        """Accuracy of another policy after as many updates: at the fit, and the ends of the 90 %
        interval. update: its signals for a number of updates."""
        last = self.curves(update(self.updates))[:, -1]
        low, high = np.quantile(last, [0.05, 0.95])
        return float(last[0]), float(low), float(high)

    def slower(self, update: Callable[[int], Signals]) -> tuple[float, float, float]:
        """Updates of another policy to the last accuracy over the synchronous run's, likewise
        (infinite: not within ``LONGER`` times as many)."""
        count = self.updates * LONGER
        done = np.arange(count + 1)
        times = np.array([time_to(done, c, self.end) for c in self.curves(update(count))])
        low, high = np.quantile(times, [0.05, 0.95], method="nearest")
        return float(times[0]) / self.updates, float(low) / self.updates, float(high) / self.updates


def match(
    law: Law, base: Callable[[int], Signals], start: float, end: float, updates: int
) -> Matched:
    """The law at the speed of a synchronous run from ``start`` to ``end`` in ``updates``."""
    fitted = np.array([[law.parameters[name] for name in PARAMETERS]])
    drawn = np.concatenate((fitted, law.draw(DRAWS - 1, 0)))
    signals = base(updates)
    low, high = np.full(DRAWS, _SLOWEST), np.full(DRAWS, _FASTEST)
    for _ in range(HALVINGS):
        drawn[:, 0] = (low + high) / 2
        short = _curves(law, signals, start, drawn)[:, -1] < end
        low, high = np.where(short, drawn[:, 0], low), np.where(short, high, drawn[:, 0])
    return Matched(law, start, end, updates, drawn)


def _curves(law: Law, run: Signals, start: float, drawn: FloatArray) -> FloatArray:
    log_speed, slowing, log_noise, power, log_staleness = drawn.T
    z = progress(
        columns_of([run], law.concentration),
        np.array([math.log(start / (1.0 - start))]),
        np.exp(log_speed),
        slowing,
        np.exp(log_noise),
        power,
        np.exp(log_staleness),
    )
    return np.asarray(1.0 / (1.0 + np.exp(-z)))
