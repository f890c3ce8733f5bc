"""Where the level of a series of logs moved, told step by step as the series comes in.

At each step every place of the last `WINDOW` is tried as the first of a new level: a regression of
the series on its covariates and on a step there (Quandt, J. Am. Stat. Assoc. 55, 1960), so that a
series that follows its covariates elsewhere is no shift. The t value is brought down where
neighbours are alike (first-order autocorrelation), and held against a level that is spent over the
places and over all steps to come (alpha spending: 1 / k (k + 1) sums to 1), so that a whole run,
however long, raises a false alarm with `ALPHA` at most. One step that stands out is
its own best place, which is too short to be told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.robust import FloatArray

ALPHA = 0.05
"""Chance of a false alarm in a run, over all of its series and steps."""
BEFORE, AFTER = 8, 3
"""Steps of the old level and of the new one, at least."""
WINDOW = 40
_MOST = 150
_LEAST_NOISE = 0.01
_MOST_ALIKE = 0.9


@dataclass(frozen=True, slots=True)
class Shift:
    """place, noticed: values at which it began and was seen. ratio: new level over old."""

    place: int
    noticed: int
    ratio: float


def shifts(
    logs: FloatArray,
    covariates: FloatArray,
    least_ratio: float,
    series: int = 1,
    noise: float = _LEAST_NOISE,
) -> list[Shift]:
    """The shifts of a series, in order; after each, the test begins anew with the new level.

    logs: shape (steps,), finite. covariates: shape (steps, k), finite. least_ratio: smaller shifts
    are of no interest. series: tested beside each other, which share `ALPHA`. noise: least standard
    deviation, such as that of a clock that ticks.
    """
    shifted: list[Shift] = []
    start = 0
    for end in range(BEFORE + AFTER, len(logs) + 1):
        rows = slice(max(start, end - _MOST), end)
        if rows.stop - rows.start < BEFORE + AFTER:
            continue
        spent = end - BEFORE - AFTER + 1
        alpha = ALPHA / series / (spent * (spent + 1))
        shift = _last(logs[rows], covariates[rows], math.log(least_ratio), alpha, noise)
        if shift is not None:
            place, level = shift
            start = rows.start + place
            shifted.append(Shift(start, end - 1, math.exp(level)))
    return shifted


def _last(
    y: FloatArray, covariates: FloatArray, least: float, alpha: float, noise: float
) -> tuple[int, float] | None:
    """Place and size of a shift among the last rows; None where there is none."""
    from scipy.special import stdtr

    count = len(y)
    moving = covariates[:, np.ptp(covariates, axis=0) > 1e-9]
    terms, _ = np.linalg.qr(np.column_stack([np.ones(count), moving - moving.mean(axis=0)]))
    places = np.arange(max(BEFORE, count - WINDOW), count)
    free = count - terms.shape[1] - 1
    if free < 3 or not len(places):
        return None
    steps = (np.arange(count)[:, None] >= places).astype(float)
    left_y = y - terms @ (terms.T @ y)
    left_steps = steps - terms @ (terms.T @ steps)
    squares = (left_steps**2).sum(axis=0)
    squares = np.where(squares > 0.05, squares, np.nan)  # else the covariates tell as much
    sizes = left_steps.T @ left_y / squares
    rest = np.maximum(left_y @ left_y - sizes**2 * squares, 0.0)
    deviation = np.maximum(np.sqrt(rest / free), noise)
    values = np.abs(sizes) * np.sqrt(squares) / deviation
    if np.isnan(values).all():
        return None
    best = int(np.nanargmax(values))
    place, size = int(places[best]), float(sizes[best])
    if abs(size) < least or place > count - AFTER:  # too small, or too new to be told
        return None
    errors = left_y - size * left_steps[:, best]
    alike = _alike(errors)
    value = float(values[best]) * math.sqrt((1 - alike) / (1 + alike))
    if 2 * stdtr(free, -value) * len(places) > alpha:
        return None
    return place, size


def _alike(errors: FloatArray) -> float:
    """First-order autocorrelation, with what is lost to few values added (Kendall 1954), and a
    standard error more (Bartlett 1946): noise that is more alike than it looks raises alarms."""
    total = float(errors @ errors)
    if total <= 0:
        return 0.0
    correlation = float(errors[1:] @ errors[:-1]) / total
    correlation += (1 + 3 * correlation) / len(errors)
    correlation += math.sqrt(max(1 - correlation * correlation, 0.0) / len(errors))
    return min(max(correlation, 0.0), _MOST_ALIKE)
