"""Seer: the first response of a group tells how long the others will be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from rollcast.simulator.plan import StepPlan
from rollcast.simulator.policies.longest_first import DISPATCH, WINDOW, LongestFirst
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Doc


@dataclass(frozen=True)
class Seer(Policy):
    """Dispatches the first rollout of each group as a probe of how long its siblings will be, and
    then the longest first (Seer's context-aware scheduling, later GroupMind, arXiv 2511.14617).

    Strictly on-policy. What is marked (p) is in the paper, (i) is inferred:

    - groups of which nothing is known come first, the first rollout of each before the second (p)
    - a group is expected to be as long as the longest of its responses so far, and the longest
      group is dispatched first (p)
    - rollouts wait in the driver until a replica has a free slot, so that what was learnt
      meanwhile still counts (i: the paper's driver hands out chunks as memory becomes free)
    - which replica: the cluster's routing (p: the least loaded)

    Not modelled: its cutting of responses into chunks that move between replicas over a global KV
    pool, and its drafts from a group's shared suffix tree. By its ablation these two bring the
    greater part (chunks 42 %, order 14 %, drafts 26 to 48 %).
    """

    NAME = "seer"
    decides = DISPATCH

    window: Annotated[
        float,
        WINDOW,
        Doc(
            "rollouts handed to the replicas at once, as a multiple of their slots "
            "(engine.max_seqs each)",
            unit="slots",
            source="ours (i)",
        ),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides dispatch."""
        return LongestFirst("probe", "router", self.window).plan(plan, None)
