"""Fits the lognormal random-effects model of response lengths to observed groups.

Maximum likelihood; a response at the cap is not a length but a lower bound (right-censored), unless
it ran away.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.random_effects import standard_errors
from rollcast.simulator.workload.lengths import LengthModel

FloatArray = NDArray[np.float64]

_SMALLEST_SD = 1e-3
_LOG_2PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, slots=True)
class LengthFit:
    """A fitted length model.

    standard_errors: of each parameter, from the curvature of the likelihood; a parameter that the
    data hold at its bound (no runaway, say) has none. capped: responses at the cap.
    """

    median_tokens: float
    between_sd: float
    within_sd: float
    runaway: float
    standard_errors: dict[str, float]
    log_likelihood: float
    groups: int
    rollouts: int
    capped: int

    @property
    def model(self) -> LengthModel:
        """The fitted distribution."""
        return LengthModel.lognormal(
            self.median_tokens, self.between_sd, self.within_sd, self.runaway
        )


@dataclass(frozen=True, slots=True)
class _Observed:
    """Sufficient statistics, in log tokens, shape (rows,). A row is a group, or all groups of one
    size in which nothing was cut: their means differ by ``scatter``.

    groups: of the row. count, mean: number of responses of each that ended by themselves, and their
    mean. squares: centred sum of squares within groups, scatter: of the groups' means. capped:
    number at the cap, a group. log_cap: log of the last length below the cap. unfinished_group,
    log_reached: row, and log of the tokens reached, of each response that was cut off elsewhere,
    shape (unfinished,).
    """

    groups: FloatArray
    count: FloatArray
    mean: FloatArray
    squares: FloatArray
    scatter: FloatArray
    capped: FloatArray
    log_cap: float
    unfinished_group: NDArray[np.int64]
    log_reached: FloatArray

    @property
    def capped_share(self) -> float:
        censored = self.capped.sum() + len(self.log_reached)
        return float(censored / (censored + self.ended))

    @property
    def ended(self) -> float:
        """Responses that ended by themselves."""
        return float(self.groups @ self.count)


def fit_owned(
    groups: int,
    owner: NDArray[np.int64],
    lengths: FloatArray,
    cap: int,
    unfinished: tuple[NDArray[np.int64], FloatArray] | None = None,
) -> LengthFit:
    """The lognormal model under which responses of ``groups`` prompts are most likely.

    owner, lengths: group (from 0 to below ``groups``) and tokens of each, in any order. cap: the
    cap they were sampled with; a length of ``cap`` or more counts as capped. unfinished: the same
    of responses that were cut off by anything else, such as the end of the run, with the tokens
    that each had reached: it is longer than that. Where nothing was cut off, ``runaway`` is 0.
    Raises ValueError on lengths below 1 token, on fewer than two groups and where no group has two
    responses below the cap, since the two spreads cannot then be told apart.
    """
    observed = _observe(groups, owner, lengths, cap, unfinished)
    rollouts = int(observed.ended + observed.capped.sum()) + len(observed.log_reached)
    parameters, log_likelihood = _maximise(observed)
    errors = _standard_errors(observed, parameters)
    mu, between_sd, within_sd, runaway = parameters
    return LengthFit(
        median_tokens=math.exp(mu),
        between_sd=between_sd,
        within_sd=within_sd,
        runaway=runaway,
        standard_errors=errors,
        log_likelihood=log_likelihood,
        groups=groups,
        rollouts=rollouts,
        capped=int(observed.capped.sum()),
    )


def _observe(
    groups: int,
    owner: NDArray[np.int64],
    lengths: FloatArray,
    cap: int,
    unfinished: tuple[NDArray[np.int64], FloatArray] | None = None,
) -> _Observed:
    if cap < 2:
        raise ValueError(f"a cap of {cap} tokens leaves no length to fit")
    if not np.all(lengths >= 1.0):
        raise ValueError("a response has at least one token")
    below = lengths < cap
    count = np.bincount(owner[below], minlength=groups).astype(np.float64)
    if groups < 2 or count.max() < 2:
        raise ValueError(
            "two groups or more are needed, one of them with two responses below the cap"
        )
    # N = n stands for X in (n - 1, n]: its middle keeps short lengths from a bias.
    logs, owners = np.log(lengths[below] - 0.5), owner[below]
    mean = np.bincount(owners, logs, minlength=groups) / np.maximum(count, 1.0)
    around = (logs - mean[owners]) ** 2
    squares = np.bincount(owners, around, minlength=groups).astype(np.float64)
    capped = np.bincount(owner[~below], minlength=groups).astype(np.float64)
    stopped, reached = unfinished if unfinished is not None else (owner[:0], lengths[:0])
    stopped, reached = stopped[reached > 0], reached[reached > 0]  # else it says nothing
    cut = capped > 0
    cut[stopped] = True
    row = _rows(count, cut)
    sizes = np.bincount(row).astype(np.float64)
    middle = np.bincount(row, mean) / sizes
    first = np.unique(row, return_index=True)[1]
    return _Observed(
        sizes,
        count[first],
        middle,
        np.bincount(row, squares).astype(np.float64),
        np.bincount(row, (mean - middle[row]) ** 2).astype(np.float64),
        capped[first],
        math.log(cap - 1.0),
        row[stopped],
        np.log(reached),
    )


def _rows(count: FloatArray, cut: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The row of each group: one for all of a size in which nothing was cut, one for each other."""
    sizes, row = np.unique(count, return_inverse=True)
    key = np.where(cut, len(sizes) + np.arange(len(count)), row)
    return np.unique(key, return_inverse=True)[1].astype(np.int64)


