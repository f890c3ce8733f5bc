"""SortedRL: batches of many prompts at once, trained on in the order of their lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import EnoughGroups, StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class SortedRL(Policy):
    """Loads the prompts of several batches at once, trains on them in the order of their lengths,
    and loads new ones when all are used up (SortedRL, arXiv 2603.23414).

    (p) marks what the paper says, (i) what we inferred:

    - A load is more prompts than a batch needs, all in flight. An update starts as soon as a batch
      of them is complete, so the shortest are trained on first (p). Groups are counted, not
      rollouts (i).
    - Unfinished rollouts are then interrupted. ``on_policy`` drops their tokens and starts their
      prompts again under the new weights; ``partial`` resumes them (p).
    - New prompts are loaded only when those of the load have been trained on, so that long ones are
      not put off for ever (p), or when a filter has left fewer than a batch of them (i).
    - Of groups that complete at the same moment beyond the batch, ``on_policy`` starts the prompts
      again and ``partial`` keeps them (i).

    The state is the number of groups of the load that have not been trained on.
    """

    NAME = "sorted_rl"
    decides = LAUNCHES | {"launch.source", "take"}
    builds_on = frozenset({"batch.groups"})

    load: Annotated[
        float,
        MULTIPLE,
        Doc(
            "number of prompts loaded at once, as a multiple of the batch",
            unit="batches",
            source="our choice",
        ),
    ] = 4.0
    mode: Annotated[
        Literal["on_policy", "partial"],
        Doc(
            "what happens to interrupted rollouts: on_policy (they start again) or "
            "partial (they resume)",
            source="the paper's two modes",
        ),
    ] = "on_policy"

    def init(self) -> int:
        """Nothing loaded."""
        return 0

    def plan(self, plan: StepPlan, state: int) -> StepPlan:
        """Decides launch's source and multiple, stop, unfinished, surplus and take.

        Whether a batch of the load is left is judged by the batch as planned so far: a policy that
        sets the batch comes before this one.
        """
        if state >= plan.batch.groups:
            over_sampling = state / plan.batch.groups
            launch = replace(plan.launch, source="buffer", over_sampling=over_sampling)
        else:
            launch = replace(plan.launch, source="buffer_first", over_sampling=self.load)
        partial = self.mode == "partial"
        return replace(
            plan,
            launch=launch,
            stop=EnoughGroups(),
            unfinished="resume" if partial else "restart",
            surplus="carry" if partial else "restart",
            take="shortest",
        )

    def observe(self, state: int, outcome: StepOutcome) -> int:
        """The groups of the load that are left."""
        return outcome.buffered_groups + outcome.carried_groups

    def describe_state(self, state: int) -> dict[str, Any]:
        """The groups of the load that are left."""
        return {"loaded_groups": state}
