"""Fully asynchronous: rollouts never wait for the trainer, nor for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

from rollcast.simulator.plan import EnoughGroups, Exceeded, StepPlan
from rollcast.simulator.policies.ranges import BOUND, LAUNCHES, MULTIPLE
from rollcast.simulator.policy import Policy
from rollcast.simulator.values import Between, Doc


@dataclass(frozen=True)
class FullyAsync(Policy):
    """Rollouts wait neither for the trainer nor for each other, up to a limit in versions (AReaL,
    arXiv 2505.24298; with other limits SkyRL and verl's fully asynchronous recipe).

    What is marked (c) was read in code, (i) is inferred:

    - groups start as long as capacity = min(limit in flight - running, (eta + version + 1) B -
      (accepted + running)) allows (c): no rollout waits for a batch, and a group is trained on at
      most about eta versions after it started
    - the trainer takes the oldest complete groups as soon as it is free and there are B; the
      surplus is kept (c)
    - nothing is trained on that has a token more than eta versions old, in updates at the moment of
      training: the capacity alone does not see to that, since young groups that are complete may be
      taken before older ones that are not. A batch waits for the groups that later ones could not
      take any more (as NeMo-RL's fixed target steps do), or what has grown too old is dropped (TRL,
      prime-rl) or started again; ``exceeded: capacity`` is AReaL's and SkyRL's own rule, where
      it is trained on all the same (c)
    - a fraction bounds a share: at eta 0.5 half a batch beyond what is due may be started, as with
      verl's staleness_threshold s = 0.5 (c). In verl a version is a sync of the weights, here it is
      an update: with a sync every k updates its s is an eta of (1 + s) k - 1
    - new weights interrupt what is in flight, which goes on under them from the tokens it has, its
      KV cache computed anew (c); complete groups keep their tokens of several versions

    Needs replicas and trainer on GPUs of their own unless ``max_staleness`` is 0.
    """

    NAME = "fully_async"
    decides = (
        LAUNCHES | BOUND | {"launch.refill", "launch.run_ahead", "interrupt", "take", "sync_every"}
    )

    max_staleness: Annotated[
        float,
        Between(0, 10_000),
        Doc(
            "eta, versions that the oldest token of what is trained on may be behind; 0 is "
            "synchronous, and with 0.5 half a batch may be one version old",
            unit="versions",
            source="SkyRL's default (c)",
        ),
    ] = 4
    in_flight: Annotated[
        float, MULTIPLE, Doc("rollouts in flight at most, as a multiple of B x G", unit="batches")
    ] = 1.0
    sync_every: Annotated[
        int,
        Between(1, 10_000),
        Doc(
            "updates after which the weights go to the replicas; max_staleness is at least one "
            "less",
            unit="updates",
            source="AReaL's and SkyRL's (c); verl's trigger_parameter_sync_step is 4 (c)",
        ),
    ] = 1

    exceeded: Annotated[
        Exceeded,
        Doc(
            "what becomes of groups that would grow older: wait waits for them in time, restart "
            "starts their prompts again and drop loses them once they have, capacity trains on "
            "them all the same",
            source="ours; AReaL's and SkyRL's is capacity, TRL's and prime-rl's drop (c)",
        ),
    ] = "wait"

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
            refill="rollout",
            run_ahead=math.ceil(versions),
        )
        bound = replace(plan.staleness, max_versions=versions, exceeded=self.exceeded)
        return replace(
            plan,
            launch=launch,
            stop=EnoughGroups(),
            interrupt="for_weights",
            unfinished="resume",
            surplus="carry",
            take="oldest",
            staleness=bound,
            sync_every=self.sync_every,
        )
