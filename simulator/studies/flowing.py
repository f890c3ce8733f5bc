"""Runs whose steps flow into one another: how they answer to prices and lengths, without more runs.

Times go with prices: were all prices twice as high, so would be all times. What remains to know is
how a step grows where one side alone becomes slower: as the larger of what either needs, rounded
where they are alike, for batches differ. Of simulations of the examples with the trainer at 0.5 to
3 times its time, `FLOWING` is off by 6 % at most and `WAVES` by 3 %.

Where rollouts are launched as others end (a refill), or are taken up again by a later step, which
ones make a step's batch changes with every length, so that a few steps tell little about the
lengths; but then a step is what its tokens need, and these follow from the distribution of lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.short_runs import LEVEL, Quadratic, Responses, Sums, longer
from rollcast.simulator.studies.work import Work
from rollcast.simulator.workload.lengths import LengthDistribution
from rollcast.simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]

FLOWING, WAVES = 4.0, 8.0
"""Exponents of the norm that stands for the larger of two: of runs that refill, and of others."""


@dataclass(frozen=True, slots=True)
class Sides:
    """What a step needs of either side, as shares of the step. rollout: the time in which the
    rollouts' GPUs do not wait for the trainer. train: the trainer's. exponent: `FLOWING` or
    `WAVES`."""

    rollout: float
    train: float
    exponent: float

    @classmethod
    def of(cls, summary: Mapping[str, Any], rollout_gpus: int, flows: bool) -> Sides:
        """Of a finished run."""
        whole = summary["makespan_s"]
        waited = summary["bubble_by_cause"]["trainer"] * summary["gpus"] / rollout_gpus
        train = summary["train_s"] / whole if whole > 0 else 0.0
        return cls(min(max(1.0 - waited, 0.01), 1.0), train, FLOWING if flows else WAVES)

    def step(self, rollout: FloatArray, train: FloatArray) -> FloatArray:
        """A step over the run's own, where either side takes so many times as long."""
        p = self.exponent
        now = (self.rollout * rollout) ** p + (self.train * train) ** p
        return np.asarray((now / (self.rollout**p + self.train**p)) ** (1.0 / p))


def refills(scenario: Scenario) -> bool:
    """Whether the policy launches rollouts as others end."""
    plan = scenario.policy.plan(scenario.plan, scenario.policy.init())
    return plan.launch.refill != "none"


def by_tokens(scenario: Scenario, work: Work, inputs: Iterable[str]) -> Responses:
    """How the tokens of a step, and the time that its rollouts and updates need for them, answer to
    the lengths."""
    base = _mean_and_context(scenario)
    result = {}
    for name in inputs:
        tried = []
        for z in (-LEVEL, LEVEL):
            mean, context = _mean_and_context(longer(scenario, name, z))
            tokens = mean / base[0]
            rollout = tokens * work.at_context(context / base[1])
            tried.append(Sums(1.0, rollout, tokens, tokens))
        result[name] = Quadratic.through(*tried)
    return Responses(result)


def _mean_and_context(scenario: Scenario) -> tuple[float, float]:
    """Mean length, and the mean context of a rollout over the time that it runs; tokens."""
    workload = scenario.workload
    if not isinstance(workload, SyntheticWorkload):
        return 1.0, 1.0
    lengths: LengthDistribution = workload.lengths.marginal(workload.max_new_tokens)
    mean = lengths.mean()
    return mean, workload.max_prompt_tokens + 0.5 * (lengths.var() / mean + mean)
