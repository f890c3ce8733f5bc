"""Tail batching: many short rounds, and now and then a long one for the prompts they left."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import AllDone, EnoughGroups, StepPlan
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy, StepOutcome
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class TailBatching(Policy):
    """Trains on the prompts that are answered first, and now and then on a batch of those that were
    not (RollPacker's tail batching, arXiv 2509.21009; Farrrrland/RollPacker). Strictly on-policy.

    What is marked (c) was read in code, (p) is in the paper, (i) is inferred:

    - a short round launches more fresh prompts than the batch needs and more rollouts of each than
      its group needs; the first groups to have enough responses win, the rest is thrown away and
      its prompts are queued (p, c)
    - a long round, once a batch of prompts is queued: the oldest of them, no more rollouts than
      needed, to the very end (p, c)
    - a group that completes beyond the batch loses its tokens, and its prompt is queued (c)
    - launches round up where the code rounds down (i)

    The state is the number of prompts queued.
    """

    NAME = "tail_batching"
    decides = LAUNCHES | {"launch.source", "launch.rollouts"}
    builds_on = frozenset({"batch.groups"})

    over_sampling: Annotated[
        float,
        MULTIPLE,
        Doc(
            "groups launched in a short round, as a multiple of the batch's",
            unit="batches",
            source="the paper (p)",
        ),
    ] = 1.25
    rollouts: Annotated[
        float,
        MULTIPLE,
        Doc(
            "rollouts launched of each group in a short round, as a multiple of its size",
            unit="groups",
            source="the paper (p)",
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
