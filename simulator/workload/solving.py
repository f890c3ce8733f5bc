"""Median, spread and runaway share of lengths whose mean, cut share or percentiles are known.

Logs and papers state figures of responses after they were cut. The model is that of
`simulator.workload.lengths`, lognormal: ``ln X = mu + sd * z``, a response has
``min(ceil(X), cap)`` tokens, and a share ``runaway`` runs to the cap whatever X is. Every figure
rises with ``mu``, so one figure fixes it by bisection. Further figures fix ``sd`` and ``runaway``,
by a scan for a change of sign: at a fixed mean, a percentile may rise and fall with ``sd``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.workload.halving import halved
from rollcast.simulator.workload.lengths import LARGEST_CAP

FloatArray = NDArray[np.float64]

FINEST_SD, LEAST_SD, MOST_SD = 0.003, 0.1, 3.0
"""Spreads of the log of all responses that are looked at, below `LEAST_SD` only where two lengths
are known that nothing wider has. No length preset has responses to one prompt that spread less than
0.107; three times the widest preset's spread is 3.5."""
NONE_CUT = 5e-4
"""A cut share that is stated as 0 is less than this: logs show three digits."""
LEAST_RUNAWAY, MOST_RUNAWAY = 1e-7, 0.9
_GRID = 80  # of a scan
_ZOOMS = 5  # each 1 / `_GRID` of the one before
_HALVINGS = 60
_NODES = np.arange(-8.6, 8.61, 0.2)  # of a standard normal: the trapezoid rule
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


@dataclass(frozen=True, slots=True)
class Point:
    """Parameters, each a number or arrays that broadcast. runaway: None where it follows from the
    cut share ``cut``."""

    mu: FloatArray
    sd: FloatArray
    runaway: FloatArray
    cap: int
    cut: float | None = None

    def log_below(self, log_tokens: FloatArray) -> FloatArray:
        """Log of ``P(ln X <= log_tokens)``."""
        from scipy.special import log_ndtr

        return np.asarray(log_ndtr((log_tokens - self.mu) / self.sd))

    @property
    def beyond(self) -> FloatArray:
        """``P(X > cap - 1)``: the share that X itself cuts."""
        from scipy.special import ndtr

        return np.asarray(ndtr((self.mu - math.log(max(self.cap - 1, 0.5))) / self.sd))

    @property
    def runaways(self) -> FloatArray:
        """The runaway share; below 0 where X alone cuts more than ``cut``."""
        if self.cut is None:
            return self.runaway
        return np.asarray((self.cut - self.beyond) / np.maximum(1.0 - self.beyond, 1e-300))

    @property
    def log_kept(self) -> FloatArray:
        """Log of the factor that turns ``P(X <= n)`` into ``P(N <= n)``, n below the cap."""
        if self.cut is None:
            return np.log1p(-self.runaway)
        return math.log1p(-self.cut) - self.log_below(np.array(math.log(max(self.cap - 1, 0.5))))

    def quantile(self, q: float) -> FloatArray:
        """The length that a share q does not exceed, not rounded; infinite where that is cut."""
        from scipy.special import ndtri

        share = q * np.exp(-self.log_kept)
        inside = np.minimum(share, 1.0 - 1e-16)
        tokens = np.exp(np.minimum(self.mu + self.sd * ndtri(inside), 700.0))
        return np.where(share >= 1.0, np.inf, tokens)

    def mean(self) -> FloatArray:
        """``E[min(ceil(X), cap)]`` with runaways; the sum of survival over whole tokens by Euler
        and Maclaurin."""
        from scipy.special import log_ndtr

        at = math.log(self.cap)
        z = (at - self.mu) / self.sd
        if self.cut is None:
            first = np.exp(self.mu + self.sd**2 / 2 + log_ndtr(z - self.sd))
            below = np.exp(log_ndtr(z))
            mean = first + self.cap * (1.0 - below) + 0.5 * below
            return np.asarray(self.runaway * self.cap + (1.0 - self.runaway) * mean)
        z = (math.log(max(self.cap - 1, 0.5)) - self.mu) / self.sd
        of_uncut = np.exp(self.mu + self.sd**2 / 2 + log_ndtr(z - self.sd) - log_ndtr(z)) + 0.5
        return np.asarray(self.cut * self.cap + (1.0 - self.cut) * of_uncut)


class Figure(Protocol):
    """A figure that is known. key: as a scenario names it; wanted: its value."""

    @property
    def key(self) -> str:
        """Its key."""

    @property
    def wanted(self) -> float:
        """Its value."""

    def of(self, at: Point) -> FloatArray:
        """Of such lengths; rises with mu."""

    def __hash__(self) -> int:
        """It is asked for the same more than once."""


@dataclass(frozen=True, slots=True)
class Mean:
    """Mean of all responses, cut ones included."""

    wanted: float
    key: str = "mean_tokens"

    def of(self, at: Point) -> FloatArray:
        """See `Figure`."""
        return at.mean()


