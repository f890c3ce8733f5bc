"""What a cost model says of each step's phases, in synchronous training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.generation import Engines, generation_s
from rollcast.calibration.fits.robust import FloatArray
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.results.phases import GRADES
from rollcast.simulator.workload.halving import halved

_SCATTER = 0.06
"""Of generation at equal tokens, standard deviation of the log, by which what is near a look falls
on either side of it: 2 to 7 % in genuine runs of two cores."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_FAR, _ROUNDS = 1.5, 40
_NEAR = 0.02
"""Of the pause, by which means may differ."""


def seen(seconds: FloatArray, poll_s: float) -> FloatArray:
    """When what takes so long is found done; the same where nothing is waited for."""
    return poll_s * np.ceil(seconds / poll_s - 1e-9) if poll_s > 0 else seconds


def level(forecast: FloatArray, measured: FloatArray, poll_s: float) -> tuple[float, float]:
    """The factor on ``forecast`` under which, once it is rounded up, it has the mean of what was
    ``measured``, and the standard deviation of its log; both in seconds, shape (steps,).

    Where many factors do, as where every step ends before the first look, the one under which a
    step ends half way between two looks, as near as those come.
    """
    scatter = np.exp(_SCATTER * _NODES)
    weights = _WEIGHTS / _WEIGHTS.sum()
    wanted = float(np.mean(measured))
    usual = math.log(max(wanted - poll_s / 2, poll_s / 4) / float(np.mean(forecast)))

    def edge(mean_s: float) -> float:
        """The log of the factor from which on the mean is beyond so much."""

        def short(log: float) -> bool:
            step_s = seen(math.exp(log) * forecast[:, None] * scatter, poll_s)
            return bool(np.mean(step_s @ weights) < mean_s)

        return sum(halved(short, usual - _FAR, usual + _FAR, _ROUNDS)) / 2

    least, most = edge(wanted - _NEAR * poll_s), edge(wanted + _NEAR * poll_s)
    error = poll_s / math.sqrt(12 * len(measured)) / wanted
    return math.exp(min(max(usual, least), most)), math.hypot(error, (most - least) / math.sqrt(12))


_PRICED = 5
"""Updates of a run that the trainer prices by itself: between their tokens, its phases are as good
as straight lines, and pricing thousands of rows takes seconds."""


OPENING = "opening"
GENERATED = ("decode", "prefill", OPENING)
"""What of a step's seconds is generation."""


@dataclass(frozen=True)
class Phases:
    """Seconds by phase of `simulator.costs.scaled.PHASES`, and of the opening of generation,
    (steps,). poll_s: of the scenario."""

    seconds: dict[str, FloatArray]
    poll_s: float = 0.0

    def __getitem__(self, phase: str) -> FloatArray:
        return self.seconds[phase]

    def total(self, factors: dict[str, float] | None = None) -> FloatArray:
        """Of a step, its phases one after another, each times its factor."""
        parts = {name: s * (factors or {}).get(name, 1.0) for name, s in self.seconds.items()}
        made = np.sum([parts.pop(name) for name in GENERATED if name in parts], axis=0)
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
    opening = {OPENING: np.array([cost.opening_s(batch.rollouts) for batch in batches])}
    return Phases({**{phase: columns[phase] for phase in PHASES}, **opening}, poll_s)


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
