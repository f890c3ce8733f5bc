"""What published runs take over their forecast, by stack: a mixed model fitted to logarithms.

log(measured / forecast) = stack + source + rest. The forecast is taken to be right over all;
effects have a mean of 0, so that stacks of which little was measured are drawn towards no effect
(partial pooling: Gelman and Hill 2007, chapter 12), and those of fewer than `FEWEST` sources have
none. The likelihood of few stacks is often greatest at no spread between them, though some is as
likely: where stacks are known to differ, a gamma of shape 2 on it keeps it off 0 (Chung,
Rabe-Hesketh, Dorie, Gelman and Liu 2013). Stacks are normal; sources, with the rest of their runs,
have Student's t, since one in ten is far off for reasons that its page does not tell (Lange, Little
and Taylor 1989). Sources of unusual models, of GPUs on which no product of matrices was measured,
and those that leave much of their scenario open have other scales. The forecast's own draws give an
error of known variance.

Intervals are drawn from a normal. How wide it has to be is counted: each of the sources is forecast
by the others in turn, and the scale of sources is made so much wider or narrower that nine of ten
are inside (normalised conformal prediction: Lei, G'Sell, Rinaldo, Tibshirani and Wasserman 2018,
section 5.2). n figures of one source count as the root of n, between counting sources and counting
figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError

Array = NDArray[np.float64]
Kinds = tuple[bool, bool, bool]
Factors = tuple[float, float, float]
_LEAST_SDS = (0.02, 0.1, 0.02)  # of stacks, sources and the rest: no source is met more closely
_SCALE_SD = 0.7  # of the logarithm of what another scale is beyond 1, around 1
_WIDEST = 1.1  # logarithm of what another scale is beyond 1
_LEAST_WIDENED = 0.1
FREEDOM = 4.0  # degrees of a source's t
_ROUNDS = 5  # of weights and variances in turn
FEWEST = 3  # sources of a stack that has an effect of its own
INSIDE = 0.9  # of the sources, in an interval
_HALF = 1.6449  # of a normal's middle 90 %, in standard deviations


@dataclass(frozen=True, slots=True)
class Observed:
    """A measured phase. ratio: measured over forecast. sd: of the logarithm of the forecast's own
    draws. unusual: whether the model is. assumed: whether its GPU's figures are. open: whether its
    source leaves much of the scenario open, beyond what the draws hold."""

    stack: str
    source: str
    ratio: float
    sd: float
    unusual: bool = False
    assumed: bool = False
    open: bool = False

    @property
    def kinds(self) -> Kinds:
        return self.unusual, self.assumed, self.open


@dataclass(frozen=True, slots=True)
class Effect:
    """A factor on a phase, and the standard deviation of the logarithm of the next source's."""

    factor: float
    sd: float


