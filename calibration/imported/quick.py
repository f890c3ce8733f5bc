"""Costs that price an update in no time, for the many short runs of a what-if.

A roofline's trainer deals thousands of rows to microbatches each time it is asked. Between batches
of one kind its phases are as good as straight lines, so they are asked for once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from calibration.imported.batches import Batch
from simulator.costs.around import Around
from simulator.costs.base import ScenarioCost, TrainCost, TrainLoad


@dataclass(frozen=True)
class QuickCost(Around):
    """``inner`` with an update's phases as seconds a rollout and a token; its draws are the inner
    model's, of whole updates. times: by which a batch is smaller than the run's, whose seconds are
    meant."""

    phases: tuple[tuple[str, float, float], ...]
    times: float = 1.0

    @classmethod
    def of(cls, inner: ScenarioCost, batches: Sequence[Batch], times: float = 1.0) -> QuickCost:
        """With lines through the updates on these batches; all through the origin."""
        priced = [dict(inner.train(batch.load).phases_s) for batch in batches]
        counts = np.array([[batch.rollouts, batch.tokens] for batch in batches], dtype=float)
        names = list(dict.fromkeys(name for each in priced for name in each))
        found = []
        for name in names:
            seconds = np.array([each.get(name, 0.0) for each in priced])
            tokens = counts[:, 1]
            slope = 0.0
            if np.ptp(tokens) > 0:
                slope = float(np.polyfit(tokens, seconds, 1)[0])
            middle = float(np.mean(seconds / tokens))
            slope = min(max(slope, 0.0), middle)
            each_s = max(float(np.mean((seconds - slope * tokens) / counts[:, 0])), 0.0)
            found.append((name, each_s, slope))
        return cls(inner, tuple(found), times)

    def train(self, load: TrainLoad) -> TrainCost:
        """See `CostModel.train`."""
        return TrainCost(tuple(
            (name, self.times * (each * load.rollouts + slope * load.tokens))
            for name, each, slope in self.phases
        ))  # fmt: skip
