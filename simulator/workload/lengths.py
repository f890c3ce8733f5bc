"""Response lengths: a random effect of the prompt times a random effect of the rollout.

``ln X = ln(median) + between_sd * z + W``: z, standard normal, belongs to the prompt, W (median 0,
standard deviation ``within_sd``) to the rollout. A response has ``N = min(ceil(X), cap)`` tokens,
so the cap holds an atom and ``P(N > n) = P(X > n)`` below it. With probability ``runaway`` a
rollout runs to the cap; how prone to that a prompt is, is a trait of it
(`LengthModel.runaway_given`).

A distribution is its survival function in a table; moments and quantiles are exact sums over it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollcast.simulator.workload.halving import halved

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

LARGEST_CAP = 1 << 24

# Ten responses each to 4,000 prompts by 13 models (CASTILLO, Perez-Ramirez et al. 2025): 19 prompts
# had one response that ran to the cap of 15,000 tokens, five had two; were responses independent,
# 0.02 would have. Maximum likelihood 0.51, 95 % from 0.30 to 0.70.
RUNAWAY_CORRELATION = 0.5
_LN2 = math.log(2.0)

# Spreads of the log below this move no length by a token, and would overflow.
_NO_SPREAD = 1e-8


class LengthDistribution:
    """A response length in whole tokens, 1 to ``cap``; used like a frozen SciPy distribution.

    survival: ``P(N > n)`` for n = 0, 1, ..., cap; from 1 down to 0, never rising.
    """

    __slots__ = ("_sf",)

    def __init__(self, survival: FloatArray) -> None:
        if survival.ndim != 1 or len(survival) < 2 or survival[0] != 1.0 or survival[-1] != 0.0:
            raise ValueError("a survival table runs from P(N > 0) = 1 to P(N > cap) = 0")
        self._sf = np.minimum.accumulate(np.clip(survival, 0.0, 1.0))

    @property
    def cap(self) -> int:
        """The longest length, tokens."""
        return len(self._sf) - 1

    def sf(self, tokens: ArrayLike) -> FloatArray:
        """``P(N > tokens)``, in the shape of ``tokens``."""
        at = np.clip(np.floor(np.asarray(tokens, dtype=np.float64)), 0, self.cap)
        return np.asarray(self._sf[at.astype(np.int64)])[()]

    def ppf(self, q: ArrayLike) -> IntArray:
        """The smallest length n with ``P(N <= n) >= q``; q in [0, 1], else ValueError."""
        quantile = np.asarray(q, dtype=np.float64)
        if not np.all((quantile >= 0.0) & (quantile <= 1.0)):
            raise ValueError("a quantile lies in [0, 1]")
        return np.maximum(np.searchsorted(1.0 - self._sf, quantile, side="left"), 1)[()]

    def mean(self) -> float:
        """Expected length, tokens: the sum of ``P(N > n)``."""
        return float(self._sf[:-1].sum())

    def var(self) -> float:
        """Variance, tokens squared."""
        mean = self.mean()
        # Centred on the mean: E[N^2] - mean^2 loses digits when the spread is small.
        weights = 2.0 * (np.arange(self.cap) - mean) + 1.0
        return max(0.0, float(weights @ self._sf[:-1]) + mean * mean)

    def median(self) -> int:
        """``ppf(0.5)``, tokens."""
        return int(self.ppf(0.5))


class WithinEffect(Protocol):
    """The rollout's effect W on the log of its length: median 0."""

    def ppf(self, u: FloatArray) -> FloatArray:
        """Quantile function."""

    def sf(self, w: FloatArray) -> FloatArray:
        """``P(W > w)``."""

    def pdf(self, w: FloatArray) -> FloatArray:
        """Density."""


