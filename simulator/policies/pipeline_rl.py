"""PipelineRL: new weights come in while rollouts run on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.core.plan import EnoughGroups, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import LAUNCHES
from rollcast.simulator.values import Above, AtLeast, Doc


@dataclass(frozen=True)
class PipelineRL(Policy):
    """Loads new weights into the replicas while rollouts continue, so that no rollout is ever
    interrupted (PipelineRL's in-flight weight updates, arXiv 2509.19128; ServiceNow/PipelineRL).

    (c) marks what we read in the released code, (p) what the paper says, (i) what we inferred:

    - A constant number of rollouts is in flight (p). A new group starts once there is room for all
      of it (i).
    - After each update the replicas pause between two iterations, load the weights, and continue
      with the KV cache as it is, so that one response has tokens of several versions (p).
    - The trainer takes complete groups as soon as it is free and B are complete (p), the oldest
      first (i).
    - Staleness is not bounded (c, ``max_lag: null``). Rollouts that are unfinished at the end of a
      run are kept for the next (i).
    - Where the trainer is slower than the rollouts, complete groups wait in a queue. The released
      code replaces the oldest of them (c, ``pop_old_data``); here nothing more is launched until
      there is room (i).

    Needs ``cluster.placement: disaggregated``.
    """

    NAME = "pipeline_rl"
    decides = LAUNCHES | {"launch.refill", "launch.run_ahead", "launch.queue", "interrupt", "take"}

    in_flight: Annotated[
        float,
        Above(0, 1000),
        Doc(
            "number of rollouts in flight, as a multiple of B x G; less than 1 lowers the "
            "staleness",
            unit="batches",
            source="our choice; the paper tunes it",
        ),
    ] = 1.0
    queue: Annotated[
        float | None,
        AtLeast(0),
        Doc(
            "maximum number of complete groups that wait for the trainer, as a multiple "
            "of the batch; above it nothing is launched; null: no limit",
            unit="batches",
            source="our choice",
        ),
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch (not what a group needs), stop, interrupt, unfinished, surplus, take."""
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
