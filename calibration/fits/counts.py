"""Fits the lognormal random-effects model of numbers of turns, some of which are cut off.

A number of n turns stands for a real number in (n - 1, n]; as turns are few, the likelihood is that
of the interval and not of its middle. It is summed over a grid of the prompt's effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.curvature import standard_errors
from rollcast.calibration.fits.robust import FloatArray

_SMALLEST_SD = 1e-2
_GRID = np.linspace(-5.0, 5.0, 161)


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

    low, high = math.log(_SMALLEST_SD), math.log(10.0)
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
    free = [0, *(i for i in (1, 2) if at[i] > 3 * _SMALLEST_SD)]
    free += [3] if runaway > 1e-3 * max(capped, 1e-9) and runaway > 0 else []
    steps = [1e-3, 1e-2 * at[1], 1e-2 * at[2], 1e-2 * runaway]
    names = ("median", "between_sd", "within_sd", "runaway")
    errors = standard_errors(counted.negative_log_likelihood, names, at, steps, free)
    between_sd, within_sd = (0.0 if sd <= 1.01 * _SMALLEST_SD else sd for sd in at[1:3])
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

        middle = mu + between_sd * _GRID[:, None]
        with np.errstate(divide="ignore"):
            ends, starts = np.log(self.turns), np.log(np.maximum(self.turns - 1.0, 0.0))
        beyond = ndtr((middle - ends) / within_sd)
        inside = ndtr((middle - starts) / within_sd) - beyond
        chance = np.where(self.whole, (1.0 - runaway) * inside, runaway + (1.0 - runaway) * beyond)
        logs = np.log(np.maximum(chance, 1e-300)) @ self.often.T
        prior = -0.5 * _GRID**2
        logs += (prior - np.logaddexp.reduce(prior))[:, None]
        return -float(np.logaddexp.reduce(logs, axis=0).sum())
