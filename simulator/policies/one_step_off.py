"""One step off: the next batch is generated while the last one trains."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulator.plan import StepPlan
from simulator.policy import Policy


@dataclass(frozen=True)
class OneStepOff(Policy):
    """Overlaps the training of batch k with the generation of batch k + 1, so that rollouts are one
    version behind the weights they train (verl's one-step-off recipe, among others).

    Worth the staleness only where rollouts and trainer have GPUs of their own.
    """

    NAME = "one_step_off"
    decides = frozenset({"launch.run_ahead"})

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.run_ahead."""
        return replace(plan, launch=replace(plan.launch, run_ahead=1))
