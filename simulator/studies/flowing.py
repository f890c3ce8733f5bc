"""Runs whose steps overlap or refill: response to prices and lengths, without further runs.

All times scale with prices. If one side alone becomes slower, a step grows as the p-norm of both
sides' needs; over the examples with the trainer at 0.5 to 3 times its time, `FLOWING` is off by at
most 6 % and `WAVES` by 3 %. Few steps say little about lengths where rollouts refill or resume;
there a step follows the tokens, and these the distribution of lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.results.phases import PHASES
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.short_runs import LEVEL, Quadratic, Responses, Sums, longer
from rollcast.simulator.studies.work import Work
from rollcast.simulator.workload.lengths import LengthDistribution
from rollcast.simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]

TRAINER = tuple(
    name for name in PHASES if name not in ("generation", "tail", "wait", "sync", "switch")
)
"""Phases of the trainer, with what else it holds a step for."""
FLOWING, WAVES = 4.0, 8.0
"""Exponents of the norm that stands for the larger of two: of runs that refill, and of others."""


@dataclass(frozen=True, slots=True)
class Sides:
    """Needs of rollouts and trainer as shares of a step. exponent: `FLOWING` or `WAVES`."""

    rollout: float
    train: float
    exponent: float

    @classmethod
    def of(cls, summary: Mapping[str, Any], flows: bool) -> Sides:
        """Of a finished run."""
        step_s = max(summary["step_s"], 1e-12)
        waited = summary["replicas_wait_s"]["trainer"] / step_s
        train = sum(summary["phases"][name]["s"] for name in TRAINER) / step_s
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
    """Responses to lengths of a step's tokens, and of the time of its rollouts and updates."""
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