@dataclass(frozen=True, slots=True)
class Percentile:
    """The length that ``q`` of the responses do not exceed."""

    wanted: float
    q: float
    key: str

    def of(self, at: Point) -> FloatArray:
        """See `Figure`."""
        return at.quantile(self.q)


@dataclass(frozen=True, slots=True)
class CutShare:
    """Share of responses at the cap, where the runaway share is known."""

    wanted: float
    key: str = "cut_share"

    def of(self, at: Point) -> FloatArray:
        """See `Figure`."""
        return np.asarray(at.runaway + (1.0 - at.runaway) * at.beyond)


@dataclass(frozen=True, slots=True)
class Longest:
    """Median of the longest response of a step, were none cut. between: share of the variance of
    the log length that is between prompts."""

    wanted: float
    groups: int
    group_size: int
    between: float
    key: str = "max_tokens"

    @property
    def z(self) -> float:
        """The length in standard deviations of the log of all responses, from the median."""
        from scipy.special import log_ndtr

        wanted = math.log(0.5) / self.groups
        within = math.sqrt(max(1.0 - self.between, 1e-6))
        level = math.sqrt(self.between) * _NODES

        def short(z: float) -> bool:
            inside = np.exp(self.group_size * log_ndtr((z - level) / within))
            return math.log(max(float(inside @ _WEIGHTS), 1e-300)) < wanted

        return halved(short, 0.0, 14.0, _HALVINGS)[1]

    def of(self, at: Point) -> FloatArray:
        """See `Figure`."""
        return np.exp(np.minimum(at.mu + at.sd * self.z, 700.0))


@dataclass(frozen=True, slots=True)
class Family:
    """What is being solved. runaway: None where it follows from ``cut``."""

    cap: int
    runaway: float | None
    cut: float | None = None
    most_cut: float = 1.0  # of X itself

    def at(self, first: Figure, sd: FloatArray, runaway: FloatArray | None = None) -> Point:
        """The parameters at which ``first`` is met, for each spread, shape as ``sd``."""
        runaways = np.asarray(self.runaway or 0.0) if runaway is None else runaway
        sd, runaways = np.broadcast_arrays(np.asarray(sd, dtype=float), runaways)
        low = np.full(sd.shape, -8.0)
        high = np.minimum(math.log(self.cap) + 12.0 * sd, math.log(LARGEST_CAP))
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            short = first.of(Point(middle, sd, runaways, self.cap, self.cut)) < first.wanted
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return Point(high, sd, runaways, self.cap, self.cut)

    def possible(self, first: Figure, at: Point) -> NDArray[np.bool_]:
        """Whether lengths of these parameters meet ``first`` and cut no more than is known."""
        met = np.abs(first.of(at) / first.wanted - 1.0) < 1e-6
        return np.asarray(met & (at.runaways >= -1e-9) & (at.beyond <= self.most_cut * (1 + 1e-9)))


def scan(
    residual: Callable[[FloatArray], FloatArray], low: float, high: float, near: float
) -> float | None:
    """The root nearest to ``near`` of a function of an array; None where it does not change sign.
    It is NaN where it is not defined."""
    grid = np.geomspace(low, high, _GRID)
    values = residual(grid)
    for zoom in range(_ZOOMS):
        with np.errstate(invalid="ignore"):
            changes = np.flatnonzero(values[:-1] * values[1:] <= 0.0)
        if not len(changes):
            # the function's end may lie within a rounding of the root
            return float(grid[np.nanargmin(np.abs(values))]) if zoom else None
        place = changes[np.argmin(np.abs(np.log(grid[changes] / near)))]
        grid = np.geomspace(grid[place], grid[place + 1], _GRID)
        values = residual(grid)
    return float(grid[np.nanargmin(np.abs(values))])


def _spread_grid(least: float) -> FloatArray:
    return np.geomspace(max(least, LEAST_SD), MOST_SD, 4 * _GRID)


@lru_cache(maxsize=16)
def spreads(family: Family, first: Figure, least: float) -> FloatArray:
    """The spreads at which ``first`` can be met, ascending; none where it cannot. Not to be
    changed."""
    grid = _spread_grid(least)
    return np.asarray(grid[family.possible(first, family.at(first, grid))])


def has_spread(family: Family, first: Figure, least: float, near: float) -> bool:
    """Whether there are any `spreads`: soon told where the one next to ``near`` is."""
    grid = _spread_grid(least)
    nearest = grid[[np.argmin(np.abs(grid - near))]]
    met = bool(family.possible(first, family.at(first, nearest))[0])
    return met or bool(len(spreads(family, first, least)))


