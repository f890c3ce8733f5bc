"""A rollout, and the group of rollouts that share a prompt: counts only, never tokens."""

from __future__ import annotations

from typing import NamedTuple


class Segment(NamedTuple):
    """A run of a rollout's tokens made by one version of the weights."""

    version: int
    tokens: int


class Rollout:
    """One sampled response, known by (group, index).

    The loop makes it and says when it runs; a world fills in what came of it when it finishes or is
    aborted. A *stay* is one uninterrupted time on a replica, from submit to finish or abort.

    Identity: group, index; attempt counts restarts from nothing.
    State: prompt_tokens (set by the world on submit), new_tokens sampled so far in this attempt,
        segments, finished, truncated (it ended at the cap), reward (None until it finished).
    The last stay, set by the world: replica, start_s (first iteration that computed it), end_s,
        prefill_tokens (all tokens prefilled during the stay), recomputed_tokens (the part of them
        that preemptions made necessary), preemptions.
    """

    __slots__ = (
        "attempt",
        "end_s",
        "finished",
        "group",
        "in_flight",
        "index",
        "new_tokens",
        "preemptions",
        "prefill_tokens",
        "prefilled_before",
        "prompt_tokens",
        "reached_tokens",
        "recomputed_tokens",
        "replica",
        "reward",
        "rows",
        "segments",
        "start_s",
        "submitted_s",
        "truncated",
    )

    def __init__(self, group: int, index: int, attempt: int = 0) -> None:
        self.group = group
        self.index = index
        self.attempt = attempt
        self.prompt_tokens = 0
        self.new_tokens = 0
        self.segments: list[Segment] = []
        self.finished = False
        self.truncated = False
        self.reward: float | None = None
        self.replica = -1
        self.submitted_s = 0.0
        self.start_s = 0.0
        self.end_s = 0.0
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.reached_tokens = 0  # new_tokens when the current stay began
        self.in_flight = False
        self.prefilled_before = False  # an earlier stay computed some of its tokens
        self.rows: list[int] = []  # its rows in the table of stays

    @property
    def key(self) -> tuple[int, int]:
        """(group, index), the name by which every world knows it."""
        return self.group, self.index

    def tokens_before(self, version: int) -> int:
        """Tokens that versions older than ``version`` made."""
        return sum(segment.tokens for segment in self.segments if segment.version < version)

    def __repr__(self) -> str:
        state = "finished" if self.finished else "unfinished"
        return f"Rollout({self.group}, {self.index}, {self.new_tokens} tokens, {state})"


class Group:
    """The rollouts of one prompt. It is complete once ``size`` of them have finished; more than
    ``size`` may have been launched, and the first ``size`` to finish win."""

    __slots__ = ("attempt", "group", "rollouts", "size", "winners")

    def __init__(self, group: int, size: int, launched: int, attempt: int = 0) -> None:
        self.group = group
        self.size = size
        self.attempt = attempt
        self.rollouts = [Rollout(group, index, attempt) for index in range(launched)]
        self.winners: list[Rollout] = []

    @property
    def complete(self) -> bool:
        """Whether ``size`` rollouts have finished."""
        return len(self.winners) >= self.size

    @property
    def unfinished(self) -> list[Rollout]:
        """Its rollouts that still have tokens to sample, by index."""
        return [rollout for rollout in self.rollouts if not rollout.finished]

    @property
    def new_tokens(self) -> int:
        """Tokens sampled so far by all its rollouts."""
        return sum(rollout.new_tokens for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version that made any of its tokens; None where it has none."""
        versions = [rollout.segments[0].version for rollout in self.rollouts if rollout.segments]
        return min(versions) if versions else None