@dataclass(frozen=True, slots=True)
class NormalEffect:
    """W normal: the length, given its prompt, is lognormal."""

    sd: float

    def ppf(self, u: FloatArray) -> FloatArray:
        """Quantile function."""
        from scipy.special import ndtri

        return np.asarray(self.sd * ndtri(u))

    def sf(self, w: FloatArray) -> FloatArray:
        """``P(W > w)``; a step where sd is 0."""
        from scipy.special import ndtr

        return np.asarray(ndtr(-w / self.sd) if self.sd > 0 else np.where(w < 0.0, 1.0, 0.0))

    def pdf(self, w: FloatArray) -> FloatArray:
        """Density."""
        return np.exp(-0.5 * (w / self.sd) ** 2) / (self.sd * math.sqrt(2.0 * math.pi))


@dataclass(frozen=True, slots=True)
class GammaEffect:
    """W the log of a gamma variate over its median: the length, given its prompt, is gamma."""

    sd: float

    def ppf(self, u: FloatArray) -> FloatArray:
        """Quantile function."""
        from scipy.special import gammaincinv

        shape, median = _gamma_shape(self.sd)
        with np.errstate(divide="ignore"):  # a quantile that underflows is a length of one token
            return np.asarray(np.log(gammaincinv(shape, u) / median))

    def sf(self, w: FloatArray) -> FloatArray:
        """``P(W > w)``."""
        from scipy.special import gammaincc

        shape, median = _gamma_shape(self.sd)
        with np.errstate(over="ignore"):
            return np.asarray(gammaincc(shape, median * np.exp(w)))

    def pdf(self, w: FloatArray) -> FloatArray:
        """Density."""
        from scipy.special import gammaln

        shape, median = _gamma_shape(self.sd)
        log_x = w + math.log(median)
        return np.asarray(np.exp(shape * log_x - np.exp(log_x) - gammaln(shape)))


@dataclass(frozen=True, slots=True)
class WeibullEffect:
    """W the log of a Weibull variate over its median: the length, given its prompt, is Weibull."""

    sd: float

    @property
    def shape(self) -> float:
        """The Weibull shape whose log has standard deviation ``sd``: pi / (sqrt(6) sd)."""
        return math.pi / (math.sqrt(6.0) * self.sd)

    def ppf(self, u: FloatArray) -> FloatArray:
        """Quantile function."""
        return np.log(-np.log1p(-u) / _LN2) / self.shape

    def sf(self, w: FloatArray) -> FloatArray:
        """``P(W > w)``."""
        with np.errstate(over="ignore"):
            survival: FloatArray = np.exp(-_LN2 * np.exp(self.shape * w))
        return survival

    def pdf(self, w: FloatArray) -> FloatArray:
        """Density."""
        hazard = _LN2 * np.exp(self.shape * w)
        return self.shape * hazard * np.exp(-hazard)


FAMILIES: dict[str, type[NormalEffect] | type[GammaEffect] | type[WeibullEffect]] = {
    "lognormal": NormalEffect,
    "gamma": GammaEffect,
    "weibull": WeibullEffect,
}


@lru_cache(maxsize=64)
def _gamma_shape(sd: float) -> tuple[float, float]:
    """Shape and median of the gamma whose log has standard deviation ``sd``: trigamma(k) = sd^2."""
    from scipy.special import gammaincinv, polygamma

    # trigamma falls monotonically
    _, shape = halved(lambda k: bool(polygamma(1, k) > sd * sd), 1e-4, 1e17, 200, logs=True)
    return shape, float(gammaincinv(shape, 0.5))


