"""Fully asynchronous: rollouts never wait for the trainer, nor for each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from simulator.plan import EnoughGroups, StepPlan
from simulator.policies.params import multiple, whole
from simulator.policy import Policy


@dataclass(frozen=True)
class FullyAsync(Policy):
    """Asynchronous RL as AReaL (arXiv 2505.24298), and with other limits SkyRL and verl's fully
    asynchronous recipe, do it. (c) read in code, (i) inferred:

    - groups start as long as capacity = min(limit in flight - running, (eta + version + 1) B -
      (accepted + running)) allows (c): no rollout waits for a batch, and a group is trained on at
      most about eta versions after it started
    - the trainer takes the oldest complete groups as soon as it is free and there are B; the
      surplus is kept (c)
    - new weights interrupt what is in flight, which goes on under them from the tokens it has, its
      KV cache computed anew (c); complete groups keep their tokens of several versions

    max_staleness: eta, versions that the trainer may be ahead; 0 is synchronous, 4 SkyRL's default
        (c). in_flight: rollouts in flight at most, as a multiple of B x G. From 1.

    Needs replicas and trainer on GPUs of their own unless ``max_staleness`` is 0. Raises
    ScenarioError (``policy.fully_async.*``) for values out of range.
    """

    max_staleness: int = 4
    in_flight: float = 1.0

    def __post_init__(self) -> None:
        eta = whole(self.max_staleness, "policy.fully_async.max_staleness", 0, 10_000)
        object.__setattr__(self, "max_staleness", eta)
        ratio = multiple(self.in_flight, "policy.fully_async.in_flight")
        object.__setattr__(self, "in_flight", ratio)

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """Decides launch.over_sampling, launch.refill, launch.run_ahead, stop, unfinished and
        surplus."""
        launch = replace(
            plan.launch,
            over_sampling=self.in_flight,
            refill="rollout",
            run_ahead=self.max_staleness,
        )
        return replace(plan, launch=launch, stop=EnoughGroups(), unfinished="keep", surplus="carry")
