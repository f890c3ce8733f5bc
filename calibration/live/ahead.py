"""How long a run will still take, from what its steps have taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.noise import RandomWalk
from rollcast.calibration.fits.robust import FloatArray, spread
from rollcast.simulator.studies.drawn import LEVEL, block_rows, ends

LEAST = 3
"""Steps without which nothing is forecast."""
_DRAWS = 400
_MOST_DRAWN = 2_000
"""Steps ahead that are drawn one by one; of more, the sum is scaled."""
_UNSURE, _WANDERS = 0.3, 0.05
"""Of the level of a run: by how much it may be off after one step (this falls with the root of
their number), and by how much it moves later, however many have been seen. About what the errors at
4 to 90 steps of ten genuine runs of TRL and verl were."""


@dataclass(frozen=True, slots=True)
class Left:
    """Seconds from the last logged step to the run's end: median and 90 % interval."""

    seconds: float
    low: float
    high: float


def left(
    seconds: FloatArray, ahead: float, moved: Sequence[int] = (), seed: int = 0
) -> Left | None:
    """The time of ``ahead`` more steps.

    seconds: of the steps so far, whatever they held, shape (steps,). moved: places at which their
    level moved: what was before each is brought to the level at the end, which is as sure as the
    steps since then are many. None for too few steps.
    """
    if len(seconds) < LEAST:
        return None
    if ahead <= 0:
        return Left(0.0, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    level, last = _levelled(seconds, moved)
    logs = np.log(level)
    walk = RandomWalk.of(logs[-last:] if last < len(logs) else logs)
    rows = max(round(min(ahead, _MOST_DRAWN)), 1)
    # how far the mean of the steps so far is from their true one, and what the next ones do
    levels = level[block_rows(len(level), len(level), _DRAWS, rng)].mean(axis=1)
    coming = level[block_rows(len(level), rows, _DRAWS, rng)].mean(axis=1) - level.mean()
    sure = math.hypot(
        _UNSURE / math.sqrt(last),
        _WANDERS,
        1.25 * spread(logs) / math.sqrt(last) if last < len(logs) else 0.0,
    )
    moves = walk.shift + walk.means(ahead, _DRAWS, rng) + sure * rng.standard_normal(_DRAWS)
    totals = ahead * np.maximum(levels + coming, 0.0) * np.exp(moves)
    low, high = ends(totals, LEVEL).tolist()
    return Left(float(np.median(totals)), low, high)


def _levelled(seconds: FloatArray, moved: Sequence[int]) -> tuple[FloatArray, int]:
    """All steps at the level of the last part, and the number of steps of that."""
    cuts = sorted({place for place in moved if 0 < place <= len(seconds) - LEAST})
    parts = np.split(seconds, cuts)
    level = float(np.median(parts[-1]))
    levelled = np.concatenate([part * (level / float(np.median(part))) for part in parts])
    return levelled, len(parts[-1])
