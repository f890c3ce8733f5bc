"""Partial rollout: a constant number of rollouts in flight across steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import EnoughGroups, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import LAUNCHES, MULTIPLE
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class PartialRollout(Policy):
    """Keeps a constant number of rollouts in flight and resumes unfinished ones in the next step
    (verl's partial-rollout recipe).

    (c) marks what we read in the code, (i) what we inferred:

    - About B x G rollouts are in flight at any time. Finished ones free slots (c), and a new group
      starts once there is room for all of it (i).
    - The step ends with the first B complete groups. The others are cancelled and resumed in the
      next step; groups complete beyond the batch are kept for it (c).
    - Staleness is not bounded (c).
    """

    NAME = "partial_rollout"
    decides = LAUNCHES | {"launch.refill"}

    in_flight: Annotated[
        float,
        MULTIPLE,
        Doc(
            "number of rollouts in flight, as a multiple of B x G",
            unit="batches",
            source="verl's recipe",
        ),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, stop, unfinished and surplus."""
        launch = replace(plan.launch, over_sampling=self.in_flight, refill="rollout")
        return replace(
            plan, launch=launch, stop=EnoughGroups(), unfinished="resume", surplus="carry"
        )
