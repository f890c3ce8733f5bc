"""Lognormals with random effects, fitted by maximum likelihood to what may be cut off: seconds of
answers and tokens of turns (nested effects of prompt, rollout and time), and numbers of turns.

What ended is jointly normal in the log, given which an effect of the prompt is normal; only what
was cut off needs a quadrature, over that effect (Gauss-Hermite). A number of n turns stands for a
real number in (n - 1, n]; as turns are few, the likelihood is that of the interval and not of its
middle, summed over a grid of the prompt's effect. Standard errors are from the curvature at the
maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.robust import FloatArray


def standard_errors(
    negative_log_likelihood: Callable[..., float],
    names: Sequence[str],
    at: Sequence[float],
    steps: Sequence[float],
    free: Sequence[int],
) -> dict[str, float]:
    """By name, of the parameters numbered ``free``, by central differences of ``steps``; those that
    the data say nothing of have none. The first parameter is the log of a median, and its error
    that of the median (delta method)."""
    here = np.array(at)

    def moved(*shifts: tuple[int, float]) -> float:
        theta = here.copy()
        for i, sign in shifts:
            theta[i] += sign * steps[i]
        return negative_log_likelihood(*(float(value) for value in theta))

    hessian: FloatArray = np.empty((len(free), len(free)))
    for row, i in enumerate(free):
        for column, j in enumerate(free):
            hessian[row, column] = (
                moved((i, 1), (j, 1))
                - moved((i, 1), (j, -1))
                - moved((i, -1), (j, 1))
                + moved((i, -1), (j, -1))
            ) / (4.0 * steps[i] * steps[j])
    variances = np.diag(np.linalg.pinv(hessian))
    errors = {names[i]: math.sqrt(v) for i, v in zip(free, variances, strict=True) if v > 0.0}
    if names[0] in errors:
        errors[names[0]] *= math.exp(at[0])
    return errors


IntArray = NDArray[np.int64]

_SMALLEST_SD, _LARGEST_SD = 1e-3, 20.0
_LOG_2PI = math.log(2.0 * math.pi)
_NODES = 16


@dataclass(frozen=True, slots=True)
class Nested:
    """Logs of what was measured. value: of each time that ended, of rollout ``rollout``; reached:
    of each that was cut off, at most one of a rollout, of rollout ``cut_rollout``. group: of each
    rollout, shape (rollouts,)."""

    group: IntArray
    value: FloatArray
    rollout: IntArray
    reached: FloatArray
    cut_rollout: IntArray


@dataclass(frozen=True, slots=True)
class NestedFit:
    """median and the spreads of the log between prompts, between the rollouts of one, and from one
    time to the next. standard_errors: of those that the data do not hold at 0. count: times that
    ended; cut: that were cut off."""

    median: float
    between_sd: float
    within_sd: float
    sd: float
    standard_errors: dict[str, float]
    count: int
    cut: int


def fit_nested(data: Nested) -> NestedFit:
    """The most likely model. Raises ValueError for fewer than two times that ended."""
    from scipy.optimize import minimize

    if len(data.value) < 2:
        raise ValueError("fewer than two ended by themselves")
    sums = _Sums.of(data)
    spread = max(float(np.std(data.value)), 1e-2)
    low, high = math.log(_SMALLEST_SD), math.log(_LARGEST_SD)

    def objective(theta: FloatArray) -> float:
        mu, *logs = theta.tolist()
        return sums.negative_log_likelihood(mu, *(math.exp(log_sd) for log_sd in logs))

    centre = float(np.mean(data.value))
    start = [centre, *np.log(spread * np.array((0.4, 0.4, 0.8)))]
    bounds = [(None, None), *[(low, high)] * 3]
    best = minimize(objective, start, method="L-BFGS-B", bounds=bounds)
    mu, *spreads = float(best.x[0]), *(math.exp(log_sd) for log_sd in best.x[1:])
    names = ("median", "between_sd", "within_sd", "sd")
    at = [mu, *spreads]
    free = [0, *(i for i in (1, 2, 3) if at[i] > 10 * _SMALLEST_SD)]
    steps = [1e-3, *(1e-2 * spread for spread in spreads)]
    errors = standard_errors(sums.negative_log_likelihood, names, at, steps, free)
    between_sd, within_sd, sd = (
        0.0 if spread <= 1.01 * _SMALLEST_SD else spread for spread in spreads
    )
    count, cut = len(data.value), len(data.reached)
    return NestedFit(math.exp(mu), between_sd, within_sd, sd, errors, count, cut)


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sufficient statistics: count, mean and centred squares of each rollout's ended times."""

    data: Nested
    groups: int
    n: FloatArray
    mean: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, data: Nested) -> _Sums:
        rollouts = len(data.group)
        n = np.bincount(data.rollout, minlength=rollouts).astype(float)
        total = np.bincount(data.rollout, data.value, minlength=rollouts)
        mean = total / np.maximum(n, 1.0)
        off = (data.value - mean[data.rollout]) ** 2
        squares = np.bincount(data.rollout, off, minlength=rollouts).astype(float)
        return cls(data, int(data.group.max()) + 1, n, mean, squares)

    def negative_log_likelihood(
        self, mu: float, between_sd: float, within_sd: float, sd: float
    ) -> float:
        """Minus the log-likelihood, additive constants included."""
        n, group = self.n, self.data.group
        some = n > 0
        spread = sd**2 + n * within_sd**2
        within = (
            n * _LOG_2PI + (n - 1.0) * 2.0 * math.log(sd) + np.log(spread) + self.squares / sd**2
        )
        total = -0.5 * float(within[some].sum())
        weight, off = n / spread, self.mean - mu
        precision = np.bincount(group, weight, minlength=self.groups)
        pull = np.bincount(group, weight * off, minlength=self.groups)
        total -= 0.5 * float((weight * off**2).sum())
        posterior = precision + 1.0 / between_sd**2
        total += 0.5 * float((pull**2 / posterior).sum())
        total -= 0.5 * float(np.log1p(precision * between_sd**2).sum())
        if len(self.data.reached):
            total += self._cut_off(mu, within_sd, sd, pull / posterior, 1.0 / np.sqrt(posterior))
        return -total

    def _cut_off(
        self, mu: float, within_sd: float, sd: float, effect: FloatArray, effect_sd: FloatArray
    ) -> float:
        """Log-probability of the times that were cut off, given those that ended."""
        from scipy.special import ndtr

        nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        rollout, reached = self.data.cut_rollout, self.data.reached
        group = self.data.group[rollout]
        n, spread = self.n[rollout], sd**2 + self.n[rollout] * within_sd**2
        prompt = mu + effect[group, None] + effect_sd[group, None] * nodes
        shrunk = (n * within_sd**2 / spread)[:, None]
        middle = prompt + shrunk * np.where(n > 0, self.mean[rollout], 0.0)[:, None]
        middle = middle - shrunk * prompt
        scale = np.sqrt(sd**2 + within_sd**2 * sd**2 / spread)[:, None]
        logs = np.zeros((self.groups, len(nodes)))
        chance = ndtr((middle - reached[:, None]) / scale)
        np.add.at(logs, group, np.log(np.maximum(chance, 1e-300)))
        logs = logs[np.unique(group)] + np.log(weights / weights.sum())
        return float(np.logaddexp.reduce(logs, axis=1).sum())


