"""Steps drawn again, in stretches (what slows one step slows its neighbours too), and the interval
of what was drawn many times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9  # of the intervals that are shown


def ends(draws: Sequence[float] | NDArray[np.float64], level: float = LEVEL) -> NDArray[np.float64]:
    """Ends of the interval, over the first axis, that holds one more draw with probability
    ``level``: order statistics of rank (n + 1) p, the next higher draw among infinite ones."""
    tail, drawn = (1.0 - level) / 2.0, np.asarray(draws)
    method: Literal["weibull", "higher"] = "weibull" if np.isfinite(drawn).all() else "higher"
    return np.asarray(np.quantile(drawn, [tail, 1.0 - tail], axis=0, method=method))


BLOCK_STEPS = 5


def block_rows(steps: int, wanted: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers of a circular block bootstrap (Politis and Romano, in Exploring the Limits of
    Bootstrap, 1992), shape (draws, wanted): blocks of `BLOCK_STEPS` of ``steps`` rows."""
    length = min(BLOCK_STEPS, steps)
    starts = rng.integers(steps, size=(draws, -(-wanted // length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(draws, -1) % steps
    return np.asarray(rows[:, :wanted])