@dataclass(frozen=True)
class StackEffects:
    """A fitted model. between_stacks: a standard deviation. between_sources, within: scales of t,
    ``unusual`` times as large for unusual models, ``assumed`` times for GPUs whose figures are,
    ``open`` times for open scenarios. weights: of the observed by their sources, 1 for one that is
    not far off. widened: factor on those scales with which intervals hold."""

    between_stacks: float
    between_sources: float
    within: float
    unusual: float
    assumed: float
    open: float
    observed: Sequence[Observed]
    weights: Sequence[float]
    widened: float = 1.0

    def of(
        self, stack: str, *, unusual: bool = False, assumed: bool = False, open: bool = False
    ) -> Effect:
        """For a source of ``stack`` that was not seen; also of a stack that was not. unusual,
        assumed, open: as of `Observed`."""
        log, left = self._stack(stack, np.ones(len(self.observed), bool))
        sd = self.widened * self.scale((unusual, assumed, open))
        return Effect(math.exp(log), math.hypot(math.sqrt(left), sd))

    def added(self, unusual: bool, assumed: bool) -> float:
        """Standard deviation that such a model, on such a GPU, adds to that of any other."""
        scales = self.scale((unusual, assumed, False)), self.scale((False, False, False))
        return self.widened * math.sqrt(scales[0] ** 2 - scales[1] ** 2)

    def scale(self, kinds: Kinds) -> float:
        """Of a source and the rest of its runs."""
        unusual, assumed, open = kinds
        factor = self.unusual**unusual * self.assumed**assumed * self.open**open
        return factor * math.hypot(self.between_sources, self.within)

    def _stack(self, stack: str, known: NDArray[np.bool_]) -> tuple[float, float]:
        """A stack's mean by those of the observed that are ``known``, and its variance."""
        variances = np.array([self.between_stacks, self.between_sources, self.within]) ** 2
        observed = [one for one, used in zip(self.observed, known, strict=True) if used]
        if len({one.source for one in observed if one.stack == stack}) < FEWEST:
            return 0.0, float(variances[0])
        design = _Design.of(observed)
        # In means these sources count as others: weighed less, sources left out are met less well.
        scales = self.unusual, 1.0, 1.0
        covariance = design.covariance(variances, scales, np.array(self.weights)[known])
        shared = variances[0] * np.array([one.stack == stack for one in observed])
        weights = np.linalg.solve(covariance, shared)
        return float(weights @ _logs(observed)), float(variances[0] - shared @ weights)

    def counted(self) -> float:
        """The factor on the scales with which the intervals of sources, each forecast by the
        others, hold `INSIDE` of them."""
        sources = np.array([one.source for one in self.observed])
        needed, counts = [], []
        for source in sorted(set(sources.tolist())):
            own = sources == source
            for one in (one for one, used in zip(self.observed, own, strict=True) if used):
                log, left = self._stack(one.stack, ~own)
                off = (math.log(one.ratio) - log) / _HALF
                wanted = max(off**2 - one.sd**2 - left, 0.0)
                needed.append(math.sqrt(wanted) / self.scale(one.kinds))
                counts.append(own.sum() ** -0.5)
        one_more = float(np.mean(counts))  # which may lie anywhere
        return max(holding(needed, counts, one_more), _LEAST_WIDENED)


def holding(needed: Sequence[float], counts: Sequence[float], more: float = 0.0) -> float:
    """The least of the needed that holds `INSIDE` of what they count, and of ``more`` above all."""
    order = np.argsort(needed)
    cumulated = np.cumsum(np.array(counts)[order])
    place = int(np.searchsorted(cumulated, INSIDE * (cumulated[-1] + more)))
    return float(needed[order[min(place, len(needed) - 1)]])


def fit(observed: Sequence[Observed], *, differ: bool = False) -> StackEffects:
    """By maximum likelihood: variances with the sources' weights as they are, and weights with the
    variances as they are, in turn. Where the forecasts' own draws explain most of what is left, the
    data hardly tell how much further the kinds of sources are off: it is taken to be
    about twice as far, so that no single source decides it. differ: whether stacks are known to.

    Raises ScenarioError for fewer than three sources.
    """
    from scipy.optimize import minimize

    if len({one.source for one in observed}) < 3:
        raise ScenarioError("observed", "fewer than three sources say nothing about a spread")
    logs, design = _logs(observed), _Design.of(observed)
    kinds = [{one.source for one in observed if one.kinds[n]} for n in range(3)]
    several = [len(sources) >= FEWEST for sources in kinds]

    def scales(found: Array) -> tuple[Array, Factors]:
        beyond = iter(1.0 + np.exp(found[3:]))
        first, second, third = (float(next(beyond)) if many else 1.0 for many in several)
        return np.exp(found[:3]), (first, second, third)

    def loss(found: Array, weights: Array) -> tuple[float, Array]:
        """And its derivatives."""
        sds, other = scales(found)
        of_source, of_rest = design.own_parts(sds[1:] ** 2, other, weights)
        covariance = design.covariance(sds**2, other, weights)
        inverse = np.linalg.inv(covariance)
        solved = inverse @ logs
        prior = 0.5 * float(np.sum((found[3:] / _SCALE_SD) ** 2)) - differ * float(found[0])
        value = 0.5 * float(np.linalg.slogdet(covariance)[1] + logs @ solved) + prior
        moved = inverse - np.outer(solved, solved)  # by half of this a unit of the covariance
        by_source, by_rest = moved * of_source, np.diag(moved) * of_rest
        by_sds = [sds[0] ** 2 * np.sum(moved * design.stacks), by_source.sum(), by_rest.sum()]
        by_kinds = (by_source.sum(axis=1) + by_rest) @ design.kinds[:, several]
        beyond = np.exp(found[3:])
        by_kinds = by_kinds * beyond / (1.0 + beyond) + found[3:] / _SCALE_SD**2
        return value, np.array([by_sds[0] - differ, *by_sds[1:], *by_kinds])

    bounds = [(math.log(least), 2.0) for least in _LEAST_SDS] + [(None, _WIDEST)] * sum(several)
    fits: list[tuple[float, StackEffects]] = []
    for start in ([-0.5, -2.5, -1.5], [-2.5, -0.5, -1.5]):  # one alone may stay behind
        found, weights = np.array(start + [0.0] * sum(several)), np.ones(len(observed))
        for _ in range(_ROUNDS):
            found = minimize(loss, found, (weights,), jac=True, bounds=bounds).x
            sds, other = scales(found)
            weights = _weights(observed, design, sds**2, other)
        stacks, sources, within = sds.tolist()
        one = StackEffects(stacks, sources, within, *other, observed, weights.tolist())
        fits.append((loss(found, weights)[0] + _of_weights(observed, weights), one))
    _, best = min(fits, key=lambda pair: pair[0])
    return replace(best, widened=best.counted())