@dataclass(frozen=True, slots=True)
class Component:
    """One kind of prompt. family: shape within a prompt: lognormal, gamma or weibull.
    median_tokens: of a prompt of effect 0. between_sd, within_sd: of the log length, between
    prompts and within one."""

    family: str
    median_tokens: float
    between_sd: float
    within_sd: float

    @property
    def effect(self) -> WithinEffect:
        """The rollout's effect on the log length."""
        return (
            NormalEffect(0.0)
            if self.within_sd < _NO_SPREAD
            else FAMILIES[self.family](self.within_sd)
        )

    def log_length(self, prompt_z: FloatArray, within_u: FloatArray) -> FloatArray:
        """Log of the uncapped length, from the prompt's z and the rollout's uniform."""
        return math.log(self.median_tokens) + self.between_sd * prompt_z + self.effect.ppf(within_u)

    def sf_given(self, effect_z: float, log_tokens: FloatArray) -> FloatArray:
        """``P(ln X > log_tokens)`` of a prompt whose effect is ``effect_z``."""
        return self.effect.sf(
            log_tokens - math.log(self.median_tokens) - self.between_sd * effect_z
        )

    def sf_marginal(self, log_tokens: FloatArray) -> FloatArray:
        """``P(ln X > log_tokens)`` over prompts: closed form if an effect is absent or both are
        normal. Else the narrower effect is integrated out by the trapezoid rule, which converges
        exponentially."""
        from scipy.special import ndtr

        offset = math.log(self.median_tokens) - log_tokens
        effect = self.effect
        if self.between_sd < _NO_SPREAD:
            return effect.sf(-offset)
        if isinstance(effect, NormalEffect):
            return np.asarray(ndtr(offset / math.hypot(self.between_sd, self.within_sd)))
        total = np.zeros_like(log_tokens)
        if self.within_sd <= self.between_sd:
            ends = effect.ppf(np.array([1e-14, 1.0 - 1e-14]))
            nodes = np.arange(ends[0], ends[1], 0.2 * self.within_sd)
            weights = effect.pdf(nodes)
            for w, weight in zip(nodes, weights / weights.sum(), strict=True):
                total += weight * ndtr((offset + w) / self.between_sd)
        else:
            nodes = np.arange(-8.6, 8.61, 0.2)
            weights = np.exp(-0.5 * nodes**2)
            for z, weight in zip(nodes, weights / weights.sum(), strict=True):
                total += weight * effect.sf(-offset - self.between_sd * z)
        return total


@dataclass(frozen=True, slots=True)
class Quantiles(Component):
    """Lengths along a curve over a standard normal score, of which between_sd and within_sd are
    the parts: their squares sum to 1. curve: its corners (score, log of the length over the
    median), ascending in both; straight between them."""

    curve: tuple[tuple[float, float], ...] = ()

    def log_length(self, prompt_z: FloatArray, within_u: FloatArray) -> FloatArray:
        """See `Component`."""
        score = self.between_sd * prompt_z + self.effect.ppf(within_u)
        scores, logs = np.array(self.curve).T
        return np.asarray(math.log(self.median_tokens) + np.interp(score, scores, logs))

    def sf_given(self, effect_z: float, log_tokens: FloatArray) -> FloatArray:
        """See `Component`."""
        return Component.sf_given(self, effect_z, self._as_lognormal(log_tokens))

    def sf_marginal(self, log_tokens: FloatArray) -> FloatArray:
        """See `Component`."""
        return Component.sf_marginal(self, self._as_lognormal(log_tokens))

    def _as_lognormal(self, log_tokens: FloatArray) -> FloatArray:
        """The lengths that lognormal ones of the same median have at the same scores."""
        scores, logs = np.array(self.curve).T
        middle = math.log(self.median_tokens)
        return np.asarray(middle + np.interp(np.asarray(log_tokens) - middle, logs, scores))