def _negative_log_likelihood(
    observed: _Observed, mu: float, between_sd: float, within_sd: float, runaway: float
) -> float:
    """Minus the log-likelihood of (mu = ln median, between_sd, within_sd, runaway).

    The responses that ended are jointly normal in the log, and given them the prompt's effect is
    normal; only the capped ones need a quadrature, over that effect.
    """
    from scipy.special import ndtr

    k, between_var, within_var = observed.count, between_sd**2, within_sd**2
    spread = within_var + k * between_var
    off = observed.mean - mu
    terms = k * _LOG_2PI + np.where(k > 0, (k - 1.0) * math.log(within_var) + np.log(spread), 0.0)
    log_density = -0.5 * (
        observed.groups * (terms + k * off**2 / spread)
        + observed.squares / within_var
        + k * observed.scatter / spread
    )
    total = float(log_density.sum()) + observed.ended * math.log1p(-runaway)
    with_cap = observed.capped > 0
    with_cap[observed.unfinished_group] = True
    if with_cap.any():
        effect_mean = (between_var * k * off / spread)[with_cap, None]
        effect_sd = np.sqrt(between_var * within_var / spread)[with_cap, None]
        nodes, weights = _normal_quadrature()
        beyond = ndtr((mu + effect_mean + effect_sd * nodes - observed.log_cap) / within_sd)
        reaching = (runaway + (1.0 - runaway) * beyond) ** observed.capped[with_cap, None]
        if len(observed.log_reached):
            row = (np.cumsum(with_cap) - 1)[observed.unfinished_group]
            effect = effect_mean[row] + effect_sd[row] * nodes
            beyond = ndtr((mu + effect - observed.log_reached[:, None]) / within_sd)
            np.multiply.at(reaching, row, runaway + (1.0 - runaway) * beyond)
        likelihood = reaching @ weights
        total += float(np.log(np.maximum(likelihood, 1e-300)).sum())
    return -total


@lru_cache(maxsize=1)
def _normal_quadrature() -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of an expectation over a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(64)
    return nodes, weights / weights.sum()


def _maximise(observed: _Observed) -> tuple[tuple[float, float, float, float], float]:
    """The most likely (mu, between_sd, within_sd, runaway) and its log-likelihood."""
    from scipy.optimize import minimize

    several, some = observed.count > 1, observed.count > 0
    free = observed.groups[several] @ (observed.count[several] - 1)
    within = math.sqrt(observed.squares[several].sum() / free)
    sizes, means = observed.groups[some], observed.mean[some]
    mean = float(sizes @ means / sizes.sum())
    between = math.sqrt((sizes @ (means - mean) ** 2 + observed.scatter[some].sum()) / sizes.sum())
    share = observed.capped_share

    def decode(theta: FloatArray) -> tuple[float, float, float, float]:
        # Runaway in units of the capped share, so that all four have a like scale.
        return float(theta[0]), math.exp(theta[1]), math.exp(theta[2]), float(theta[3]) * share

    def objective(theta: FloatArray) -> float:
        return _negative_log_likelihood(observed, *decode(theta))

    sd_bounds = (math.log(_SMALLEST_SD), math.log(20.0))
    bounds = [(None, None), sd_bounds, sd_bounds, (0.0, min(1.0, 0.99 / share) if share else 0.0)]
    centre = [mean, math.log(max(between, 0.05)), math.log(within + 1e-3)]
    # The capped responses may be the tail of the lengths or runaways: start from either side.
    starts = [np.array([*centre, start]) for start in ((0.05, 0.9) if share else (0.0,))]
    fits = [minimize(objective, start, method="L-BFGS-B", bounds=bounds) for start in starts]
    best = min(fits, key=lambda fit: float(fit.fun))
    return decode(best.x), -float(best.fun)


def _standard_errors(
    observed: _Observed, parameters: tuple[float, float, float, float]
) -> dict[str, float]:
    """Standard errors of the parameters inside their bounds."""
    names = ("median_tokens", "between_sd", "within_sd", "runaway")
    smallest = (-math.inf, 2 * _SMALLEST_SD, 2 * _SMALLEST_SD, 1e-4 * observed.capped_share)
    free = [i for i in range(4) if parameters[i] > smallest[i]]
    _, between_sd, within_sd, runaway = parameters
    steps = (1e-3, 1e-3 * between_sd, 1e-3 * within_sd, 1e-2 * runaway)
    likelihood = partial(_negative_log_likelihood, observed)
    return standard_errors(likelihood, names, parameters, steps, free)
