"""Steps of a run against their forecast."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.robust import FloatArray
from rollcast.simulator.studies.drawn import LEVEL, ends


@dataclass(frozen=True)
class Compared:
    """What steps took and what was forecast, seconds; arrays have shape (steps,).

    low_s, high_s: of each step's 90 % interval. total_s: forecast of the run time, the median of
    its draws, which is more than the sum of the steps' where a few long ones are to be expected.
    """

    measured_s: FloatArray
    forecast_s: FloatArray
    low_s: FloatArray
    high_s: FloatArray
    total_s: float
    total_low_s: float
    total_high_s: float

    @classmethod
    def of(
        cls,
        measured_s: FloatArray,
        draws: FloatArray,
        forecast_s: FloatArray | None = None,
        or_else: Sequence[FloatArray] = (),
    ) -> Compared:
        """draws: of the steps, shape (draws, steps). forecast_s: the median draw where None.
        or_else: draws of other courses that the run may take: intervals hold those of all."""
        low, high = ends(draws, LEVEL)
        totals = draws.sum(axis=1)
        total_low, total_high = ends(totals, LEVEL).tolist()
        for other in or_else:
            other_low, other_high = ends(other, LEVEL)
            low, high = np.minimum(low, other_low), np.maximum(high, other_high)
            other_low, other_high = ends(other.sum(axis=1), LEVEL).tolist()
            total_low, total_high = min(total_low, other_low), max(total_high, other_high)
        point = np.median(draws, axis=0) if forecast_s is None else forecast_s
        total_s = float(np.median(totals))
        return cls(measured_s, point, low, high, total_s, total_low, total_high)

    @property
    def errors(self) -> FloatArray:
        """Of each step: forecast over measured, less 1."""
        return self.forecast_s / np.maximum(self.measured_s, 1e-12) - 1.0

    @property
    def median_error(self) -> float:
        """Median over the steps of the error of the forecast, relative, without sign."""
        return float(np.median(np.abs(self.errors)))

    @property
    def total_error(self) -> float:
        """Of the run time, relative, with its sign: above 0 the forecast is too long."""
        return self.total_s / float(self.measured_s.sum()) - 1.0

    @property
    def inside(self) -> FloatArray:
        """For each step, whether its interval holds what was measured, 0 or 1."""
        real = self.measured_s
        return np.asarray((real >= self.low_s) & (real <= self.high_s), dtype=float)

    @property
    def covered(self) -> float:
        """Share of the steps inside their interval."""
        return float(self.inside.mean())

    @property
    def total_covered(self) -> bool:
        """Whether the run time lies inside its interval."""
        return self.total_low_s <= float(self.measured_s.sum()) <= self.total_high_s

    def by_step(self) -> dict[str, list[float]]:
        """The arrays as plain JSON types."""
        names = ("measured_s", "forecast_s", "low_s", "high_s")
        return {name: getattr(self, name).tolist() for name in names}
