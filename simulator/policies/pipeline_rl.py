"""PipelineRL: new weights come in while rollouts run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import EnoughGroups, StepPlan
from rollcast.simulator.policies.ranges import LAUNCHES
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Above, AtLeast, Doc


@dataclass(frozen=True)
class PipelineRL(Policy):
    """Brings new weights to the replicas while rollouts run on: no rollout is ever interrupted
    (PipelineRL's in-flight weight updates, arXiv 2509.19128; ServiceNow/PipelineRL).

    What is marked (c) was read in code, (p) is in the paper, (i) is inferred:

    - a constant number of rollouts is in flight; a new group starts once finished ones have left
      room for it (p; that a group waits for room for all of it, i)
    - after each update the replicas pause between two iterations, take the weights, and go on with
      the keys and values that they have, so that one response has tokens of several versions (p)
    - the trainer takes the oldest complete groups as soon as it is free and there are B (p; the
      order, i)
    - no bound on staleness (c, ``max_lag: null``); what is unfinished at the end of a run is kept
      for the next one (i)
    - where the trainer is the slower side, groups wait in a queue: the released code replaces the
      oldest of them (c, ``pop_old_data``), here nothing more is launched until there is room (i)

    Needs replicas and trainer on GPUs of their own.
    """

    NAME = "pipeline_rl"
    decides = LAUNCHES | {"launch.refill", "launch.run_ahead", "launch.queue", "interrupt", "take"}

    in_flight: Annotated[
        float,
        Above(0, 1000),
        Doc(
            "rollouts in flight, as a multiple of B x G; below 1 the oldest token is fresher",
            unit="batches",
            source="ours; the paper tunes it (i)",
        ),
    ] = 1.0
    queue: Annotated[
        float | None,
        AtLeast(0),
        Doc(
            "complete groups that may wait for the trainer, as a multiple of the batch, before "
            "nothing more is launched; null is no limit",
            unit="batches",
            source="ours (i)",
        ),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch, but for what a group needs, stop, interrupt, unfinished, surplus and
        take."""
        launch = replace(
            plan.launch,
            over_sampling=self.in_flight,
            refill="rollout",
            run_ahead=1,
            queue=self.queue,
        )
        return replace(
            plan,
            launch=launch,
            stop=EnoughGroups(),
            interrupt="never",
            unfinished="resume",
            surplus="carry",
            take="oldest",
        )
