"""What the loop knows of each update: its batch, and how old the batch's tokens were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import Run, StepRecord

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

NO_SELECTION = "none"


@dataclass(frozen=True, eq=False)
class Signals:
    """What a law of progress knows of a run's updates; arrays of shape (updates,).

    rollouts, groups: trained on. group_size: rollouts of a group as sampled, before selection.
    kept: share of the groups' finished rollouts that were trained on (1 without selection). age,
    age_spread: mean and standard deviation, over trained tokens, of the updates between the weights
    that sampled a token and those that it updated. minibatches: optimiser steps of an update.
    seconds: end of the update on the run's clock, from its start. selection: rule that chose among
    a group's rollouts (``MaxVariance``), or ``none``. filtered: whether groups with equal rewards
    were replaced. first_come: whether rollouts that finish late are thrown away, so that what is
    trained on is chosen by length. rates: learning rate over the run's own, as it warms up and
    falls; None for 1.
    """

    rollouts: IntArray
    groups: IntArray
    group_size: FloatArray
    kept: FloatArray
    age: FloatArray
    age_spread: FloatArray
    minibatches: FloatArray
    seconds: FloatArray
    selection: str = NO_SELECTION
    filtered: bool = False
    first_come: bool = False
    rates: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.rollouts)


def signals_of(run: Run, minibatches: float = 1.0) -> Signals:
    """The signals of a recorded run, simulated or real. minibatches: optimiser steps an update."""
    return signals_of_steps(run.steps, run.decisions, run.start_s, minibatches)


def signals_of_steps(
    steps: Sequence[StepRecord],
    decisions: Sequence[Mapping[str, Any]],
    start_s: float = 0.0,
    minibatches: float = 1.0,
) -> Signals:
    """The signals of steps and their logged decisions."""
    trained = np.array([step.trained_rollouts for step in steps], dtype=np.int64)
    taken = np.array([max(step.taken_rollouts, step.trained_rollouts) for step in steps])
    ages = [_moments(step.staleness) for step in steps]
    mean, spread = np.array(ages, dtype=float).reshape(-1, 2).T
    plan = decisions[-1].get("plan", {}) if decisions else {}
    stages = [stage["type"] for stage in plan.get("select", ())]
    return Signals(
        rollouts=trained,
        groups=np.array([step.trained_groups for step in steps], dtype=np.int64),
        group_size=np.array([step.group_size for step in steps], dtype=float),
        kept=np.where(taken > 0, trained / np.maximum(taken, 1), 1.0),
        age=mean,
        age_spread=spread,
        minibatches=np.full(len(steps), float(minibatches)),
        seconds=np.array([step.end_s - start_s for step in steps], dtype=float),
        selection="+".join(stages) or NO_SELECTION,
        filtered=plan.get("filter") is not None,
        first_come=any(first_come(decision.get("plan", {})) for decision in decisions),
    )


def first_come(plan: Mapping[str, Any]) -> bool:
    """Whether a logged plan launches more than the batch needs, and throws away what is late."""
    launch = plan.get("launch", {})
    if launch.get("rollouts", 1.0) > 1.0:
        return True
    stops = plan.get("stop", {}).get("type") == "EnoughGroups"
    return bool(stops and launch.get("over_sampling", 1.0) > 1 and plan["unfinished"] != "resume")


def _moments(tokens_by_age: Mapping[int, int]) -> tuple[float, float]:
    """Mean and standard deviation of the age over tokens; 0 without tokens."""
    total = sum(tokens_by_age.values())
    if not total:
        return 0.0, 0.0
    mean = sum(age * tokens for age, tokens in tokens_by_age.items()) / total
    squares = sum((age - mean) ** 2 * tokens for age, tokens in tokens_by_age.items())
    return mean, float(np.sqrt(squares / total))