@dataclass(frozen=True, slots=True)
class LengthModel:
    """Response lengths over prompts and rollouts.

    components, weights: kinds of prompt and their shares; all rollouts of a prompt are of one kind.
    runaway: probability that a rollout runs to the cap. runaway_correlation: from 0 to below 1,
    between rollouts of a prompt, of the standard normals that decide it. drift_per_step: change of
    the log median with each update.
    """

    components: tuple[Component, ...]
    weights: tuple[float, ...] = (1.0,)
    runaway: float = 0.0
    drift_per_step: float = 0.0
    runaway_correlation: float = RUNAWAY_CORRELATION

    @classmethod
    def lognormal(
        cls,
        median_tokens: float,
        between_sd: float,
        within_sd: float,
        runaway: float = 0.0,
        drift_per_step: float = 0.0,
    ) -> LengthModel:
        """Lognormal between prompts and within them."""
        component = Component("lognormal", median_tokens, between_sd, within_sd)
        return cls((component,), (1.0,), runaway, drift_per_step)

    def scaled(self, factor: float) -> LengthModel:
        """Every median ``factor`` times as long; spreads and the runaway share stay."""
        if not (factor > 0.0 and math.isfinite(factor)):
            raise ValueError(f"a length is scaled by a positive factor, got {factor}")
        longer = (replace(c, median_tokens=c.median_tokens * factor) for c in self.components)
        return replace(self, components=tuple(longer))

    def drift(self, step: int) -> float:
        """The factor on every length once the weights have had ``step`` updates."""
        return math.exp(min(max(self.drift_per_step * step, -100.0), 100.0))

    def marginal(self, cap: int) -> LengthDistribution:
        """Length of a rollout of a random prompt, cut at ``cap`` tokens."""
        log_tokens = np.log(_inner_tokens(cap))
        shares = zip(self.weights, self.components, strict=True)
        parts = [weight * component.sf_marginal(log_tokens) for weight, component in shares]
        return self._capped(np.sum(parts, axis=0))

    def given(self, effect_z: float, cap: int, component: int = 0) -> LengthDistribution:
        """Length of a rollout of one prompt, cut at ``cap`` tokens. effect_z: the prompt's effect
        in standard deviations. component: the kind of prompt."""
        log_tokens = np.log(_inner_tokens(cap))
        return self._capped(self.components[component].sf_given(effect_z, log_tokens))

    def runaway_given(self, tail_z: FloatArray) -> FloatArray:
        """Probability to run away for prompts of proneness ``tail_z`` (standard normal); its mean
        is ``runaway``. The threshold model of Falconer (1965)."""
        from scipy.special import ndtr, ndtri

        rho = self.runaway_correlation
        threshold = ndtri(self.runaway)
        return np.asarray(ndtr((threshold + math.sqrt(rho) * tail_z) / math.sqrt(1.0 - rho)))

    def uncapped(
        self, component_u: FloatArray, prompt_z: FloatArray, within_u: FloatArray
    ) -> FloatArray:
        """Real-valued lengths before the cap, shape (prompts, rollouts). component_u, prompt_z: per
        prompt, shape (prompts,). within_u: uniforms, shape (prompts, rollouts)."""
        edges = np.cumsum(self.weights)[:-1]
        kinds = np.searchsorted(edges, component_u, side="right")
        log_lengths = np.empty_like(within_u)
        for kind, component in enumerate(self.components):
            rows = kinds == kind
            log_lengths[rows] = component.log_length(prompt_z[rows, None], within_u[rows])
        with np.errstate(over="ignore"):  # longer than any cap
            return np.exp(log_lengths)

    def _capped(self, inner: FloatArray) -> LengthDistribution:
        survival = np.concatenate(([1.0], self.runaway + (1.0 - self.runaway) * inner, [0.0]))
        return LengthDistribution(survival)


def whole_tokens(uncapped: FloatArray, cap: int) -> IntArray:
    """``min(ceil(X), cap)``, at least 1: the lengths that a cap of ``cap`` tokens leaves."""
    return np.clip(np.ceil(uncapped), 1, cap).astype(np.int64)


def _inner_tokens(cap: int) -> Sequence[int] | IntArray:
    if not 1 <= cap <= LARGEST_CAP:
        raise ValueError(f"a cap lies between 1 and {LARGEST_CAP} tokens, got {cap}")
    return np.arange(1, cap)
