"""What a cost model says of each step's phases, in synchronous training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.generation import Engines, generation_s
from rollcast.calibration.fits.polls import seen
from rollcast.calibration.fits.robust import FloatArray
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.results.phases import GRADES

_PRICED = 5
"""Updates of a run that the trainer prices by itself: between their tokens, its phases are as good
as straight lines, and pricing thousands of rows takes seconds."""


@dataclass(frozen=True)
class Phases:
    """Seconds by phase of `simulator.costs.scaled.PHASES`, (steps,). poll_s: of the scenario."""

    seconds: dict[str, FloatArray]
    poll_s: float = 0.0

    def __getitem__(self, phase: str) -> FloatArray:
        return self.seconds[phase]

    def total(self, factors: dict[str, float] | None = None) -> FloatArray:
        """Of a step, its phases one after another, each times its factor."""
        parts = {name: s * (factors or {}).get(name, 1.0) for name, s in self.seconds.items()}
        made = parts.pop("decode") + parts.pop("prefill")
        return np.asarray(np.sum([seen(made, self.poll_s), *parts.values()], axis=0))


def phases_of(
    cost: CostModel,
    engines: Engines,
    colocated: bool,
    batches: Sequence[Batch],
    poll_s: float = 0.0,
) -> Phases:
    """The phases of steps that train on ``batches``. poll_s: as of a scenario."""
    made = np.array(
        [generation_s(cost, engines, batch.prompt_tokens, batch.groups) for batch in batches]
    ).reshape(-1, 2)
    grade, update, rest = _trained(cost, batches)
    ones = np.ones(len(batches))
    switch_s = cost.switch_to_train_s + cost.switch_to_rollout_s if colocated else 0.0
    columns = {
        "decode": made[:, 0],
        "prefill": made[:, 1],
        "log_prob": grade,
        "update": update,
        "sync": cost.sync_s * ones,
        "switch": switch_s * ones,
        "rest": rest,
    }
    return Phases({phase: columns[phase] for phase in PHASES}, poll_s)


def _trained(
    cost: CostModel, batches: Sequence[Batch]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Seconds of grading passes, updates and rest by step, interpolated between some steps."""
    tokens = np.array([batch.tokens for batch in batches], dtype=float)
    order = np.argsort(tokens, kind="stable")
    at = np.unique(np.linspace(0, len(batches) - 1, min(_PRICED, len(batches))).round().astype(int))
    chosen = order[at]
    rows = []
    for place in chosen:
        priced = dict.fromkeys(("grade", "update", "rest"), 0.0)
        for name, seconds in cost.train(batches[place].load).phases_s:
            kind = "grade" if name in GRADES else "rest" if name == "rest" else "update"
            priced[kind] += seconds
        rows.append(list(priced.values()))
    columns = np.array(rows).reshape(-1, 3).T
    known, where = np.unique(tokens[chosen], return_index=True)
    grade, update, rest = (np.interp(tokens, known, column[where]) for column in columns)
    return grade, update, rest
