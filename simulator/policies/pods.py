"""PODS: generate many rollouts per prompt, train on an informative few."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import Advantages, Selector, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.loop.selection import MaxReward, MaxVariance, Percentile, RandomSubset
from rollcast.simulator.values import SEED, AtLeast, Doc

Rule = Literal["max_variance", "max_reward", "random", "percentile"]


@dataclass(frozen=True)
class PODS(Policy):
    """Samples many rollouts of each prompt and trains on the most informative of them (PODS, policy
    optimisation with down-sampling, arXiv 2504.13818; YixuanEvenXu/pods).

    Of each group's n rollouts, ``keep`` are trained on.

    (c) marks what we read in the released code, (p) what the paper says, (i) what we inferred:

    - ``max_variance`` selects the subset with the largest variance of rewards (p), and among equals
      the one with the fewest high rewards (c). ``max_reward``, ``random`` and ``percentile`` are
      the paper's alternatives (p).
    - Advantages are computed over the selected rollouts (p, c), or over the whole group with
      ``before_selection``, the paper's ablation (p).
    - Among equal rewards, the first of the group are kept; percentiles round down (i).

    Given twice in a chain, the second selects from the rollouts that the first kept.
    """

    NAME = "pods"
    decides = frozenset({"select", "advantages"})
    builds_on = frozenset({"select"})

    keep: Annotated[
        int,
        AtLeast(1),
        Doc(
            "number of rollouts trained on per group (m); at most the group size",
            unit="rollouts of a group",
        ),
    ]
    rule: Annotated[
        Rule,
        Doc(
            "how they are selected: max_variance (largest variance of rewards), "
            "max_reward, random or percentile (evenly spaced in reward)",
            source="the paper",
        ),
    ] = "max_variance"
    advantages: Annotated[
        Advantages,
        Doc(
            "rollouts over which advantages are computed: after_selection (those "
            "selected) or before_selection (the whole group)",
            source="the paper",
        ),
    ] = "after_selection"
    seed: Annotated[
        int,
        SEED,
        Doc(
            "seed of the rule random, whose draws depend on seed, step and group; "
            "default: the seed of the run"
        ),
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
