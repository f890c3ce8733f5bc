"""Colocated asynchrony: more than a batch in flight, suspended while the same GPUs train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.plan import EnoughGroups, StepPlan
from rollcast.simulator.policies.ranges import BOUND, LAUNCHES
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Between, Doc


@dataclass(frozen=True)
class ColocateAsync(Policy):
    """Keeps more than a batch of groups outstanding on GPUs that rollouts and trainer share:
    unfinished rollouts are suspended while an update runs, and go on over versions of the weights
    (the trainer mode colocate_async of verl's V1 trainer).

    What is marked (c) was read in code and its documentation, (i) is inferred:

    - each step starts a batch of prompts, the first one ``warmup`` batches more, so that one plus
      ``warmup`` batches are outstanding when a step begins (c)
    - the step ends once a batch of groups is complete; the rest is aborted, keeps its tokens, and
      goes on under the new weights with its KV cache computed anew (c)
    - the oldest complete groups are trained on first, the surplus is kept (c)
    - groups whose oldest token is more than ``max_staleness`` versions old are dropped, or waited
      for (c); complete ones too, as nothing older is ever trained on (i)
    """

    NAME = "colocate_async"
    decides = LAUNCHES | BOUND | {"take"}

    warmup: Annotated[
        float,
        Between(0, 1000),
        Doc(
            "batches outstanding beyond the one that is needed",
            unit="batches",
            source="its documentation's num_warmup_batches (c)",
        ),
    ] = 1.0
    max_staleness: Annotated[
        int | None,
        Between(0, 10_000),
        Doc(
            "versions that a group's oldest token may be behind; null is no bound",
            unit="versions",
            source="its default max_off_policy_threshold (c)",
        ),
    ] = 8
    exceeded: Annotated[
        Literal["drop", "wait"],
        Doc(
            "what becomes of groups beyond the bound: drop loses them, wait lets no group grow so "
            "old: it starts fewer and waits for the oldest",
            source="its default max_off_policy_strategy (c)",
        ),
    ] = "drop"

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, stop, unfinished, surplus, take and staleness' bound."""
        bound = replace(plan.staleness, max_versions=self.max_staleness, exceeded=self.exceeded)
        return replace(
            plan,
            launch=replace(plan.launch, over_sampling=1.0 + self.warmup),
            stop=EnoughGroups(),
            unfinished="resume",
            surplus="carry",
            take="oldest",
            staleness=bound,
        )
