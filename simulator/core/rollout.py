"""A rollout, its group, and what a world reports of it: counts only, never tokens. Worlds answer
with frozen `Segment`s; only the loop changes a `Rollout`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import InitVar, dataclass, field
from typing import Literal, NamedTuple, Self, get_args

Key = tuple[int, int]
"""(group, index), the name by which every world knows a rollout."""

Ending = Literal[
    "stop",
    "length",
    "turns",
    "context",
    "timeout",
    "environment",
    "turn",
    "budget",
    "aborted",
    "trial_timeout",
]
"""How a segment ended. The response is whole: with an end token; at the cap on its tokens, its
turns or its context; or its environment did not answer in time, or failed. The response goes on: a
turn is over and its environment is asked; it has had what it was allowed; by an abort. The last
one is given by the loop: the rollout took longer than a trial may, and is over."""

ENDINGS: tuple[Ending, ...] = get_args(Ending)
"""In this order their numbers in the table of segments."""

CUT: frozenset[Ending] = frozenset(("length", "turns", "context"))
"""Endings at a cap."""

FAILED: frozenset[Ending] = frozenset(("timeout", "environment", "trial_timeout"))
"""Endings by the environment, or by the limit on a trial."""

GOES_ON: frozenset[Ending] = frozenset(("turn", "budget", "aborted"))
"""Endings after which the response goes on."""


class VersionTokens(NamedTuple):
    """A run of a rollout's tokens made by one version of the weights."""

    version: int
    tokens: int


class Shared(NamedTuple):
    """How many tokens, prompt included, a segment shares with an earlier one's start, and whose."""

    tokens: int
    group: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name


UNSHARED = Shared(0, -1, -1)


CallEnd = Literal["answered", "timeout", "failed", "suspended", "closed"]
"""What became of a call: an answer; none in time; a failure for good; its rollout was stopped, and
the environment works on; or was closed with it."""

CALL_ENDS: tuple[CallEnd, ...] = get_args(CallEnd)
OLD_CALL_ENDS: Mapping[str, CallEnd] = {"put_away": "suspended"}
"""What files of earlier versions call them."""
CALL_KINDS: tuple[Literal["environment", "reward"], ...] = ("environment", "reward")


class Call(NamedTuple):
    """A call of an environment after a turn, or of a judge after the last one. start_s: when it got
    its slot, else end_s. A call of a suspended rollout is reported in two parts."""

    kind: Literal["environment", "reward"]
    turn: int
    asked_s: float
    start_s: float
    end_s: float
    ended: CallEnd


class LateReward(float):
    """A reward that is not known yet: not a number, until ``float()`` waits for it."""

    known: bool = False
    """Whether it is known by now."""

    failure: str | None = None
    """Why there is none, once that is known; ``float()`` then returns what this counts as."""

    def __new__(cls) -> Self:
        """Not a number."""
        return super().__new__(cls, math.nan)

    def __float__(self) -> float:
        """The reward."""
        raise NotImplementedError


class Segment(NamedTuple):
    """One uninterrupted time of a rollout on a replica, from submit to its end; each turn is one.
    One without tokens or time is of a rollout that was stopped, or ended, away from the replicas.

    tokens_by_version: sampled in this segment, oldest version first. start_s: of the first
    iteration; end_s without one. prefill_tokens: all prefilled; recomputed_tokens: because of
    preemptions. reward: of a finished rollout, perhaps late; else None. shared: with an earlier
    segment of this version, if the world knows tokens. turn: from 0. observation_tokens: added to
    its context by answers. calls: since its last segment.
    """

    group: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    attempt: int
    replica: int
    prompt_tokens: int
    tokens_by_version: tuple[VersionTokens, ...]
    ending: Ending
    start_s: float
    end_s: float
    prefill_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    reward: float | None = None
    shared: Shared = UNSHARED
    turn: int = 0
    observation_tokens: int = 0
    calls: tuple[Call, ...] = ()

    @property
    def key(self) -> Key:
        """(group, index)."""
        return self.group, self.index

    @property
    def new_tokens(self) -> int:
        """Tokens sampled in this segment."""
        return sum(part.tokens for part in self.tokens_by_version)

    @property
    def finished(self) -> bool:
        """Whether the response is whole."""
        return self.ending not in GOES_ON


