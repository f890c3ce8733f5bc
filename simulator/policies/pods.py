"""PODS: generate many rollouts per prompt, train on an informative few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.loop.selection import MaxReward, MaxVariance, Percentile, RandomSubset
from rollcast.simulator.plan import Advantages, Selector, StepPlan
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import SEED, AtLeast, Doc

Rule = Literal["max_variance", "max_reward", "random", "percentile"]


@dataclass(frozen=True)
class PODS(Policy):
    """Generates many rollouts of each prompt and trains on an informative few (PODS, policy
    optimisation with down-sampling, arXiv 2504.13818; YixuanEvenXu/pods).

    Of a group's n rollouts, ``keep`` are trained on, chosen per prompt.

    What is marked (c) was read in code, (p) is in the paper, (i) is inferred:

    - max_variance: the subset of greatest reward variance (p), the fewest high rewards among equals
      (c); max_reward, random and percentile are the paper's alternatives (p)
    - advantages from the rollouts kept (p, c), or from the whole group, ``before_selection``, the
      paper's ablation (p)
    - of equal rewards the earliest in the group are kept; percentile rounds down (i)

    Listed twice, the second selects from what the first kept.
    """

    NAME = "pods"
    decides = frozenset({"select", "advantages"})
    builds_on = frozenset({"select"})

    keep: Annotated[
        int,
        AtLeast(1),
        Doc("m, rollouts kept per group, at most the group size", unit="rollouts of a group"),
    ]
    rule: Annotated[Rule, Doc("how they are chosen", source="the paper's own rule (p)")] = (
        "max_variance"
    )
    advantages: Annotated[
        Advantages,
        Doc(
            "whether advantages come from the rollouts kept or from the whole group",
            source="the paper's own choice (p, c)",
        ),
    ] = "after_selection"
    seed: Annotated[
        int,
        SEED,
        Doc("of random, whose draw is a function of (seed, step, group); the run's if left out"),
    ] = 0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Adds a stage to the selection, and decides where the advantages come from."""
        stage = self._selector(plan.step)
        return replace(plan, select=(*plan.select, stage), advantages=self.advantages)

    def _selector(self, step: int) -> Selector:
        if self.rule == "max_variance":
            return MaxVariance(self.keep)
        if self.rule == "max_reward":
            return MaxReward(self.keep)
        if self.rule == "percentile":
            return Percentile(self.keep)
        return RandomSubset(self.keep, self.seed, step)
