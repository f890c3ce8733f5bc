"""Colocated asynchrony: more than a batch in flight, suspended while the same GPUs train."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import EnoughGroups, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import BOUND, LAUNCHES
from rollcast.simulator.values import Between, Doc


@dataclass(frozen=True)
class ColocateAsync(Policy):
    """Keeps more than a batch of groups in flight on GPUs that rollouts and trainer share:
    unfinished rollouts are suspended during an update and continue under the new weights (the
    trainer mode colocate_async of verl's V1 trainer).

    (c) marks what we read in the code, (i) what we inferred:

    - Each step launches a batch of prompts, and the first step ``warmup`` batches more, so that 1 +
      ``warmup`` batches are outstanding when a step begins (c).
    - The step ends once a batch of groups is complete. The others are aborted, keep their tokens,
      and continue under the new weights, which recompute their KV cache (c).
    - The oldest complete groups are trained on first; those beyond the batch are kept (c).
    - Groups whose oldest token is more than ``max_staleness`` versions old are dropped or waited
      for (c), complete groups too, so that nothing older is ever trained on (i).
    """

    NAME = "colocate_async"
    decides = LAUNCHES | BOUND | {"take"}

    warmup: Annotated[
        float,
        Between(0, 1000),
        Doc(
            "number of batches outstanding beyond the current one",
            unit="batches",
            source="num_warmup_batches in verl's documentation",
        ),
    ] = 1.0
    max_staleness: Annotated[
        int | None,
        Between(0, 10_000),
        Doc(
            "maximum staleness of a group's oldest token; null: no bound",
            unit="versions",
            source="default of verl's max_off_policy_threshold",
        ),
    ] = 8
    exceeded: Annotated[
        Literal["drop", "wait"],
        Doc(
            "what happens to groups beyond the bound: drop (discarded) or wait (no group "
            "becomes that stale: fewer are launched, and a batch waits for the oldest)",
            source="default of verl's max_off_policy_strategy",
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
