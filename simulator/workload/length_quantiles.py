"""Lengths through known quantiles, where no lognormal has them.

The log of a length is a rising curve over a standard normal score: straight between the quantiles
that are known, so that each part is lognormal, and straight beyond them. A mean that is known bends
it: the slopes of its ends, or of its last part where a cut share or a longest response fixes that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcast.simulator.workload.halving import halved
from rollcast.simulator.workload.lengths import LengthModel, Quantiles

FARTHEST = 9.0
"""Scores are looked at up to here: beyond is a share of 1e-19."""
_LEAST_SLOPE, _MOST_SLOPE = 1e-6, 1e4
_BENDS = (1e-9, 1.0 - 1e-9)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)

Point = tuple[float, float]
"""(score, log of a length in tokens)."""


@dataclass(frozen=True, slots=True)
class QuantileLengths:
    """Lengths along a curve. corners: of the curve. between_share: of the variance of the score
    that is between prompts."""

    corners: tuple[Point, ...]
    between_share: float
    runaway: float
    runaway_correlation: float
    drift_per_step: float

    @property
    def median_tokens(self) -> float:
        """Of the responses that do not run away."""
        return math.exp(self._log(0.0))

    @property
    def sd(self) -> float:
        """Half the distance of the logs one score from the median."""
        return (self._log(1.0) - self._log(-1.0)) / 2.0

    def _log(self, score: float) -> float:
        scores, logs = np.array(self.corners).T
        return float(np.interp(score, scores, logs))

    @property
    def text(self) -> str:
        """The distribution, in words."""
        return "lognormal between each two figures"

    def figures(self) -> dict[str, Any]:
        """As ``summary.json`` has them."""
        keys = ("median_tokens", "runaway")
        return {"family": "quantiles", **{key: getattr(self, key) for key in keys}}

    def model(self) -> LengthModel:
        """The length model."""
        middle = math.log(self.median_tokens)
        component = Quantiles(
            "lognormal",
            self.median_tokens,
            math.sqrt(self.between_share),
            math.sqrt(1.0 - self.between_share),
            tuple((z, log - middle) for z, log in self.corners),
        )
        return LengthModel(
            (component,), (1.0,), self.runaway, self.drift_per_step, self.runaway_correlation
        )


def curve(points: Sequence[Point], fixed_top: bool, bend: float = 0.5) -> tuple[Point, ...]:
    """The curve through two points or more, as corners up to `FARTHEST`. bend: between 0 and 1, of
    its ends, straight at 0.5: the upper end, or with ``fixed_top`` the last part, rises with it,
    and the lower end is the steeper, the smaller it is. The mean rises with it."""
    (z0, first), (z1, second) = points[:2]
    (z2, third), (z3, last) = points[-2:]
    ratio = bend / (1.0 - bend)
    lower = (second - first) / (z1 - z0) / ratio
    upper = (last - third) / (z3 - z2)
    inner = list(points)
    if fixed_top:
        share = min(max(bend, 1e-6), 1.0 - 1e-6)
        inner.insert(-1, ((z2 + z3) / 2.0, third + share * (last - third)))
    else:
        upper *= ratio
    return (
        (-FARTHEST, first - _slope(lower) * (z0 + FARTHEST)),
        *inner,
        (FARTHEST, last + _slope(upper) * (FARTHEST - z3)),
    )


def _slope(value: float) -> float:
    return min(max(value, _LEAST_SLOPE), _MOST_SLOPE)


def mean_of(corners: Sequence[Point], cap: int) -> float:
    """``E[min(ceil(X), cap)]`` of lengths along a curve, tokens."""
    scores, logs = np.array(corners).T
    at_cap = float(np.interp(math.log(cap), logs, scores))
    edges = np.unique(np.clip(scores, None, at_cap))
    low, high = edges[:-1, None], edges[1:, None]
    z = (low + high + (high - low) * _NODES) / 2.0
    tokens = np.clip(np.exp(np.interp(z, scores, logs)) + 0.5, 1.0, cap)
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    below = float(((tokens * density) @ _WEIGHTS * (high - low)[:, 0] / 2.0).sum())
    return below + cap * 0.5 * math.erfc(at_cap / math.sqrt(2.0))


def means(points: Sequence[Point], fixed_top: bool, cap: int) -> tuple[float, float]:
    """The least and the most that the mean of lengths through these points can be, tokens."""
    least, most = (mean_of(curve(points, fixed_top, bend), cap) for bend in _BENDS)
    return least, most


def bent_to(points: Sequence[Point], fixed_top: bool, mean: float, cap: int) -> tuple[Point, ...]:
    """The curve that has a mean between `means`."""

    def short(bend: float) -> bool:
        return mean_of(curve(points, fixed_top, bend), cap) < mean

    return curve(points, fixed_top, halved(short, *_BENDS)[1])
