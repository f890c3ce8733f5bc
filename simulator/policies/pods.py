"""PODS: generate many rollouts per prompt, train on an informative few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from simulator.plan import Advantages, Selector, StepPlan
from simulator.policies.params import choice, seed, whole
from simulator.policy import Policy
from simulator.selection import MaxReward, MaxVariance, Percentile, RandomSubset

Rule = Literal["max_variance", "max_reward", "random", "percentile"]


@dataclass(frozen=True)
class PODS(Policy):
    """Policy optimisation with down-sampling (arXiv 2504.13818; YixuanEvenXu/pods).

    Of a group's n rollouts, ``keep`` are trained on, chosen per prompt. (c) read in code, (p) in
    the paper, (i) inferred:

    - max_variance: the subset of greatest reward variance (p), the fewest high rewards among equals
      (c); max_reward, random and percentile are the paper's alternatives (p)
    - advantages from the rollouts kept (p, c), or from the whole group, ``before_selection``, the
      paper's ablation (p)
    - of equal rewards the earliest in the group are kept; percentile rounds down (i)

    keep: m, rollouts kept per group, at most the group size; plans that break this are refused.
    seed: of ``random``, whose draw for a group is a function of (seed, step, group).

    Listed twice, the second selects from what the first kept. Raises ScenarioError
    (``policy.pods.*``) for values out of range.
    """

    keep: int
    rule: Rule = "max_variance"
    advantages: Advantages = "after_selection"
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", whole(self.keep, "policy.pods.keep", 1))
        choice(self.rule, "policy.pods.rule", get_args(Rule))
        choice(self.advantages, "policy.pods.advantages", get_args(Advantages))
        object.__setattr__(self, "seed", seed(self.seed, "policy.pods.seed"))

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
