"""Steps drawn again, in stretches: what slows one step slows its neighbours too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK_STEPS = 5


def block_rows(steps: int, wanted: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers of a circular block bootstrap (Politis and Romano, in Exploring the Limits of
    Bootstrap, 1992), shape (draws, wanted): blocks of `BLOCK_STEPS` of ``steps`` rows."""
    length = min(BLOCK_STEPS, steps)
    starts = rng.integers(steps, size=(draws, -(-wanted // length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(draws, -1) % steps
    return np.asarray(rows[:, :wanted])
