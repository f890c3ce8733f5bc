"""Length models that agree with moments or rates that a paper publishes instead of its data."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.workload.lengths import LengthModel

FloatArray = NDArray[np.float64]


def capped_moments(model: LengthModel, cap: int) -> tuple[float, float, float]:
    """``(mean, sd over all rollouts, sd within a group)`` of a one-component model, in tokens.

    The sd within a group is the root of the mean over prompts of the variance given the prompt, so
    its square and that of the prompts' means add up to the square of the whole.
    """
    whole = model.marginal(cap)
    nodes = np.arange(-6.5, 6.51, 0.2)
    weights = np.exp(-0.5 * nodes**2)
    variances = [model.given(float(z), cap).var() for z in nodes]
    within = float(np.dot(weights, variances) / weights.sum())
    return whole.mean(), whole.var() ** 0.5, math.sqrt(within)


def lognormal_for_moments(
    mean_tokens: float, sd_tokens: float, group_sd_tokens: float, cap: int
) -> LengthModel:
    """The lognormal model whose *capped* lengths have the given moments (see `capped_moments`).

    Three equations in (median, between_sd, within_sd), solved numerically. Raises ValueError where
    no capped lognormal has such moments.
    """
    from scipy.optimize import least_squares

    if not (1.0 < mean_tokens < cap and 0.0 < group_sd_tokens < sd_tokens):
        raise ValueError("a mean lies between 1 and the cap, and a group spreads less than a batch")
    target = np.array([mean_tokens, sd_tokens, group_sd_tokens])

    def model(theta: FloatArray) -> LengthModel:
        median, between, within = np.exp(theta)
        return LengthModel.lognormal(float(median), float(between), float(within))

    def residuals(theta: FloatArray) -> FloatArray:
        moments = np.array(capped_moments(model(theta), cap))
        return np.asarray(moments / target - 1.0, dtype=np.float64)

    start = np.log([mean_tokens, sd_tokens / mean_tokens, group_sd_tokens / mean_tokens])
    bounds = (np.log([1.0, 1e-3, 1e-3]), np.log([100.0 * cap, 5.0, 5.0]))
    solved = least_squares(
        residuals, start, bounds=bounds, xtol=1e-12, ftol=1e-12, gtol=1e-12, max_nfev=50
    )
    if np.abs(solved.fun).max() > 1e-6:
        raise ValueError(
            f"no lognormal cut at {cap} tokens has mean {mean_tokens:g}, sd {sd_tokens:g} and sd "
            f"{group_sd_tokens:g} within a group"
        )
    return model(solved.x)


def straggler_rate(within_sd: float, group_size: int, tau: float) -> float:
    """``P(max / median > tau)`` of ``group_size`` lognormal lengths with ``within_sd`` of the log.

    The straggler event of SAGC (arXiv 2606.02218). The median of an even group is the mean of the
    middle two. By integrating the joint density of the middle order statistics times the chance
    that all above them stay within tau times the median; no cap, no rounding.
    """
    if group_size < 2 or within_sd < 0.0 or tau <= 1.0:
        raise ValueError("a straggler needs two rollouts, a spread of at least 0 and tau above 1")
    if within_sd == 0.0:
        return 0.0
    k = (group_size + 1) // 2  # the lower middle is the k-th smallest
    low = np.arange(-8.5, 8.51, 0.05)
    if group_size % 2:
        log_ways = _log_ways(group_size, k - 1, group_size - k)
        calm = _gap(low, low + math.log(tau) / within_sd) ** (group_size - k)
        density = np.exp(log_ways) * _cdf(low) ** (k - 1) * _density(low) * calm
        return 1.0 - float(density.sum() * 0.05)
    above = group_size - k - 1
    # The upper middle is itself within tau times the median up to `top`.
    reach = math.log(tau / (2.0 - tau)) / within_sd if tau < 2.0 else math.inf
    top = np.minimum(low + reach, 9.0)
    nodes, weights = _unit_quadrature()
    half = np.maximum(top - low, 0.0)[:, None] / 2.0
    high = low[:, None] + half * (1.0 + nodes)
    bound = np.logaddexp(within_sd * low[:, None], within_sd * high) + math.log(tau / 2.0)
    calm = _gap(high, bound / within_sd) ** above
    inner = (half * weights * _density(high) * calm).sum(axis=1)
    log_ways = _log_ways(group_size, k - 1, above)
    density = np.exp(log_ways) * _cdf(low) ** (k - 1) * _density(low) * inner
    return 1.0 - float(density.sum() * 0.05)


@lru_cache(maxsize=1)
def _unit_quadrature() -> tuple[FloatArray, FloatArray]:
    """Nodes and weights of an integral over [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(96)
    return nodes, weights


def _log_ways(size: int, below: int, above: int) -> float:
    """Log of the number of ways to name who is below, in the middle, and above."""
    return math.lgamma(size + 1) - math.lgamma(below + 1) - math.lgamma(above + 1)


def _density(z: FloatArray) -> FloatArray:
    return np.asarray(np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi), dtype=np.float64)


def _cdf(z: FloatArray) -> FloatArray:
    from scipy.special import ndtr

    return np.asarray(ndtr(z))


def _gap(low: FloatArray, high: FloatArray) -> FloatArray:
    """``P(low < Z < high)`` without cancellation far out, 0 where high is below low."""
    from scipy.special import ndtr

    return np.maximum(np.asarray(ndtr(-low) - ndtr(-high), dtype=np.float64), 0.0)
