"""Fully asynchronous: rollouts never wait for the trainer, nor for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollcast.simulator.core.plan import EnoughGroups, Exceeded, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.policies.ranges import BOUND, LAUNCHES, MULTIPLE
from rollcast.simulator.values import Between, Doc


@dataclass(frozen=True)
class FullyAsync(Policy):
    """Rollouts wait neither for the trainer nor for each other, within a bound on staleness (AReaL,
    arXiv 2505.24298; with other bounds SkyRL and verl's fully asynchronous recipe).

    (c) marks what we read in the code, (i) what we inferred:

    - Groups are launched while the capacity min(maximum in flight - running, (eta + version + 1) B
      - (accepted + running)) is positive (c). No rollout waits for a batch, and a group is trained
      on at most about eta versions after its start.
    - The trainer takes the oldest complete groups as soon as it is free and B groups are complete;
      the others are kept (c).
    - No token more than eta versions old is trained on, counted in updates at the time of training.
      The capacity alone does not ensure this, because complete young groups may be taken before
      unfinished old ones. So a batch waits for the groups that a later batch could no longer take
      (like NeMo-RL's target steps), or groups that are too old are dropped or started again. With
      ``exceeded: capacity``, the rule of AReaL, SkyRL and NeMo-RL's ready-first sampler, they are
      trained on all the same (c). With ``window`` they are dropped, and nothing but ``in_flight``
      limits what is launched (c, NeMo-RL's windowed sampler, TRL and prime-rl).
    - A fractional eta bounds a share: with eta 0.5, half a batch may be launched early, as with
      verl's staleness_threshold s = 0.5 (c). verl counts syncs of the weights, rollcast counts
      updates: with a sync every k updates, verl's s is an eta of (1 + s) k - 1.
    - New weights interrupt the rollouts in flight, which continue from their tokens with a
      recomputed KV cache (c, AReaL, slime, verl). With ``weights: keep`` they continue with the one
      that they have (c, SkyRL, TRL, prime-rl, NeMo-RL). Complete groups keep their tokens of
      several versions.

    Needs ``cluster.placement: disaggregated`` unless ``max_staleness`` is 0.
    """

    NAME = "fully_async"
    decides = (
        LAUNCHES | BOUND | {"launch.refill", "launch.run_ahead", "interrupt", "take", "sync_every"}
    )

    max_staleness: Annotated[
        float,
        Between(0, 10_000),
        Doc(
            "maximum staleness of any token trained on (eta); 0: synchronous; 0.5: half a "
            "batch may be one version behind",
            unit="versions",
            source="SkyRL's default",
        ),
    ] = 4
    in_flight: Annotated[
        float,
        MULTIPLE,
        Doc("maximum number of rollouts in flight, as a multiple of B x G", unit="batches"),
    ] = 1.0
    sync_every: Annotated[
        int,
        Between(1, 10_000),
        Doc(
            "number of updates between weight syncs; at most max_staleness + 1",
            unit="updates",
            source="AReaL and SkyRL; verl's trigger_parameter_sync_step is 4",
        ),
    ] = 1

    exceeded: Annotated[
        Exceeded,
        Doc(
            "what happens to groups that would exceed max_staleness: wait (fewer are "
            "launched, and a batch waits for the oldest), restart (their prompts start "
            "again), drop (discarded), window (discarded, and no fewer are launched) or "
            "capacity (they are trained on all the same)",
            source=("our choice; AReaL and SkyRL: capacity; TRL and prime-rl: window"),
        ),
    ] = "wait"
    refill: Annotated[
        Literal["rollout", "group"],
        Doc(
            "what makes room for another group: finished rollouts, as many as a group has, or "
            "a complete group",
            source="TRL and prime-rl: rollout; slime, AReaL, SkyRL and NeMo-RL: group",
        ),
    ] = "rollout"
    weights: Annotated[
        Literal["recompute", "keep"],
        Doc(
            "what new weights do to the KV cache of rollouts in flight: recompute, or keep",
            source="AReaL, slime and verl: recompute; SkyRL, TRL, prime-rl and NeMo-RL: keep",
        ),
    ] = "recompute"

    def agree(self) -> None:
        """Tokens of weights that stay for so many updates grow that old."""
        if self.max_staleness < self.sync_every - 1:
            raise self.refuse(
                "max_staleness",
                f"must be at least {self.sync_every - 1}, since the weights go to the replicas "
                f"every {self.sync_every} updates, got {self.max_staleness:g}",
            )

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, launch.run_ahead, stop, interrupt,
        unfinished, surplus, take, staleness' bound and sync_every."""
        whole = float(self.max_staleness).is_integer()
        versions = int(self.max_staleness) if whole else self.max_staleness
        launch = replace(
            plan.launch,
            over_sampling=self.in_flight,
            refill=self.refill,
            run_ahead=math.ceil(versions),
        )
        bound = replace(plan.staleness, max_versions=versions, exceeded=self.exceeded)
        return replace(
            plan,
            launch=launch,
            stop=EnoughGroups(),
            interrupt="for_weights" if self.weights == "recompute" else "never",
            unfinished="resume",
            surplus="carry",
            take="oldest",
            staleness=bound,
            sync_every=self.sync_every,
        )
