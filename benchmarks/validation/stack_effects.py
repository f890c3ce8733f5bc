"""What published runs take over their forecast, by stack: a mixed model fitted to logarithms.

log(measured / forecast) = stack + source + rest. The forecast is taken to be right over all;
effects have a mean of 0, so that stacks of which little was measured are drawn towards no effect
(partial pooling: Gelman and Hill 2007, chapter 12), and those of fewer than `FEWEST` sources have
none. Stacks are normal; sources, with the rest of their runs, have Student's t, since one in ten is
far off for reasons that its page does not tell (Lange, Little and Taylor 1989). The forecast's own
draws give an error of known variance. Intervals are drawn from a normal, so that the t's scale is
widened to hold nine of ten of its sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError

Array = NDArray[np.float64]
_LEAST_SD = 0.02
FREEDOM = 4.0  # degrees of a source's t
_ROUNDS = 5  # of weights and variances in turn
FEWEST = 3  # sources of a stack that has an effect of its own
WIDENED = 2.1318 / 1.6449  # half of the middle 90 % of that t, over a normal's


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured phase. ratio: measured over forecast. sd: of the logarithm of the forecast's own
    draws."""

    stack: str
    source: str
    ratio: float
    sd: float


@dataclass(frozen=True, slots=True)
class Effect:
    """A factor on a phase, and the standard deviation of the logarithm of the next source's."""

    factor: float
    sd: float


@dataclass(frozen=True)
class StackEffects:
    """A fitted model. between_stacks: a standard deviation. between_sources, within: scales of t.
    weights: of the observed by their sources, 1 for one that is not far off."""

    between_stacks: float
    between_sources: float
    within: float
    observed: Sequence[Observed]
    weights: Sequence[float]

    def of(self, stack: str) -> Effect:
        """For a source of ``stack`` that was not seen; also of a stack that was not."""
        variances = np.array([self.between_stacks, self.between_sources, self.within]) ** 2
        covariance = _Design.of(self.observed).covariance(variances, np.array(self.weights))
        own = [one for one in self.observed if one.stack == stack]
        known = len({one.source for one in own}) >= FEWEST
        shared = known * variances[0] * np.array([one.stack == stack for one in self.observed])
        weights = np.linalg.solve(covariance, shared)
        left = variances[0] - float(shared @ weights)
        sd = math.sqrt(left + WIDENED**2 * (variances[1] + variances[2]))
        return Effect(math.exp(float(weights @ _logs(self.observed))), sd)


def fit(observed: Sequence[Observed]) -> StackEffects:
    """By maximum likelihood: variances with the sources' weights as they are, and weights with the
    variances as they are, in turn.

    Raises ScenarioError for fewer than three sources.
    """
    from scipy.optimize import minimize

    if len({one.source for one in observed}) < 3:
        raise ScenarioError("observed", "fewer than three sources say nothing about a spread")
    logs, weights, design = _logs(observed), np.ones(len(observed)), _Design.of(observed)
    starts: list[Array] = [np.array(sds) for sds in ([-0.5, -2.5, -1.5], [-2.5, -0.5, -1.5])]

    def loss(log_sds: Array) -> float:
        variances = np.exp(2.0 * np.clip(log_sds, math.log(_LEAST_SD), 2.0))
        factor = np.linalg.cholesky(design.covariance(variances, weights))
        scaled = np.linalg.solve(factor, logs)
        return float(np.log(np.diag(factor)).sum() + 0.5 * scaled @ scaled)

    for _ in range(_ROUNDS):
        best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=_value)
        starts = [best.x]
        sds = np.exp(np.clip(best.x, math.log(_LEAST_SD), 2.0))
        weights = _weights(observed, design, sds**2)
    stacks, sources, within = sds.tolist()
    return StackEffects(stacks, sources, within, observed, weights.tolist())


def _value(found: object) -> float:
    return float(getattr(found, "fun"))  # noqa: B009 - scipy's result is untyped


def _logs(observed: Sequence[Observed]) -> Array:
    return np.array([math.log(one.ratio) for one in observed])


def _weights(observed: Sequence[Observed], design: _Design, variances: Array) -> Array:
    """Of each source (degrees + runs) / (degrees + how far off its runs are, squared in standard
    deviations), at most 1."""
    logs = _logs(observed)
    sources = np.array([one.source for one in observed])
    weights = np.ones(len(observed))
    covariance = design.covariance(variances, weights)
    for source in set(sources.tolist()):
        own = sources == source
        off = logs[own] @ np.linalg.solve(covariance[np.ix_(own, own)], logs[own])
        weights[own] = min((FREEDOM + own.sum()) / (FREEDOM + off), 1.0)
    return weights


@dataclass(frozen=True)
class _Design:
    """Whether two observed are of one stack, and of one source; their own variances."""

    stacks: Array
    sources: Array
    own: Array

    @classmethod
    def of(cls, observed: Sequence[Observed]) -> _Design:
        stacks = np.array([one.stack for one in observed])
        sources = np.array([one.source for one in observed])
        own = np.array([one.sd**2 for one in observed])
        of_stack, of_source = (names[:, None] == names for names in (stacks, sources))
        return cls(of_stack.astype(float), of_source.astype(float), own)

    def covariance(self, variances: Array, weights: Array) -> Array:
        """Of the logarithms. variances: of stacks, sources and the rest; a source's part is that of
        a source of weight 1 over its weight."""
        between_stacks, between_sources, within = variances
        of_source = between_sources * self.sources + np.diag(within + self.own)
        widened = of_source / np.sqrt(np.outer(weights, weights))
        return np.asarray(between_stacks * self.stacks + widened)
