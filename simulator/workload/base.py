"""What a workload is: the tokens that each rollout samples and the reward that it gets, by random
numbers that are addressed by where they are used, so that every policy meets the same ones.

Index 3 of group 17 draws the same numbers whatever the group size and whatever was drawn before.
The state of Philox (Salmon et al., SC 2011) *is* an address: the key holds (seed, stream), the
counter (0, block of groups, lane of indices, attempt). A block is made at a time, as NumPy's calls
cost more than numbers.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.rollout import FAILED, Ending
from rollcast.simulator.core.spans import Segments
from rollcast.simulator.errors import ScenarioError

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
        """A rollout's path among those that run on this version; at least its group's prompt."""


class Turn(NamedTuple):
    """A turn. observation_tokens: of the answer that begins it; 0 in the first turn, which begins
    with the prompt. new_tokens: sampled, at least 1. environment_s: of the answer after it, without
    boot."""

    observation_tokens: int
    new_tokens: int
    environment_s: float


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The course of a rollout with turns or a judge. ending: of the last turn. boot_s: of the
    environment. reward_s: of the judging; None without one."""

    turns: tuple[Turn, ...]
    ending: Ending = "stop"
    boot_s: float = 0.0
    reward_s: float | None = None

    @property
    def asks_at_last(self) -> bool:
        """Whether the environment is asked after the last turn too."""
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
    """The course of one group.

    prompt_tokens: of the shared prompt. new_tokens: of each response, 1 to ``max_new_tokens``.
    rewards: of each. trajectories: of each, with turns or a judge; else None. sharing: None where
    rollouts share nothing but their group's prompt (at temperature 1, responses part after a few
    tokens).
    """

    prompt_tokens: int
    new_tokens: Sequence[int]
    rewards: Sequence[float]
    sharing: Sharing | None = None
    trajectories: Sequence[Trajectory] | None = None


def address(group: int, attempt: int, prompt: int | None, visit: int) -> tuple[int, int]:
    """(prompt, try) that addresses a group's draws: responses are drawn afresh at each restart and
    visit. Raises ValueError for numbers below 0."""
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
    """Uniforms in (0, 1) at the address (seed, stream, block, lane, attempt), from raw bits that
    NumPy guarantees on every platform. A longer first axis keeps the earlier numbers."""
    counter = np.array([0, block, lane, attempt], dtype=np.uint64)
    key = np.array([seed, stream], dtype=np.uint64)
    bits = np.random.Philox(counter=counter, key=key).random_raw(math.prod(shape))
    # 52 bits and a half: never 0 and never 1, where a quantile function is infinite.
    uniforms = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return uniforms.reshape(shape)


class Workload(Protocol):
    """Draws that depend on their address alone, so that every policy meets the same ones."""

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt, tokens."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each change made to the given data, for the run's result."""

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``, which answers ``prompt`` (None: one of its own
        number) for the ``visit``-th time, from 0. attempt: 0, or the number of the restart, which
        draws other responses. version: of the weights when the group was first launched."""


class AddressedWorkload:
    """Base of workloads that draw by prompt and try, where a visit of a prompt counts as a try."""

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """See `Workload.draw`. Raises ValueError for a size below 1 or another number below 0."""
        if size < 1:
            raise ValueError(f"no group of {size} rollouts")
        number, tried = address(group, attempt, prompt, visit)
        return self._drawn(number, size, tried, version)

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        raise NotImplementedError


class DerivedWorkload:
    """Base of workloads that change the draws of another one, ``base``."""

    base: Workload

    @property
    def max_new_tokens(self) -> int:
        """The base's cap on a response, tokens."""
        return self.base.max_new_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """The base's longest prompt, tokens."""
        return self.base.max_prompt_tokens

    @property
    def warnings(self) -> tuple[str, ...]:
        """The base's."""
        return self.base.warnings

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The base's draw, changed; see `Workload.draw`."""
        drawn = self.base.draw(group, size, attempt, version, prompt, visit)
        return self._changed(drawn, group, attempt, prompt, visit)

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        raise NotImplementedError


@runtime_checkable
class WorkloadOfTurns(Workload, Protocol):
    """A workload whose rollouts have turns; ``max_new_tokens`` is of one turn."""

    @property
    def max_context_tokens(self) -> int:
        """The longest context, tokens."""


@runtime_checkable
class ScaledWorkload(Workload, Protocol):
    """A workload whose lengths can be made longer."""

    def scaled(self, factor: float) -> Workload:
        """The same draws with every median length ``factor`` times as long."""


@runtime_checkable
class TracedWorkload(Workload, Protocol):
    """A workload that holds every rollout beforehand."""

    @property
    def longest(self) -> tuple[int, int]:
        """(prompt, new tokens) of its longest rollout."""


@runtime_checkable
class ReplayedWorkload(Workload, Protocol):
    """A workload that replays a file."""

    def unlike_file(self, sizes: Mapping[int, int]) -> tuple[str, ...]:
        """A warning where what a run took of the file is of another mean length than the whole.
        sizes: how many rollouts of each prompt it took."""


def unlike_file(workload: Workload, segments: Segments) -> tuple[str, ...]:
    """See `ReplayedWorkload.unlike_file`; none of other workloads. segments: the run's."""
    while isinstance(workload, DerivedWorkload):
        workload = workload.base
    if not isinstance(workload, ReplayedWorkload):
        return ()
    sizes: dict[int, int] = {}
    for prompt, index in segments.each("prompt", "index"):
        sizes[prompt] = max(sizes.get(prompt, 0), index + 1)
    return workload.unlike_file(sizes)


def longest_context(workload: Workload) -> int:
    """The longest context, tokens."""
    if isinstance(workload, WorkloadOfTurns):
        return workload.max_context_tokens
    return workload.max_prompt_tokens + workload.max_new_tokens


def longest_rollout(workload: Workload) -> tuple[int, int]:
    """(prompt, new tokens) of the longest possible rollout."""
    if isinstance(workload, TracedWorkload):
        return workload.longest
    prompt_tokens = workload.max_prompt_tokens
    return prompt_tokens, longest_context(workload) - prompt_tokens
