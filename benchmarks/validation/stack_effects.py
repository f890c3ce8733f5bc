"""What published runs take over their forecast, by stack: a mixed model fitted to logarithms.

log(measured / forecast) = mean of all stacks + stack + source + rest, the last three normal, plus
an error of known variance that the forecast's own draws give. Stacks of which little was measured
are drawn towards the mean of all (partial pooling: Gelman and Hill 2007, chapter 12).
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
    """A fitted model. between_stacks, between_sources, within: standard deviations."""

    mean: float
    between_stacks: float
    between_sources: float
    within: float
    observed: Sequence[Observed]

    def of(self, stack: str) -> Effect:
        """For a source of ``stack`` that was not seen; also of a stack that was not."""
        covariance = _covariance(self.observed, self.variances)
        ones = np.ones(len(self.observed))
        same = np.array([one.stack == stack for one in self.observed], dtype=float)
        weights = np.linalg.solve(covariance, np.column_stack([ones, same]))
        precision = float(ones @ weights[:, 0])
        shared = self.variances[0] * same
        logs = np.array([math.log(one.ratio) for one in self.observed])
        mean = self.mean + float(self.variances[0] * weights[:, 1] @ (logs - self.mean))
        left = self.variances[0] * (1.0 - float(shared @ weights[:, 1]))
        off = (1.0 - float(shared @ weights[:, 0])) ** 2 / precision  # of the mean of all
        return Effect(math.exp(mean), math.sqrt(left + off + sum(self.variances[1:])))

    @property
    def variances(self) -> tuple[float, float, float]:
        return (self.between_stacks**2, self.between_sources**2, self.within**2)


def fit(observed: Sequence[Observed]) -> StackEffects:
    """By maximum likelihood, restricted to contrasts (REML: Patterson and Thompson 1971).

    Raises ScenarioError for fewer than three sources.
    """
    from scipy.optimize import minimize

    if len({one.source for one in observed}) < 3:
        raise ScenarioError("observed", "fewer than three sources say nothing about a spread")
    logs = np.array([math.log(one.ratio) for one in observed])

    def loss(log_sds: Array) -> float:
        variances = np.exp(2.0 * np.clip(log_sds, math.log(_LEAST_SD), 2.0))
        covariance = _covariance(observed, variances)
        _, log_determinant = np.linalg.slogdet(covariance)
        mean, precision = _mean(covariance, logs)
        off = logs - mean
        quadratic = float(off @ np.linalg.solve(covariance, off))
        return 0.5 * (float(log_determinant) + math.log(precision) + quadratic)

    starts = ([-1.5, -1.5, -1.5], [-0.5, -2.5, -1.5], [-2.5, -0.5, -1.5])
    best = min((minimize(loss, start, method="Nelder-Mead") for start in starts), key=_value)
    sds = np.exp(np.clip(best.x, math.log(_LEAST_SD), 2.0))
    mean, _ = _mean(_covariance(observed, sds**2), logs)
    return StackEffects(mean, float(sds[0]), float(sds[1]), float(sds[2]), observed)


def _value(found: object) -> float:
    return float(getattr(found, "fun"))  # noqa: B009 - scipy's result is untyped


def _mean(covariance: Array, logs: Array) -> tuple[float, float]:
    """The mean of all by generalised least squares, and its precision."""
    weights = np.linalg.solve(covariance, np.ones(len(logs)))
    precision = float(weights.sum())
    return float(weights @ logs) / precision, precision


def _covariance(observed: Sequence[Observed], variances: Sequence[float] | Array) -> Array:
    stacks = np.array([one.stack for one in observed])
    sources = np.array([one.source for one in observed])
    between_stacks, between_sources, within = variances
    covariance = between_stacks * (stacks[:, None] == stacks)
    covariance = covariance + between_sources * (sources[:, None] == sources)
    own = [within + one.sd**2 for one in observed]
    return np.asarray(covariance + np.diag(own), dtype=float)
