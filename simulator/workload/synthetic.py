"""A workload drawn from models of lengths, rewards and prompts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcast.simulator.workload.base import (
    GROUPS_PER_BLOCK,
    INDICES_PER_LANE,
    AddressedWorkload,
    FloatArray,
    GroupDraw,
    check_seed,
    keyed_uniforms,
)
from rollcast.simulator.workload.lengths import LengthModel, NormalEffect, whole_tokens
from rollcast.simulator.workload.rewards import RewardModel, correlated

# Philox streams: the letters of "prom" and "roll", far from the small numbers others pick.
_PROMPTS = 0x70726F6D
_ROLLOUTS = 0x726F6C6C

# Lanes kept, about 80 kB each: the draws of the groups in flight, not of the whole run.
_CACHED_LANES = 128


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """Prompt lengths: lognormal with standard deviation ``sd`` of the log, cut to the bounds; with
    sd 0 all ``median_tokens``."""

    median_tokens: float
    sd: float = 0.0
    max_tokens: int = 0

    @property
    def longest(self) -> int:
        """No prompt is longer, tokens."""
        return self.max_tokens or math.ceil(self.median_tokens)

    def sample(self, u: FloatArray) -> list[int]:
        """Prompt lengths at uniforms ``u``, tokens."""
        lengths = self.median_tokens * np.exp(NormalEffect(self.sd).ppf(u))
        return [int(tokens) for tokens in whole_tokens(lengths, self.longest)]


@dataclass(frozen=True, slots=True)
class Effects:
    """Of a group: prompt length, difficulty (standard normal); of each rollout: real-valued length
    and reward before the cap."""

    prompt_tokens: int
    difficulty: float
    uncapped: FloatArray
    rewards: list[float]


@dataclass(frozen=True, slots=True)
class _PromptBlock:
    """Prompts of consecutive groups: arrays of shape (GROUPS_PER_BLOCK,)."""

    component_u: FloatArray
    length_z: FloatArray
    difficulty_z: FloatArray
    reward_level: FloatArray
    runaway: FloatArray
    prompt_tokens: list[int]


@dataclass(frozen=True, slots=True)
class _Lane:
    """Rollouts of a block of groups and INDICES_PER_LANE consecutive indices, one row a group."""

    uncapped: FloatArray
    new_tokens: list[list[int]]
    rewards: list[list[float]]


class SyntheticWorkload(AddressedWorkload):
    """Lengths, rewards and prompts from models; the same (seed, group, index) is the same draw."""

    def __init__(
        self,
        lengths: LengthModel,
        rewards: RewardModel,
        prompt_tokens: int | PromptTokens,
        max_new_tokens: int,
        seed: int = 0,
    ) -> None:
        self.lengths = lengths
        self.rewards = rewards
        self.max_new_tokens = max_new_tokens
        self.warnings: tuple[str, ...] = ()
        self._prompts = (
            prompt_tokens
            if isinstance(prompt_tokens, PromptTokens)
            else PromptTokens(prompt_tokens)
        )
        self.max_prompt_tokens = self._prompts.longest
        self._seed = check_seed(seed)
        self._prompt_blocks: dict[int, _PromptBlock] = {}
        self._lanes: dict[tuple[int, int, int], _Lane] = {}
        self._kept_lanes = _CACHED_LANES

    def scaled(self, factor: float) -> SyntheticWorkload:
        """The same draws with every median length ``factor`` times as long."""
        lengths = self.lengths.scaled(factor)
        return SyntheticWorkload(
            lengths, self.rewards, self._prompts, self.max_new_tokens, self._seed
        )

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        block, row = divmod(prompt, GROUPS_PER_BLOCK)
        tokens: list[int] = []
        rewards: list[float] = []
        lanes = (size + INDICES_PER_LANE - 1) // INDICES_PER_LANE
        self._kept_lanes = max(self._kept_lanes, 2 * lanes)
        for lane in range(lanes):
            made = self._lane(block, attempt, lane)
            rewards += made.rewards[row]
            if version and self.lengths.drift_per_step:
                drifted = made.uncapped[row] * self.lengths.drift(version)
                tokens += whole_tokens(drifted, self.max_new_tokens).tolist()
            else:
                tokens += made.new_tokens[row]
        prompt_tokens = self._prompt_block(block).prompt_tokens[row]
        tokens = tokens[:size]
        return GroupDraw(
            prompt_tokens, tokens, self.rewards.graded(rewards[:size], tokens, self.max_new_tokens)
        )

    def effects(self, group: int, size: int, attempt: int = 0) -> Effects:
        """The effects behind a group's draws, before cap, drift and grading."""
        block, row = divmod(group, GROUPS_PER_BLOCK)
        prompts = self._prompt_block(block)
        lanes = range((size + INDICES_PER_LANE - 1) // INDICES_PER_LANE)
        made = [self._lane(block, attempt, lane) for lane in lanes]
        rewards = [reward for lane in made for reward in lane.rewards[row]]
        return Effects(
            prompts.prompt_tokens[row],
            float(prompts.difficulty_z[row]),
            np.concatenate([lane.uncapped[row] for lane in made])[:size],
            rewards[:size],
        )

    def _prompt_block(self, block: int) -> _PromptBlock:
        made = self._prompt_blocks.get(block)
        if made is None:
            _make_room(self._prompt_blocks, _CACHED_LANES)
            made = self._prompt_blocks[block] = self._make_prompts(block)
        return made

    def _make_prompts(self, block: int) -> _PromptBlock:
        from scipy.special import ndtri

        shape = (5, GROUPS_PER_BLOCK)
        component, length, difficulty, prompt, tail = keyed_uniforms(
            self._seed, _PROMPTS, shape, block=block
        )
        length_z = np.asarray(ndtri(length))
        correlation = self.rewards.difficulty_length_correlation
        hard_z = correlated(correlation, length_z, np.asarray(ndtri(difficulty)))
        level = self.rewards.prompt_level(hard_z)
        runaway = self.lengths.runaway_given(np.asarray(ndtri(tail)))
        prompts = self._prompts.sample(prompt)
        return _PromptBlock(component, length_z, hard_z, level, runaway, prompts)

    def _lane(self, block: int, attempt: int, lane: int) -> _Lane:
        key = (block, attempt, lane)
        made = self._lanes.get(key)
        if made is None:
            _make_room(self._lanes, self._kept_lanes)
            made = self._lanes[key] = self._make_lane(block, attempt, lane)
        return made

    def _make_lane(self, block: int, attempt: int, lane: int) -> _Lane:
        from scipy.special import ndtri

        shape = (3, GROUPS_PER_BLOCK, INDICES_PER_LANE)
        length, error, runaway = keyed_uniforms(
            self._seed, _ROLLOUTS, shape, block=block, lane=lane, attempt=attempt
        )
        prompts = self._prompt_block(block)
        uncapped = self.lengths.uncapped(prompts.component_u, prompts.length_z, length)
        uncapped[runaway < prompts.runaway[:, None]] = np.inf
        errors = correlated(self.rewards.length_correlation, ndtri(length), ndtri(error))
        rewards = self.rewards.rewards(prompts.reward_level[:, None], errors)
        new_tokens = whole_tokens(uncapped, self.max_new_tokens)
        return _Lane(uncapped, new_tokens.tolist(), rewards.tolist())


def _make_room(cache: dict[Any, Any], limit: int) -> None:
    """Drops the oldest entries of a cache that holds ``limit``."""
    while len(cache) >= limit:
        del cache[next(iter(cache))]
