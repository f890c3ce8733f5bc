"""Fully asynchronous: rollouts never wait for the trainer, nor for each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

from simulator.options import Between, Doc
from simulator.plan import EnoughGroups, StepPlan
from simulator.policies.ranges import MULTIPLE
from simulator.policy import Policy


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
    - new weights interrupt what is in flight, which goes on under them from the tokens it has, its
      KV cache computed anew (c); complete groups keep their tokens of several versions

    Needs replicas and trainer on GPUs of their own unless ``max_staleness`` is 0. Raises
    ScenarioError (``policy.fully_async.*``) for values out of range.
    """

    NAME = "fully_async"
    decides = frozenset(
        {
            "launch.over_sampling",
            "launch.refill",
            "launch.run_ahead",
            "stop",
            "interrupt",
            "unfinished",
            "surplus",
            "take",
            "staleness.max_versions",
            "staleness.exceeded",
        }
    )

    max_staleness: Annotated[
        int,
        Between(0, 10_000),
        Doc(
            "eta, versions that the trainer may be ahead; 0 is synchronous",
            unit="versions",
            source="SkyRL's default (c)",
        ),
    ] = 4
    in_flight: Annotated[
        float, MULTIPLE, Doc("rollouts in flight at most, as a multiple of B x G", unit="batches")
    ] = 1.0

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, launch.run_ahead, stop, interrupt,
        unfinished, surplus, take, and staleness' bound."""
        launch = replace(
            plan.launch,
            over_sampling=self.in_flight,
            refill="rollout",
            run_ahead=math.ceil(self.max_staleness),
        )
        bound = replace(plan.staleness, max_versions=self.max_staleness, exceeded="wait")
        return replace(
            plan,
            launch=launch,
            stop=EnoughGroups(),
            interrupt="for_weights",
            unfinished="resume",
            surplus="carry",
            take="oldest",
            staleness=bound,
        )
