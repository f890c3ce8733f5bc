"""Streaming: the trainer starts on groups while others are still sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import StepPlan
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import AtLeast, Doc


@dataclass(frozen=True)
class Streaming(Policy):
    """Starts the trainer on groups as soon as they are complete, and updates once the batch is
    whole (StreamRL's stream generation in its synchronous form, arXiv 2504.15930).

    Strictly on-policy: gradients add up over the parts, and the weights change once a step. What is
    marked (p) is in the paper, (i) is inferred:

    - the trainer takes what is complete whenever it is free, rather than a fixed number of
      micro-batches (p); so many groups at a time (i)
    - passes over a part cost what the part does, the exchange of gradients and the optimiser's step
      come once, with the last part (i)

    Needs replicas and trainer on GPUs of their own, and rollouts that do not run ahead of the
    weights. Not modelled: its ranker of output lengths and the dispatch by it (``longest_first``
    with this one is its bound), its asynchronous form (``one_step_off``).
    """

    NAME = "streaming"
    decides = frozenset({"stream_groups"})

    groups: Annotated[
        int,
        AtLeast(1),
        Doc("groups that the trainer takes at a time", unit="groups", source="ours (i)"),
    ] = 1

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides stream_groups."""
        return replace(plan, stream_groups=self.groups)
