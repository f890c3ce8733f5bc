"""A level that wanders over a run: where it is at the end, and how far it may go from there.

A local level (Harvey, Forecasting, Structural Time Series Models, 1989, chapter 2): what is seen
is a level and noise, and the level is a random walk. How far it walks a step beside the noise is
known poorly from tens of steps, so that it is not estimated but weighed: each of a few ratios by
the likelihood of the series, from Kalman's filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.robust import FloatArray

_LEAST = 12
_FAR = 3.0
"""Times the spread about the level nearby, beyond which a value says no more of it."""
_MOST = 1.0
_RATIOS = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])
"""Of a step of the level to the noise, each as likely as the others before the series is seen."""


@dataclass(frozen=True)
class Wander:
    """shift: of the level at the end of a series of logs from its median. weights, at, at_sd,
    step_sd: of each ratio that may be so, how likely it is, where the level then is beside
    ``shift``, by how much that is less sure than a mean of the whole series, and by how much it
    moves a step; shape (ratios,)."""

    shift: float
    weights: FloatArray
    at: FloatArray
    at_sd: FloatArray
    step_sd: FloatArray

    @classmethod
    def still(cls) -> Wander:
        """A level that stays where it is."""
        return cls(0.0, np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1))

    @classmethod
    def of(cls, logs: FloatArray) -> Wander:
        """Of a series in order of time; none that is told for fewer than 12 values."""
        logs = logs[np.isfinite(logs)]
        if len(logs) < _LEAST:
            return cls.still()
        series = _tamed(logs)
        level, variance, noise, likelihood = _filtered(series)
        if not noise.any():
            return cls.still()
        weights = np.exp(likelihood - likelihood.max())
        weights /= weights.sum()
        at = level - float(np.median(logs))
        shift = float(weights @ at)
        beyond = np.maximum(variance - 1 / len(logs), 0.0)
        return cls(shift, weights, at - shift, noise * np.sqrt(beyond), noise * _RATIOS)

    def drawn(self, ahead: list[int], rng: np.random.Generator) -> FloatArray:
        """How far the log of the level is from ``shift`` at each of the steps ahead, (steps,)."""
        if not ahead or not (self.step_sd.any() or self.at_sd.any()):
            return np.zeros(len(ahead))
        one = int(rng.choice(len(self.weights), p=self.weights))
        start = self.at[one] + self.at_sd[one] * rng.standard_normal()
        walk = start + np.cumsum(self.step_sd[one] * rng.standard_normal(max(ahead)))
        return np.asarray(walk[np.array(ahead) - 1])

    def means(self, ahead: float, draws: int, rng: np.random.Generator) -> FloatArray:
        """How far the log of the level is from ``shift`` in the mean of the steps ahead, (draws,):
        the mean of a random walk has a third of the variance of its end."""
        one = rng.choice(len(self.weights), size=draws, p=self.weights)
        moved = np.minimum(self.step_sd[one] * math.sqrt(ahead / 3), _MOST)
        spread = np.hypot(self.at_sd[one], moved)
        return np.asarray(self.at[one] + spread * rng.standard_normal(draws))


def _tamed(logs: FloatArray) -> FloatArray:
    """The series with what lies far off its neighbours brought nearer."""
    parts = np.array_split(logs, max(len(logs) // _LEAST, 1))
    spread = float(np.median([_spread(part) for part in parts]))
    middle = np.concatenate([np.full(len(part), np.median(part)) for part in parts])
    return np.asarray(np.clip(logs, middle - _FAR * spread, middle + _FAR * spread))


def _filtered(series: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Of each ratio: the level at the end, its variance over that of the noise, the noise's
    standard deviation, and the log-likelihood with that concentrated out; shape (ratios,)."""
    moves = _RATIOS**2
    level, variance = np.full(len(moves), series[0]), np.ones(len(moves))
    squares, logs = np.zeros(len(moves)), np.zeros(len(moves))
    for value in series[1:].tolist():
        variance = variance + moves
        off, total = value - level, variance + 1.0
        squares += off**2 / total
        logs += np.log(total)
        level = level + variance / total * off
        variance = variance / total
    count = len(series) - 1
    noise = np.sqrt(squares / count)
    likelihood = -0.5 * (count * np.log(np.maximum(squares / count, 1e-24)) + logs)
    return level, variance, noise, likelihood


def _spread(values: FloatArray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