@dataclass(slots=True, eq=False, repr=False)
class Rollout:
    """One sampled response, known by (group, index), as the loop keeps it. Worlds only read it.

    Identity: attempt counts restarts from nothing; prompt (-1: the group's number) and visit say
        which prompt it answers, and how often that had been launched before.
    State: tokens sampled in this attempt, by version rising; truncated: it ended at a cap; failed:
        its environment, or the limit on a trial, ended it; flown_s: in flight before it was
        submitted last; prompt_tokens: known once a segment has ended; turn and
        observation_tokens: as of a segment; reward: None until it finished.
    For its next segments: allowance and turn_allowance (tokens and turns that it may have; None for
        all), expected_tokens (of the whole response, by a predictor; None without one).
    """

    group: int
    index: int
    attempt: int = 0
    prompt: int = -1
    visit: int = 0
    prompt_tokens: int = 0
    new_tokens: int = 0
    tokens_by_version: list[VersionTokens] = field(default_factory=list)
    turn: int = 0
    observation_tokens: int = 0
    finished: bool = False
    truncated: bool = False
    failed: bool = False
    reward: float | None = None
    allowance: int | None = None
    turn_allowance: int | None = None
    expected_tokens: float | None = None
    submitted_s: float = 0.0
    flown_s: float = 0.0
    prefilled_before: bool = False  # an earlier segment computed some of its tokens
    # Of later turns: what begins them, and the last token before that, until they are prefilled
    uncomputed_tokens: int = 0
    rows: list[int] = field(default_factory=list)  # its rows in the table of segments

    def __post_init__(self) -> None:
        if self.prompt < 0:
            self.prompt = self.group

    @property
    def key(self) -> Key:
        """(group, index)."""
        return self.group, self.index

    @property
    def context_tokens(self) -> int:
        """Prompt, what it sampled, and what its environment added."""
        return self.prompt_tokens + self.new_tokens + self.observation_tokens

    def add(self, segment: Segment) -> int:
        """Takes in what a segment made of it; returns the tokens that were new."""
        sampled, tokens_by_version = 0, self.tokens_by_version
        for part in segment.tokens_by_version:
            sampled += part.tokens
            if tokens_by_version and tokens_by_version[-1].version == part.version:
                tokens_by_version[-1] = VersionTokens(
                    part.version, tokens_by_version[-1].tokens + part.tokens
                )
            else:
                tokens_by_version.append(part)
        self.new_tokens += sampled
        if self.allowance is not None:
            self.allowance -= sampled
        self.prompt_tokens = segment.prompt_tokens
        if segment.turn != self.turn:
            self.uncomputed_tokens += segment.observation_tokens - self.observation_tokens + 1
            self.turn, self.observation_tokens = segment.turn, segment.observation_tokens
        ending = segment.ending
        if ending not in GOES_ON:
            self.finished = True
            self.truncated = ending in CUT
            self.failed = ending in FAILED
            self.reward = segment.reward
        elif ending == "turn" and self.turn_allowance is not None:
            self.turn_allowance -= 1
        return sampled

    def tokens_before(self, version: int) -> int:
        """Tokens that versions older than ``version`` made."""
        return sum(part.tokens for part in self.tokens_by_version if part.version < version)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "unfinished"
        return f"Rollout({self.group}, {self.index}, {self.new_tokens} tokens, {state})"


@dataclass(slots=True, eq=False, repr=False)
class Group:
    """The rollouts of one prompt: complete once ``size`` of the ``launched`` have finished, the
    winners.

    started_version: of the weights at the launch, None before; once it is complete or suspended, of
    its oldest token that counts.
    """

    group: int
    size: int
    launched: InitVar[int]
    attempt: int = 0
    prompt: int = -1
    visit: int = 0
    rollouts: list[Rollout] = field(init=False)
    winners: list[Rollout] = field(init=False, default_factory=list)
    started_version: int | None = field(init=False, default=None)

    def __post_init__(self, launched: int) -> None:
        if self.prompt < 0:
            self.prompt = self.group
        identity = (self.attempt, self.prompt, self.visit)
        self.rollouts = [Rollout(self.group, index, *identity) for index in range(launched)]

    @property
    def complete(self) -> bool:
        """Whether ``size`` rollouts have finished."""
        return len(self.winners) >= self.size

    @property
    def unfinished(self) -> list[Rollout]:
        """Its rollouts that still have tokens to sample, by index."""
        return [rollout for rollout in self.rollouts if not rollout.finished]

    @property
    def oldest_winner_version(self) -> int | None:
        """The oldest version that made any token of its winners; None where there is none."""
        return _oldest(self.winners)

    @property
    def next_attempt(self) -> int:
        """The number of its next try: none of its rollouts has had it."""
        return 1 + max([self.attempt, *(rollout.attempt for rollout in self.rollouts)])

    @property
    def new_tokens(self) -> int:
        """Tokens sampled so far by all its rollouts."""
        return sum(rollout.new_tokens for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version that made any of its tokens; None where it has none."""
        return _oldest(self.rollouts)


def _oldest(rollouts: Iterable[Rollout]) -> int | None:
    oldest = None
    for rollout in rollouts:
        tokens_by_version = rollout.tokens_by_version
        if tokens_by_version and (oldest is None or tokens_by_version[0].version < oldest):
            oldest = tokens_by_version[0].version
    return oldest