def solve_sd(
    family: Family, first: Figure, second: Figure, least: float, near: float
) -> float | None:
    """The spread at which both are met; None where there is none."""

    def residual(sd: FloatArray) -> FloatArray:
        return _off(family, first, second, family.at(first, sd))

    usual = scan(residual, max(least, LEAST_SD), MOST_SD, near)
    if usual is not None or least >= LEAST_SD:
        return usual
    return scan(residual, max(least, FINEST_SD), LEAST_SD, near)


def solve_runaway(family: Family, first: Figure, second: Figure, sd: float) -> float | None:
    """The runaway share at which both are met at a spread; None where there is none."""

    def residual(shares: FloatArray) -> FloatArray:
        return _off(family, first, second, family.at(first, np.array(sd), shares))

    return scan(residual, LEAST_RUNAWAY, MOST_RUNAWAY, 2e-3)


def solve_both(
    family: Family, figures: tuple[Figure, Figure, Figure], least: float
) -> tuple[float, float] | None:
    """Spread and runaway share at which three figures are met; None where there are none: by least
    squares from the best of a grid."""
    from scipy.optimize import least_squares

    first, *rest = figures
    sd, share = _both(max(least, LEAST_SD))
    at = family.at(first, sd, share)
    offs = np.array([_off(family, first, figure, at) for figure in rest])
    size = np.where(np.isfinite(offs).all(axis=0), (offs**2).sum(axis=0), np.inf)
    for start in np.argsort(size, axis=None)[:3]:
        if not math.isfinite(size.flat[start]):
            return None

        def residuals(logs: FloatArray) -> FloatArray:
            at = family.at(first, np.exp(logs[:1]), np.exp(logs[1:]))
            found = [figure.of(at)[0] / figure.wanted for figure in rest]
            return np.asarray(np.log(np.clip(found, 1e-6, 1e6)))

        ends = [[math.log(grid.min()), math.log(grid.max())] for grid in (sd, share)]
        place = np.clip(
            np.log([sd.flat[start], share.flat[start]]),
            [end[0] + 1e-9 for end in ends],
            [end[1] - 1e-9 for end in ends],
        )
        best = least_squares(residuals, place, bounds=list(zip(*ends, strict=True)), xtol=1e-12)
        met = family.possible(first, family.at(first, np.exp(best.x[:1]), np.exp(best.x[1:])))
        if met[0] and np.abs(best.fun).max() < 1e-5:
            return math.exp(best.x[0]), math.exp(best.x[1])
    return None


def _both(least: float) -> tuple[FloatArray, FloatArray]:
    sd = np.geomspace(least, MOST_SD, _GRID)
    share = np.geomspace(LEAST_RUNAWAY, MOST_RUNAWAY, _GRID // 2)
    first, second = np.meshgrid(sd, share)
    return first, second


def span(
    family: Family, figures: Sequence[Figure], least: float, runaway: bool
) -> tuple[float, float]:
    """The least and the most that the last figure can be below the cap where the others are met;
    nan where it cannot. runaway: whether the runaway share is open."""
    first, *between, last = figures
    sd, share = _both(max(least, FINEST_SD))
    if not runaway:
        sd, share = sd[:1], np.full_like(sd[:1], family.runaway or 0.0)
    at = family.at(first, sd, share)
    values = last.of(at)
    values[~family.possible(first, at) | (values >= family.cap)] = np.nan
    if between:  # between two spreads of which one is too narrow for the figure and one too wide
        off = _off(family, first, between[0], at)
        with np.errstate(invalid="ignore", divide="ignore"):
            met = off[:, :-1] * off[:, 1:] <= 0.0
            part = (off[:, :-1] / (off[:, :-1] - off[:, 1:]))[met]
        values = values[:, :-1][met] * (1.0 - part) + values[:, 1:][met] * part
    values = values[np.isfinite(values)]
    return (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)


def _off(family: Family, first: Figure, second: Figure, at: Point) -> FloatArray:
    with np.errstate(divide="ignore", invalid="ignore"):
        off = np.log(second.of(at) / second.wanted)
    off = np.where(np.isposinf(off), 50.0, off)
    return np.asarray(np.where(family.possible(first, at), off, np.nan))


def most_mean(family: Family, least: float) -> float:
    """The largest mean of lengths that are cut no more than is known, tokens."""
    sd = np.array([max(least, LEAST_SD)])
    share = family.most_cut if family.cut is None else family.cut
    from scipy.special import ndtri

    mu = math.log(max(family.cap - 1, 0.5)) + sd * ndtri(min(share, 1.0 - 1e-9))
    runaway = np.array([family.runaway or 0.0])
    return float(Point(mu, sd, runaway, family.cap, family.cut).mean()[0])


def first_and_rest(figures: Sequence[Figure]) -> tuple[Figure, tuple[Figure, ...]]:
    """The figure that fixes mu, and the others: the mean, where it is known."""
    ordered = sorted(figures, key=lambda figure: not isinstance(figure, Mean))
    return ordered[0], tuple(ordered[1:])
