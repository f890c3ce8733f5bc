"""When nobody was with the engine: all rollouts were in their environments, or with a judge."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.robust import FloatArray


class Idle:
    """The times in which an engine had no request. submitted_s, end_s: of segments."""

    def __init__(self, submitted_s: FloatArray, end_s: FloatArray) -> None:
        order = np.argsort(submitted_s, kind="stable")
        start, end = submitted_s[order], np.maximum.accumulate(end_s[order])
        gaps = start[1:] > end[:-1]
        self._start = np.asarray(end[:-1][gaps])
        self._end = np.asarray(start[1:][gaps])
        self._before = np.concatenate(([0.0], np.cumsum(self._end - self._start)))

    @classmethod
    def of(cls, segments: dict[str, NDArray[Any]]) -> Idle:
        """Of tables of segments by column, all replicas together."""
        there = (segments["replica"] >= 0) & (segments["end_s"] > segments["submitted_s"])
        return cls(segments["submitted_s"][there], segments["end_s"][there])

    def between(self, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
        """Seconds of such times in each interval, shape (n,)."""
        return self._until(end_s) - self._until(start_s)

    def _until(self, at_s: FloatArray) -> FloatArray:
        """Seconds of such times before each instant."""
        if not len(self._start):
            return np.zeros_like(at_s)
        which = np.searchsorted(self._start, at_s, "right") - 1
        inside = np.minimum(at_s, self._end[which]) - self._start[which]
        idle_s = self._before[np.maximum(which, 0)] + np.maximum(inside, 0.0)
        return np.asarray(np.where(which < 0, 0.0, idle_s))
