"""Tail batching: many short rounds, and now and then a long one for the prompts they left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import AllDone, EnoughGroups, StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class TailBatching(Policy):
    """Trains on the prompts that finish first, and from time to time on a batch of those that did
    not (RollPacker's tail batching, arXiv 2509.21009; Farrrrland/RollPacker). Strictly on-policy.

    (c) marks what we read in the released code, (p) what the paper says, (i) what we inferred:

    - A short round launches more new prompts than the batch needs, and more rollouts of each than
      its group needs. It trains on the groups that complete first, discards the others, and queues
      their prompts (p, c).
    - Once a batch of prompts is queued, a long round samples the oldest of them, without extra
      rollouts, to the end (p, c).
    - A group that completes beyond the batch is discarded, and its prompt is queued (c).
    - Numbers of launched groups and rollouts round up, where the released code rounds down (i).

    The state is the number of queued prompts.
    """

    NAME = "tail_batching"
    decides = LAUNCHES | {"launch.source", "launch.rollouts"}
    builds_on = frozenset({"batch.groups"})

    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups launched in a short round, as a multiple of the batch",
            unit="batches",
            source="the paper",
        ),
    ] = 1.25
    rollouts: Annotated[
        float,
        MULTIPLE,
        Doc(
            "rollouts launched per group in a short round, as a multiple of the group size",
            unit="groups",
            source="the paper",
        ),
    ] = 1.25

    def init(self) -> int:
        """An empty queue."""
        return 0

    def plan(self, plan: StepPlan, state: int) -> StepPlan:
        """Decides launch's source and multiples, stop, unfinished and surplus.

        Whether a batch of prompts is queued is judged by the batch as planned so far: a policy that
        sets the batch comes before this one.
        """
        if state >= plan.batch.groups:
            launch = replace(plan.launch, source="buffer", over_sampling=1.0, rollouts=1.0)
            return replace(
                plan, launch=launch, stop=AllDone(), unfinished="restart", surplus="restart"
            )
        launch = replace(
            plan.launch, source="fresh", over_sampling=self.over_sampling, rollouts=self.rollouts
        )
        return replace(
            plan, launch=launch, stop=EnoughGroups(), unfinished="restart", surplus="restart"
        )

    def observe(self, state: int, outcome: StepOutcome) -> int:
        """The prompts queued after the step."""
        return outcome.buffered_groups

    def describe_state(self, state: int) -> dict[str, Any]:
        """The length of the queue."""
        return {"queued_prompts": state}
