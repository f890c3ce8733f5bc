"""A scenario's section ``learning``, with its law read and its start known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.schedule import CONSTANT, RateSchedule, schedule_of
from rollcast.simulator.learning.section import LearningSection, check_target
from rollcast.simulator.workload.rewards import BetaBernoulli
from rollcast.simulator.workload.section import WorkloadSection


@dataclass(frozen=True)
class Learning:
    """How a scenario's accuracy rises.

    start: accuracy before the first update. target: to reach; None for none. minibatches: optimiser
    steps an update. lengths: whether lengths drift with accuracy. own: whether the law is of the
    user's runs. schedule: of the learning rate.
    """

    law: Law
    start: float
    target: float | None = None
    learning_rate_factor: float = 1.0
    minibatches: int = 1
    lengths: bool = False
    own: bool = False
    schedule: RateSchedule = CONSTANT


def build_learning(
    section: LearningSection,
    workload: WorkloadSection,
    minibatches: int,
    folder: Path,
    trainer: Mapping[str, Any] | None,
) -> Learning:
    """folder: start of the law's path. trainer: options of ``engine.trainer``. Raises ScenarioError
    (``learning...``, ``engine.trainer...``)."""
    from rollcast.simulator.learning.data import load, prior

    law = prior() if section.file is None else load(folder / section.file)
    start = section.accuracy
    if start is None:
        start = _success_rate(workload)
        check_target(start, section.target)
    return Learning(
        law,
        start,
        section.target,
        section.learning_rate_factor,
        minibatches,
        section.lengths,
        section.file is not None,
        schedule_of(trainer),
    )


def _success_rate(workload: WorkloadSection) -> float:
    """Raises ScenarioError (``learning.accuracy``) where the scenario states none."""
    rewards = workload.rewards
    if isinstance(rewards, BetaBernoulli) and 0.0 < rewards.mean < 1.0:
        return rewards.mean
    raise ScenarioError(
        "learning.accuracy",
        "missing; give the share of right answers before the first update, or workload.rewards of "
        "family beta_bernoulli, whose mean it is",
    )
