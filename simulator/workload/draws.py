"""Random numbers addressed by where they are used, not by the order in which they are asked for.

Every policy must meet the same lengths and rewards: index 3 of group 17 draws the same numbers
whether groups hold 4 rollouts or 16, and whatever else was drawn before. So a draw is a function of
its address. Philox (Salmon et al., SC 2011) is a generator whose state *is* an address: the key
holds (seed, stream), the counter holds (0, block of groups, lane of indices, attempt). Numbers are
made a block at a time, which spreads NumPy's cost per call over a thousand rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.rollout import FAILED, Ending

FloatArray = NDArray[np.float64]

GROUPS_PER_BLOCK = 128
INDICES_PER_LANE = 8
ATTEMPTS_PER_VISIT = 2**20


Path = Sequence[tuple[int, Hashable]]
"""What a rollout's tokens, prompt included, have in common with those of others: ``(end, owner)``
in ascending order of ``end``. Two rollouts begin with the same n tokens exactly if both have, for
the first end of at least n, the same owner; behind the last end a rollout's tokens are its own."""


class Sharing(Protocol):
    """Which tokens a group's rollouts have in common with one another and with other groups'."""

    def path(self, index: int, version: int) -> Path:
        """The path of a rollout among those that run while the replicas have this version of the
        weights; at least its group's prompt is on it."""


class Turn(NamedTuple):
    """A turn of a rollout.

    observation_tokens: of the environment's answer that it begins with; the first turn has none,
    as it begins with the prompt. new_tokens: that it samples, at least 1. environment_s: what its
    environment then takes, once it has been booted.
    """

    observation_tokens: int
    new_tokens: int
    environment_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What one rollout of several turns is going to do, or one that somebody judges.

    ending: of its last turn. boot_s: of its environment. reward_s: what judging it takes; None
    where its reward is there at once.
    """

    turns: tuple[Turn, ...]
    ending: Ending = "stop"
    boot_s: float = 0.0
    reward_s: float | None = None

    @property
    def asks_at_last(self) -> bool:
        """Whether its environment is asked after its last turn too: it fails then, or its answer
        has no room in the context, or there is a last thing to do."""
        return self.ending in FAILED or self.turns[-1].environment_s > 0

    @property
    def judged(self) -> bool:
        """Whether its reward takes time."""
        return self.reward_s is not None and self.ending not in FAILED

    @property
    def new_tokens(self) -> int:
        """That all its turns sample."""
        return sum(turn.new_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class GroupDraw:
    """What one group of rollouts is going to do.

    prompt_tokens: length of the prompt they share. new_tokens: response length of index 0, 1, ...
    (at least 1, at most the workload's ``max_new_tokens``). rewards: reward of each.
    trajectories: of each, where a rollout has turns; None where responses are all there is.
    sharing: None where nothing but a group's prompt is common to any two rollouts: sampled at a
        temperature of 1, a large model's responses part after a few tokens.
    """

    prompt_tokens: int
    new_tokens: Sequence[int]
    rewards: Sequence[float]
    sharing: Sharing | None = None
    trajectories: Sequence[Trajectory] | None = None


def address(group: int, attempt: int, prompt: int | None, visit: int) -> tuple[int, int]:
    """(prompt, try) that a group's draws hang on: the prompt keeps what is its own whenever it
    comes, and its responses are drawn afresh at each restart and each visit. Raises ValueError for
    numbers below 0."""
    prompt = group if prompt is None else prompt
    if min(prompt, attempt, visit) < 0:
        raise ValueError(f"no prompt {prompt}, attempt {attempt}, visit {visit}")
    return prompt, attempt + ATTEMPTS_PER_VISIT * visit


def check_seed(seed: int) -> int:
    """``seed``, if it fits Philox's key; ScenarioError otherwise."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ScenarioError("seed", f"must be a whole number from 0 to 2**64 - 1, got {seed!r}")
    return seed


def keyed_uniforms(
    seed: int, stream: int, shape: tuple[int, ...], *, block: int, lane: int = 0, attempt: int = 0
) -> FloatArray:
    """Uniforms in the open interval (0, 1) at the address (seed, stream, block, lane, attempt).

    Made from the raw 64 bits, whose sequence NumPy guarantees, so that they are the same on every
    platform and release. A longer first axis leaves the earlier numbers as they are.
    """
    counter = np.array([0, block, lane, attempt], dtype=np.uint64)
    key = np.array([seed, stream], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=key).random_raw(math.prod(shape))
    # 52 bits and a half: never 0 and never 1, where a quantile function is infinite.
    uniforms = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniforms.reshape(shape)
