"""A level that wanders over a run: where it is at the end, and how far it may go from there.

A local level (Harvey, Forecasting, Structural Time Series Models, 1989), without a filter: medians
of the quarters of a series say how much the level moves beyond what its noise explains. Where it
moves, the end of the series counts more than its beginning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from calibration.robust import FloatArray

_QUARTERS = 4
_LEAST = 12


@dataclass(frozen=True, slots=True)
class Wander:
    """shift: of the level at the end of a series of logs from its median. step_sd: by which the
    level moves a step, a random walk."""

    shift: float = 0.0
    step_sd: float = 0.0

    @classmethod
    def of(cls, logs: FloatArray) -> Wander:
        """Of a series in order of time; none that is told for fewer than 12 values."""
        logs = logs[np.isfinite(logs)]
        if len(logs) < _LEAST:
            return cls()
        quarters = np.array_split(logs, _QUARTERS)
        levels = np.array([np.median(part) for part in quarters])
        spread = np.median([_spread(part) for part in quarters])
        each = len(logs) / _QUARTERS
        noise = 1.2533**2 * spread**2 / each
        moved = max(float(np.mean(np.diff(levels) ** 2)) - 2 * noise, 0.0)
        if moved == 0.0:
            return cls()
        gain = moved / (moved + noise)
        return cls(gain * float(levels[-1] - np.median(logs)), math.sqrt(moved / each))

    def drawn(self, ahead: list[int], rng: np.random.Generator) -> FloatArray:
        """How far the log of the level went by each of the steps ahead, shape (steps,)."""
        if not self.step_sd or not ahead:
            return np.zeros(len(ahead))
        walk = np.cumsum(self.step_sd * rng.standard_normal(max(ahead)))
        return np.asarray(walk[np.array(ahead) - 1])


def _spread(values: FloatArray) -> float:
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
