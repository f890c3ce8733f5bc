"""Updates that take another time than the simulated ones, as accuracy changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.answer import Progress

FloatArray = NDArray[np.float64]


def slowed(progress: Progress, own: FloatArray, drawn: FloatArray, first: int) -> Progress:
    """The progress with updates that take so many times their seconds, from the ``first`` on: by
    update, shape (updates + 1,), and by draw, shape (draws, updates + 1)."""
    clock = progress.seconds if progress.drawn_seconds is None else progress.drawn_seconds
    return replace(
        progress,
        seconds=_scaled(progress.seconds, own, first),
        drawn_seconds=_scaled(clock, drawn, first),
    )


def _scaled(seconds: FloatArray, factors: FloatArray, first: int) -> FloatArray:
    """The clock after updates that take so many times their time, from the ``first`` on."""
    each = np.diff(seconds, axis=-1) * np.where(
        np.arange(seconds.shape[-1] - 1) < first, 1.0, factors[..., :-1]
    )
    return np.concatenate((np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)), axis=-1)
