"""Partial rollout: a constant number of rollouts in flight across steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulator.plan import EnoughGroups, StepPlan
from simulator.policies.params import multiple
from simulator.policy import Policy


@dataclass(frozen=True)
class PartialRollout(Policy):
    """verl's partial-rollout recipe. (c) read in code, (i) inferred:

    - about B x G rollouts are in flight at any time; finished ones free slots, and a new group
      starts once there is room for all of it (c; the last half, i)
    - the step ends with the first B groups by completion; the others are cancelled and resumed in
      the next step, and groups complete beyond the batch are kept for it (c)
    - no bound on staleness (c)

    in_flight: rollouts in flight, as a multiple of B x G; 1 in the recipe (c). From 1.

    Raises ScenarioError (``policy.partial_rollout.*``) for values out of range.
    """

    in_flight: float = 1.0

    def __post_init__(self) -> None:
        ratio = multiple(self.in_flight, "policy.partial_rollout.in_flight")
        object.__setattr__(self, "in_flight", ratio)

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, stop, unfinished and surplus."""
        launch = replace(plan.launch, over_sampling=self.in_flight, refill="rollout")
        return replace(
            plan, launch=launch, stop=EnoughGroups(), unfinished="resume", surplus="carry"
        )
