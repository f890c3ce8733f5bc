"""Streaming: the trainer starts on groups while others are still sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.values import AtLeast, Doc


@dataclass(frozen=True)
class Streaming(Policy):
    """The trainer starts on groups as soon as they are complete, and updates once the batch is
    complete (StreamRL's stream generation in its synchronous form, arXiv 2504.15930).

    Strictly on-policy: gradients accumulate over the parts of a batch, and the weights change once
    per step. (p) marks what the paper says, (i) what we inferred:

    - The trainer takes complete groups whenever it is free, rather than a fixed number of
      microbatches (p); ``groups`` of them at a time (i).
    - Each part costs its own passes. The gradients are exchanged and the optimiser steps once, with
      the last part (i).

    Needs ``cluster.placement: disaggregated``, and rollouts that do not run ahead of the weights.
    Not modelled: StreamRL's predictor of output lengths and the dispatch by it (``longest_first``
    with this policy is its upper bound), and its asynchronous form (``one_step_off``).
    """

    NAME = "streaming"
    decides = frozenset({"stream_groups"})

    groups: Annotated[
        int,
        AtLeast(1),
        Doc(
            "number of groups that the trainer takes at a time", unit="groups", source="our choice"
        ),
    ] = 1

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides stream_groups."""
        return replace(plan, stream_groups=self.groups)
