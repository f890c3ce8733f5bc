"""Pareto fronts of (hours, cost)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def on_front(hours: ArrayLike, cost: ArrayLike) -> NDArray[np.bool_]:
    """Which points are finite and dominated by no other, shape (n,)."""
    h, c = np.asarray(hours, dtype=float), np.asarray(cost, dtype=float)
    front = np.zeros(len(h), dtype=bool)
    best, at = np.inf, np.inf
    for i in np.lexsort((c, h)):
        if not (np.isfinite(h[i]) and np.isfinite(c[i])):
            continue
        if c[i] < best or (c[i] == best and h[i] == at):
            front[i], best, at = True, c[i], h[i]
    return front


def behind_front(hours: ArrayLike, cost: ArrayLike) -> NDArray[np.float64]:
    """The factor by which both coordinates would have to fall for each point to be on the front,
    shape (n,); infinite for points that are not finite."""
    h, c = np.asarray(hours, dtype=float), np.asarray(cost, dtype=float)
    front = np.flatnonzero(on_front(h, c))
    finite = np.isfinite(h) & np.isfinite(c)
    far = np.where(finite, 1.0, np.inf)
    for j in front:
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.minimum(h / h[j], c / c[j])
        far = np.where(finite, np.maximum(far, off), far)
    return far
