"""Difficulty: prompts that the model always or never solves are passed over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import fmean
from typing import Annotated, Any

import numpy as np

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import GroupOutcome, Policy, StepOutcome
from rollcast.simulator.values import SEED, SHARE, Doc


@dataclass(frozen=True, slots=True)
class Pools:
    """easy, hard: prompts passed over. evicted: evictions so far, which seed the next draw."""

    easy: frozenset[int] = frozenset()
    hard: frozenset[int] = frozenset()
    evicted: int = 0


@dataclass(frozen=True)
class Difficulty(Policy):
    """Skips prompts whose last group had a mean reward at or above one threshold, as too easy, or
    at or below another, as too hard (the difficulty pools of prime-rl).

    (c) marks what we read in the code, (i) what we inferred:

    - The mean reward of its latest group makes a prompt easy, normal or hard. Easy and hard prompts
      are no longer sampled (c).
    - A share of them is kept: in prime-rl, when a run resumes (c); here with that probability
      whenever a prompt would be skipped (i).
    - The group itself is still trained on (c). A ``dynamic_sampling`` after this policy filters
      groups without a gradient, as prime-rl's online filtering does.
    - Once all prompts are skipped, all return (i).

    Needs ``workload.prompts``, the size of the dataset: without it no prompt returns, and none is
    ever skipped. Rewards are expected to lie between 0 and 1.
    """

    NAME = "difficulty"
    decides = frozenset({"prompts.skip"})
    builds_on = frozenset({"prompts.skip"})

    easy: Annotated[
        float | None,
        SHARE,
        Doc(
            "mean reward of a group at or above which its prompt is skipped as too easy; "
            "null: none",
            unit="reward",
            source="prime-rl's example; by default it skips none",
        ),
    ] = 0.95
    hard: Annotated[
        float | None,
        SHARE,
        Doc(
            "mean reward of a group at or below which its prompt is skipped as too hard; "
            "null: none",
            unit="reward",
            source="prime-rl's example; by default it skips none",
        ),
    ] = 0.05
    easy_share: Annotated[
        float,
        SHARE,
        Doc(
            "probability that an easy prompt is kept all the same",
            unit="share",
            source="prime-rl's default",
        ),
    ] = 0.0
    hard_share: Annotated[
        float,
        SHARE,
        Doc(
            "probability that a hard prompt is kept all the same",
            unit="share",
            source="prime-rl's default",
        ),
    ] = 0.0
    seed: Annotated[int, SEED, Doc("seed of these draws; default: the seed of the run")] = 0

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
