"""Steps drawn again, in stretches: what slows one step slows its neighbours too."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK_STEPS = 5


def block_rows(steps: int, wanted: int, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Numbers of ``wanted`` steps out of ``steps`` for each draw, shape (draws, wanted): stretches
    of `BLOCK_STEPS` consecutive ones (fewer, if there are fewer) from anywhere, the last followed
    by the first (a circular block bootstrap; Politis and Romano, in Exploring the Limits of
    Bootstrap, 1992)."""
    length = min(BLOCK_STEPS, steps)
    starts = rng.integers(steps, size=(draws, -(-wanted // length)))
    rows = (starts[:, :, None] + np.arange(length)).reshape(draws, -1) % steps
    return np.asarray(rows[:, :wanted])
