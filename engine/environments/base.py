"""The interface of an environment: any object with ``reset``, ``step`` and ``close``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Episode:
    """What a rollout begins with. prompt, token_ids: the prompt. answer: of the prompt's row, for
    the judge. group, index: of the rollout; attempt: how often it began anew, visit: how often its
    prompt came before; number: the prompt's. seed: of the run."""

    prompt: str
    token_ids: tuple[int, ...]
    answer: Any
    group: int
    index: int
    attempt: int = 0
    visit: int = 0
    number: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the model, from 0: the sampled tokens, end token included; their text without."""

    turn: int
    text: str
    token_ids: tuple[int, ...]


Said = Turn
"""Its earlier name."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An environment's answer to a turn. observation: continues the context, as text or token ids;
    ignored once done. done: the rollout ends. reward: of the turn; a rollout's turns add up.
    seconds: the least that the answer takes; one that comes sooner is delayed."""

    observation: str | Sequence[int] = ""
    done: bool = False
    reward: float = 0.0
    seconds: float = 0.0


class CallError(Exception):
    """Raised by an environment to fail, like any exception; seconds: the least of the call."""

    def __init__(self, reason: str = "", seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Environment(Protocol):
    """Answers one rollout's turns. Its methods are called one at a time, in any thread, beside the
    engine: they may wait, but Python that they compute slows the engine.

    A call that raises or returns an invalid answer is repeated ``environment.retry`` times; then,
    or after ``environment.timeout_s``, the rollout ends with reward 0.
    """

    def reset(self, episode: Episode) -> float | None:
        """Boots it. Returns the least seconds that this takes, or None."""
        ...

    def step(self, turn: Turn) -> Answer:
        """Answers a turn: an `Answer`, a mapping with its fields, or an observation as text."""
        ...

    def close(self) -> None:
        """Ends it; nothing is called afterwards."""
        ...
