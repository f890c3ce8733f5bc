"""Sets of intervals: arrays of shape (n, 2) of starts and ends, seconds, sorted and disjoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
NOTHING: FloatArray = np.empty((0, 2))


def merged(starts: ArrayLike, ends: ArrayLike) -> FloatArray:
    """The union of intervals; empty ones vanish, touching ones join."""
    start, end = np.asarray(starts, dtype=float), np.asarray(ends, dtype=float)
    real = end > start
    order = np.argsort(start[real], kind="stable")
    start, end = start[real][order], end[real][order]
    if not len(start):
        return NOTHING
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((start[first], reach[last]))


def total_s(intervals: FloatArray) -> float:
    """Seconds covered."""
    return float(np.sum(intervals[:, 1] - intervals[:, 0]))


def union(*sets: FloatArray) -> FloatArray:
    """All of them; at least one."""
    every = np.concatenate(sets)
    return merged(every[:, 0], every[:, 1])


def without(intervals: FloatArray, other: FloatArray) -> FloatArray:
    """``intervals`` outside ``other``."""
    cuts = np.unique(np.concatenate((intervals.ravel(), other.ravel())))
    middle = (cuts[:-1] + cuts[1:]) / 2
    kept = _covers(intervals, middle) & ~_covers(other, middle)
    return merged(cuts[:-1][kept], cuts[1:][kept])


def intersection(intervals: FloatArray, other: FloatArray) -> FloatArray:
    """``intervals`` inside ``other``."""
    return without(intervals, without(intervals, other))


def _covers(intervals: FloatArray, instants: FloatArray) -> NDArray[np.bool_]:
    return np.searchsorted(intervals[:, 0], instants, "right") > np.searchsorted(
        intervals[:, 1], instants, "right"
    )


def before(intervals: FloatArray, instants: FloatArray) -> FloatArray:
    """Seconds covered before each instant, in its shape."""
    if not len(intervals):
        return np.zeros(np.shape(instants))
    covered = np.concatenate(([0.0], np.cumsum(intervals[:, 1] - intervals[:, 0])))
    levels = np.column_stack((covered[:-1], covered[1:])).ravel()
    return np.asarray(np.interp(instants, intervals.ravel(), levels))


def between(intervals: FloatArray, edges: FloatArray) -> FloatArray:
    """Seconds covered from each edge to the next. edges: rising, shape (n + 1,)."""
    return np.diff(before(intervals, edges))
