"""Prefix reuse in the trainer: a group's prompt is computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy


@dataclass(frozen=True)
class PrefixReuse(Policy):
    """The trainer computes the prompt of a group once instead of once per rollout (arXiv
    2606.01143).

    It runs the forward of the prefix, then the suffixes against its keys and values, then the
    backward of the prefix with the gradients of all suffixes. The gradients equal those of dense
    training, apart from rounding (p). The cost model prices the time and the memory that this
    saves.
    """

    NAME = "prefix_reuse"
    decides = frozenset({"layout"})

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides layout."""
        return replace(plan, layout="shared_prefix")