_SMALLEST_COUNT_SD = 1e-2
_EFFECTS = np.linspace(-5.0, 5.0, 161)


@dataclass(frozen=True, slots=True)
class CountFit:
    """Median number of turns of a prompt, spreads of its log between and within prompts, share that
    never ends; standard errors of what the data do not hold at its bound."""

    median: float
    between_sd: float
    within_sd: float
    runaway: float
    standard_errors: dict[str, float]


def fit_counts(
    group: NDArray[np.int64], turns: NDArray[np.int64], whole: NDArray[np.bool_], cap: int
) -> CountFit:
    """The most likely model. Arrays of shape (rollouts,). turns: of what ended, where ``whole``;
    else more than so many would have come. cap: at which a rollout is ended, whose number is then
    no end. Raises ValueError where fewer than two ended."""
    from scipy.optimize import minimize

    if whole.sum() < 2:
        raise ValueError("fewer than two rollouts came to their own end")
    counted = _Counted.of(group, turns, whole)
    capped = float((~whole & (turns >= cap)).mean())
    logs = np.log(np.maximum(turns, 1) - 0.5)
    spread = max(float(np.std(logs)), 0.1)

    def objective(theta: FloatArray) -> float:
        mu, between, within, share = theta.tolist()
        return counted.negative_log_likelihood(mu, math.exp(between), math.exp(within), share)

    low, high = math.log(_SMALLEST_COUNT_SD), math.log(10.0)
    bounds = [(None, None), (low, high), (low, high), (0.0, min(capped, 0.99))]
    halves = math.log(spread * 0.7)
    starts = [
        [float(logs.mean()), halves, halves, capped * part]
        for part in ((0.05, 0.9) if capped else (0.0,))
    ]
    fits = [minimize(objective, start, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    mu, between, within, runaway = best.x.tolist()
    at = [mu, math.exp(between), math.exp(within), runaway]
    free = [0, *(i for i in (1, 2) if at[i] > 3 * _SMALLEST_COUNT_SD)]
    free += [3] if runaway > 1e-3 * max(capped, 1e-9) and runaway > 0 else []
    steps = [1e-3, 1e-2 * at[1], 1e-2 * at[2], 1e-2 * runaway]
    names = ("median", "between_sd", "within_sd", "runaway")
    errors = standard_errors(counted.negative_log_likelihood, names, at, steps, free)
    between_sd, within_sd = (0.0 if sd <= 1.01 * _SMALLEST_COUNT_SD else sd for sd in at[1:3])
    return CountFit(math.exp(mu), between_sd, within_sd, runaway, errors)


@dataclass(frozen=True, slots=True)
class _Counted:
    """How many rollouts of each group had each number of turns. turns, whole: the different
    numbers, shape (numbers,). often: shape (groups, numbers)."""

    turns: FloatArray
    whole: NDArray[np.bool_]
    often: FloatArray

    @classmethod
    def of(
        cls, group: NDArray[np.int64], turns: NDArray[np.int64], whole: NDArray[np.bool_]
    ) -> _Counted:
        kinds, number = np.unique(2 * turns + whole, return_inverse=True)
        often = np.zeros((int(group.max()) + 1, len(kinds)))
        np.add.at(often, (group, number), 1.0)
        return cls((kinds // 2).astype(float), kinds % 2 == 1, often)

    def negative_log_likelihood(
        self, mu: float, between_sd: float, within_sd: float, runaway: float
    ) -> float:
        """Minus the log-likelihood."""
        from scipy.special import ndtr

        middle = mu + between_sd * _EFFECTS[:, None]
        with np.errstate(divide="ignore"):
            ends, starts = np.log(self.turns), np.log(np.maximum(self.turns - 1.0, 0.0))
        beyond = ndtr((middle - ends) / within_sd)
        inside = ndtr((middle - starts) / within_sd) - beyond
        chance = np.where(self.whole, (1.0 - runaway) * inside, runaway + (1.0 - runaway) * beyond)
        logs = np.log(np.maximum(chance, 1e-300)) @ self.often.T
        prior = -0.5 * _EFFECTS**2
        logs += (prior - np.logaddexp.reduce(prior))[:, None]
        return -float(np.logaddexp.reduce(logs, axis=0).sum())
