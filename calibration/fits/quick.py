"""Costs that price an update in no time, for the many short runs of a what-if.

Between batches of one kind a trainer's phases are as good as straight lines: asked for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.batches import Batch
from rollcast.simulator.costs.base import AdjustedCost, CostModel, TrainCost, TrainLoad


@dataclass(frozen=True)
class QuickCost(AdjustedCost):
    """``inner`` with an update's phases as seconds a rollout and a token; its draws are the inner
    model's, of whole updates. times: by which a batch is smaller than the run's, whose seconds are
    meant."""

    phases: tuple[tuple[str, float, float], ...]
    times: float = 1.0

    @classmethod
    def of(cls, inner: CostModel, batches: Sequence[Batch], times: float = 1.0) -> QuickCost:
        """With lines through the updates on these batches; all through the origin."""
        priced = [dict(inner.train(batch.load).phases_s) for batch in batches]
        counts = np.array([[batch.rollouts, batch.tokens] for batch in batches], dtype=float)
        names = list(dict.fromkeys(name for seconds_by in priced for name in seconds_by))
        phases = []
        for name in names:
            seconds = np.array([seconds_by.get(name, 0.0) for seconds_by in priced])
            tokens = counts[:, 1]
            slope = 0.0
            if np.ptp(tokens) > 0:
                slope = float(np.polyfit(tokens, seconds, 1)[0])
            middle = float(np.mean(seconds / tokens))
            slope = min(max(slope, 0.0), middle)
            each_s = max(float(np.mean((seconds - slope * tokens) / counts[:, 0])), 0.0)
            phases.append((name, each_s, slope))
        return cls(inner, tuple(phases), times)

    def train(self, load: TrainLoad) -> TrainCost:
        """See `CostModel.train`."""
        return TrainCost(
            tuple(
                (name, self.times * (fixed * load.rollouts + slope * load.tokens))
                for name, fixed, slope in self.phases
            )
        )
