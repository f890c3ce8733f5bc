"""Prefix reuse in the trainer: a group's prompt is computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rollcast.simulator.plan import StepPlan
from rollcast.simulator.policy import Policy


@dataclass(frozen=True)
class PrefixReuse(Policy):
    """The trainer computes the prompt that a group shares once, not once per rollout
    (arXiv 2606.01143).

    Prefix forward, suffixes against its keys and values, prefix backward from the gradients they
    gathered: equal to dense training over the reals (p). What it saves in time and memory is the
    cost model's to say; here it is one decision, the layout.
    """

    NAME = "prefix_reuse"
    decides = frozenset({"layout"})

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides layout."""
        return replace(plan, layout="shared_prefix")
