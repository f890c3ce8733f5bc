"""Partial rollout: a constant number of rollouts in flight across steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import EnoughGroups, StepPlan
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class PartialRollout(Policy):
    """Keeps a constant number of rollouts in flight, and resumes in the next step those that a step
    leaves (verl's partial-rollout recipe).

    What is marked (c) was read in code, (i) is inferred:

    - about B x G rollouts are in flight at any time; finished ones free slots, and a new group
      starts once there is room for all of it (c; the last half, i)
    - the step ends with the first B groups by completion; the others are cancelled and resumed in
      the next step, and groups complete beyond the batch are kept for it (c)
    - no bound on staleness (c)
    """

    NAME = "partial_rollout"
    decides = LAUNCHES | {"launch.refill"}

    in_flight: Annotated[
        float,
        MULTIPLE,
        Doc("rollouts in flight, as a multiple of B x G", unit="batches", source="the recipe (c)"),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, stop, unfinished and surplus."""
        launch = replace(plan.launch, over_sampling=self.in_flight, refill="rollout")
        return replace(
            plan, launch=launch, stop=EnoughGroups(), unfinished="resume", surplus="carry"
        )