def _of_weights(observed: Sequence[Observed], weights: Array) -> float:
    """What the sources' weights add to the loss: their own law's, a gamma's of that t."""
    of = dict(zip((one.source for one in observed), weights.tolist(), strict=True))
    return 0.5 * FREEDOM * math.fsum(weight - math.log(weight) for weight in of.values())


def _logs(observed: Sequence[Observed]) -> Array:
    return np.array([math.log(one.ratio) for one in observed])


def _weights(
    observed: Sequence[Observed], design: _Design, variances: Array, scales: Factors
) -> Array:
    """Of each source (degrees + runs) / (degrees + how far off its runs are, squared in standard
    deviations), at most 1."""
    logs = _logs(observed)
    sources = np.array([one.source for one in observed])
    weights = np.ones(len(observed))
    covariance = design.covariance(variances, scales, weights)
    for source in set(sources.tolist()):
        own = sources == source
        off = logs[own] @ np.linalg.solve(covariance[np.ix_(own, own)], logs[own])
        weights[own] = min((FREEDOM + own.sum()) / (FREEDOM + off), 1.0)
    return weights


@dataclass(frozen=True)
class _Design:
    """Whether two observed are of one stack, and of one source; their own variances; for each
    of which kinds it is, as `Observed.kinds`."""

    stacks: Array
    sources: Array
    own: Array
    kinds: Array

    @classmethod
    def of(cls, observed: Sequence[Observed]) -> _Design:
        stacks = np.array([one.stack for one in observed])
        sources = np.array([one.source for one in observed])
        own = np.array([one.sd**2 for one in observed])
        of_stack, of_source = (names[:, None] == names for names in (stacks, sources))
        kinds = np.array([one.kinds for one in observed], float)
        return cls(of_stack.astype(float), of_source.astype(float), own, kinds)

    def covariance(self, variances: Array, factors: Factors, weights: Array) -> Array:
        """Of the logarithms. variances: of stacks, sources and the rest. factors: on the scales of
        each kind; a source's part is that of a source of weight 1 over its weight."""
        of_source, of_rest = self.own_parts(variances[1:], factors, weights)
        return np.asarray(
            variances[0] * self.stacks + of_source + np.diag(of_rest + self.own / weights)
        )

    def own_parts(self, variances: Array, factors: Factors, weights: Array) -> tuple[Array, Array]:
        """The covariance that sources have by themselves, and the rest's variances."""
        scales = np.prod(np.array(factors) ** self.kinds, axis=1) / np.sqrt(weights)
        return variances[0] * self.sources * np.outer(scales, scales), variances[1] * scales**2
