"""SortedRL: batches of many prompts at once, trained on in the order of their lengths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.plan import EnoughGroups, StepPlan
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy, StepOutcome
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class SortedRL(Policy):
    """Loads the prompts of several batches at once and trains on them in the order of their
    lengths; no new ones come until all of these are used up (SortedRL, arXiv 2603.23414).

    What is marked (p) is in the paper, (i) is inferred:

    - a load is more prompts than a batch needs, all in flight; an update begins as soon as a batch
      of them is complete, the shortest first (p); the unit is the group (i)
    - what is unfinished then is interrupted: on_policy drops its tokens and its prompts start anew
      under the new weights; partial keeps them and goes on from them (p)
    - new prompts come only once those of the load are trained on, so that no long one is put off
      for ever (p); where a filter has left less than a batch of them, with the rest (i)
    - groups that complete at one instant beyond the batch: on_policy starts them anew, partial
      keeps them (i)

    The state is the number of groups of the load that have not been trained on.
    """

    NAME = "sorted_rl"
    decides = LAUNCHES | {"launch.source", "take"}
    builds_on = frozenset({"batch.groups"})

    load: Annotated[
        float,
        MULTIPLE,
        Doc("prompts of a load, as a multiple of the batch's", unit="batches", source="ours (i)"),
    ] = 4.0
    mode: Annotated[
        Literal["on_policy", "partial"],
        Doc(
            "what becomes of interrupted rollouts: on_policy starts them anew, partial resumes",
            source="the paper's two (p)",
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
