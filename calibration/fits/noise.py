"""What no count of work explains: machines that are slower in one run, and in some steps on end.

`MachineNoise`, of several calibrated runs: a level for each run, and stretches of consecutive steps
drawn again. `RandomWalk`, of one run that goes on: a level that walks at random, seen with noise
(Harvey, Forecasting, Structural Time Series Models, 1989, chapter 2). Few steps tell poorly how far
the level walks, so a few ratios are weighed by their likelihood, from Kalman's filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.robust import FloatArray, spread
from rollcast.simulator.studies.drawn import block_rows

_MOST_T = 6.0
_LEAST_SERIES = 12
_LEAST_SLOPE = 4
_FAR = 3.0
"""Times the spread about the level nearby, beyond which a value says no more of it."""
_MOST_MOVED = 1.0
_RATIOS = np.array([0.0, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64])
"""Of a step of the level to the noise, each as likely as the others before the series is seen."""


def stretches(ratios: FloatArray, steps: int, draws: int, rng: np.random.Generator) -> FloatArray:
    """Stretches of consecutive rows of a run, drawn again; shape (draws, steps, ...)."""
    return np.asarray(ratios[block_rows(len(ratios), steps, draws, rng)])


def run_levels(ratios: FloatArray) -> FloatArray:
    """The median step's ratios of each run: rollout, update and the rest; shape (runs, 3). ratios:
    the same of each step, and the number of its run; shape (steps, 4).

    A machine is slower or faster all through some runs. A forecast is of a further run, so its
    costs are those of the mean level (of the logarithms), whichever run had more steps.
    """
    owner = ratios[:, 3]
    levels = [np.median(ratios[owner == run, :3], axis=0) for run in np.unique(owner)]
    return np.maximum(levels, 1e-6)


@dataclass(frozen=True)
class MachineNoise:
    """Measured over expected times of the steps of some runs. levels: of each run, shape (runs, 3).
    runs: its steps relative to that, each of shape (steps, 3): rollout, update and rest."""

    levels: FloatArray
    runs: list[FloatArray]

    @classmethod
    def of(cls, ratios: FloatArray) -> MachineNoise:
        """ratios: as `run_levels` takes them."""
        levels, owner = run_levels(ratios), ratios[:, 3]
        runs = [
            ratios[owner == run, :3] / level
            for run, level in zip(np.unique(owner), levels, strict=True)
        ]
        return cls(levels, runs)

    def drawn(self, steps: int, rng: np.random.Generator) -> FloatArray:
        """Ratios of steps of one run at a further run's level, shape (steps, 3)."""
        run = self.runs[int(rng.integers(len(self.runs)))]
        [rows] = stretches(run, steps, 1, rng)
        return np.asarray(rows * self._further_level(rng))

    def _further_level(self, rng: np.random.Generator) -> FloatArray:
        """The level of a run that was not measured, shape (3,): from the predictive distribution of
        a normal (of the logarithms) of which as many runs were seen, Student's t. A machine that is
        slow is slow in everything, so one draw serves all three. One run says nothing of others."""
        count = len(self.levels)
        if count == 1:
            return np.asarray(self.levels[0])
        logs = np.log(self.levels)
        sd = logs.std(axis=0, ddof=1) * np.sqrt(1.0 + 1.0 / count)
        t = np.clip(rng.standard_t(count - 1), -_MOST_T, _MOST_T)
        return np.asarray(np.exp(logs.mean(axis=0) + t * sd))


@dataclass(frozen=True)
class RandomWalk:
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
    def still(cls) -> RandomWalk:
        """A level that stays where it is."""
        return cls(0.0, np.ones(1), np.zeros(1), np.zeros(1), np.zeros(1))

    @classmethod
    def of(cls, logs: FloatArray) -> RandomWalk:
        """Of a series in order of time; none that is told for fewer than 12 values."""
        logs = logs[np.isfinite(logs)]
        if len(logs) < _LEAST_SERIES:
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
        moved = np.minimum(self.step_sd[one] * math.sqrt(ahead / 3), _MOST_MOVED)
        spread = np.hypot(self.at_sd[one], moved)
        return np.asarray(self.at[one] + spread * rng.standard_normal(draws))


def going_on(logs: FloatArray, slope: float) -> tuple[float, float]:
    """The change a step of a series with this slope that its later half still shows, and how sure
    any slope of that half is (standard deviation).

    The change is the smaller of both, 0 where the later half does not have it beyond twice its
    error, its neighbours erring together (AR(1); Gardner and McKenzie, Management Science 31, 1985,
    on trends that fade). Of a few values the whole series counts; fewer than four tell no error.
    """
    places = np.flatnonzero(np.isfinite(logs))
    later = places[places >= len(logs) // 2]
    enough = len(later) >= _LEAST_SERIES
    later = later if enough else places
    if len(later) < _LEAST_SLOPE:
        return 0.0, 0.0
    x, y = later - later.mean(), logs[later] - logs[later].mean()
    recent = float(x @ y / (x @ x))
    left = y - recent * x
    together = float(np.clip(left[1:] @ left[:-1] / max(left @ left, 1e-18), 0.0, 0.95))
    error = math.sqrt(float(left @ left) / (len(later) - 2) / float(x @ x))
    error *= math.sqrt((1 + together) / (1 - together))
    if not slope or not enough or recent * slope <= 0 or abs(recent) < 2 * error:
        return 0.0, error
    return math.copysign(min(abs(recent), abs(slope)), slope), error


def _tamed(logs: FloatArray) -> FloatArray:
    """The series with what lies far off its neighbours brought nearer."""
    parts = np.array_split(logs, max(len(logs) // _LEAST_SERIES, 1))
    sd = float(np.median([spread(part) for part in parts]))
    middle = np.concatenate([np.full(len(part), np.median(part)) for part in parts])
    return np.asarray(np.clip(logs, middle - _FAR * sd, middle + _FAR * sd))


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
