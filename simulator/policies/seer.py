"""Seer: the first response of a group tells how long the others will be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.longest_first import DISPATCH, WINDOW, LongestFirst
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class Seer(Policy):
    """Submits the first rollout of each group as a probe of the group's length, then the longest
    groups first (Seer's context-aware scheduling, later GroupMind, arXiv 2511.14617).

    Strictly on-policy. (p) marks what the paper says, (i) what we inferred:

    - Groups without a response yet come first: the first rollout of each, then the second, and so
      on (p).
    - A group is predicted to be as long as the longest of its responses so far, and the longest
      group is submitted first (p).
    - Rollouts wait in the driver until a replica has a free slot, so that later predictions can
      change their order (i; the paper's driver submits chunks as memory becomes free).
    - The cluster's routing picks the replica (p: the least loaded one).

    Not modelled: chunks of responses that move between replicas over a global KV pool, and drafts
    from a suffix tree that a group shares. In the paper's ablation these contribute more than the
    order (chunks 42 %, order 14 %, drafts 26 to 48 %).
    """

    NAME = "seer"
    decides = DISPATCH

    window: Annotated[
        float,
        WINDOW,
        Doc(
            "number of rollouts submitted to the replicas at once, as a multiple of their "
            "slots (engine.max_seqs each)",
            unit="slots",
            source="our choice",
        ),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides dispatch."""
        return LongestFirst("probe", "router", self.window).plan(plan, None)
