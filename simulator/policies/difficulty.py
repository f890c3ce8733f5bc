"""Difficulty: prompts that the model always or never solves are passed over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import numpy as np

from rollcast.simulator.plan import StepPlan
from rollcast.simulator.policy import GroupOutcome, Policy, StepOutcome
from rollcast.simulator.values import SEED, SHARE, Doc


@dataclass(frozen=True, slots=True)
class Pools:
    """easy, hard: prompts passed over. evicted: evictions so far; addresses the next draw with the
    seed."""

    easy: frozenset[int] = frozenset()
    hard: frozenset[int] = frozenset()
    evicted: int = 0


@dataclass(frozen=True)
class Difficulty(Policy):
    """Passes over prompts whose group's mean reward was at or above a threshold, or at or below
    another one (the difficulty pools of prime-rl).

    What is marked (c) was read in code and its documentation, (i) is inferred:

    - by the mean reward of its latest group a prompt is easy, normal or hard; easy and hard ones
      are no longer sampled (c)
    - a share of them comes back (c, where a run is resumed; here each prompt is spared with that
      chance when it would be evicted, i)
    - the group itself is trained on (c); ``dynamic_sampling`` after this one filters those without
      a gradient, as its online filtering does
    - where all prompts have been evicted, all come back (i)

    Needs prompts that come again: ``workload.prompts`` says how many there are, and without it
    nothing is ever passed over. Rewards are taken to lie between 0 and 1.
    """

    NAME = "difficulty"
    decides = frozenset({"prompts.skip"})
    builds_on = frozenset({"prompts.skip"})

    easy: Annotated[
        float | None,
        SHARE,
        Doc(
            "mean reward at or above which a prompt is evicted as too easy; null evicts none",
            unit="reward",
            source="prime-rl's example; its default is none (c)",
        ),
    ] = 0.95
    hard: Annotated[
        float | None,
        SHARE,
        Doc(
            "mean reward at or below which a prompt is evicted as too hard; null evicts none",
            unit="reward",
            source="prime-rl's example; its default is none (c)",
        ),
    ] = 0.05
    easy_share: Annotated[
        float,
        SHARE,
        Doc("chance that an easy prompt stays after all", unit="share", source="its default (c)"),
    ] = 0.0
    hard_share: Annotated[
        float,
        SHARE,
        Doc("chance that a hard prompt stays after all", unit="share", source="its default (c)"),
    ] = 0.0
    seed: Annotated[int, SEED, Doc("of these chances; the run's if left out")] = 0

    def agree(self) -> None:
        """What is hard is not easy."""
        if self.easy is not None and self.hard is not None and self.hard >= self.easy:
            raise self.refuse("hard", f"must be below easy, {self.easy:g}, got {self.hard:g}")

    def init(self) -> Pools:
        """Empty pools."""
        return Pools()

    def plan(self, plan: StepPlan, state: Pools) -> StepPlan:
        """Adds the pools to the prompts that are passed over."""
        skip = plan.prompts.skip | state.easy | state.hard
        return replace(plan, prompts=replace(plan.prompts, skip=skip))

    def observe(self, state: Pools, outcome: StepOutcome) -> Pools:
        """Puts the prompts of complete groups where they belong."""
        dataset = outcome.plan.prompts.dataset
        if dataset is None:
            return state
        easy, hard, evicted = set(state.easy), set(state.hard), state.evicted
        for group in outcome.complete:
            easy.discard(group.prompt)
            hard.discard(group.prompt)
            pool, share = self._pool(group, easy, hard)
            if pool is None:
                continue
            evicted += 1
            if share == 0.0 or self._draw(evicted) >= share:
                pool.add(group.prompt)
        if len(easy) + len(hard) >= dataset:
            return Pools(evicted=evicted)
        return Pools(frozenset(easy), frozenset(hard), evicted)

    def describe_state(self, state: Pools) -> dict[str, Any]:
        """The sizes of the pools."""
        return {"easy_prompts": len(state.easy), "hard_prompts": len(state.hard)}

    def _pool(
        self, group: GroupOutcome, easy: set[int], hard: set[int]
    ) -> tuple[set[int] | None, float]:
        """(the pool for a group's prompt, the chance that it stays); None for no pool."""
        reward = fmean(group.rewards)
        if self.easy is not None and reward >= self.easy:
            return easy, self.easy_share
        if self.hard is not None and reward <= self.hard:
            return hard, self.hard_share
        return None, 0.0

    def _draw(self, number: int) -> float:
        address = np.random.SeedSequence([self.seed, number])
        return float(np.random.Generator(np.random.Philox(address)).random())
