"""Steps off: the next batches are generated while the last one trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.values import Between, Doc


@dataclass(frozen=True)
class OneStepOff(Policy):
    """Overlaps the training of batch k with the generation of batch k + 1, so that rollouts are one
    version behind the weights they train (verl's one-step-off recipe, among others).

    With more ``steps``, up to that many batches are generated ahead of the weights and wait for the
    trainer in order, so that the tokens of a batch are at most that many versions old when they are
    trained on. With a policy that resumes rollouts in later steps (``april``, ``partial_rollout``)
    they are older. It pays only where rollouts and trainer have GPUs of their own.
    """

    NAME = "one_step_off"
    decides = frozenset({"launch.run_ahead"})

    steps: Annotated[
        int,
        Between(1, 10_000),
        Doc(
            "maximum number of updates that generation is ahead",
            unit="updates",
            source="verl's recipe",
        ),
    ] = 1

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.run_ahead."""
        return replace(plan, launch=replace(plan.launch, run_ahead=self.steps))
