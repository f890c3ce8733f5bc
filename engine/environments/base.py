"""What an environment is: any object with ``reset``, ``step`` and ``close``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Episode:
    """What a rollout begins with.

    prompt, token_ids: what the model is asked. answer: of the prompt's row, for who judges. group,
    index: the rollout's name; attempt counts how often it began anew, visit how often its prompt
    had come before; number: the prompt's. seed: of the run.
    """

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
class Said:
    """What the model said in a turn, from 0: the tokens that it sampled, its end token included,
    and their text without that."""

    turn: int
    text: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What an environment says to a turn.

    observation: what the context goes on with, as text or as token ids; of no use once done. done:
    whether that was the rollout's last turn. reward: what the turn earned; a rollout's turns add
    up. seconds: that the answer takes at least: where it is there sooner, the rollout waits for
    the rest.
    """

    observation: str | Sequence[int] = ""
    done: bool = False
    reward: float = 0.0
    seconds: float = 0.0


class CallError(Exception):
    """Raised by an environment to fail, as any exception does; seconds: that it takes at least."""

    def __init__(self, reason: str = "", seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.seconds = seconds


class Environment(Protocol):
    """Answers one rollout's turns. Its methods are called one at a time, in any thread, beside the
    engine: they may wait as long as they like, but what they compute in Python slows the engine.

    A call that raises, or answers nonsense, is made again as often as ``environment.retry`` says;
    then, or when it has taken ``environment.timeout_s``, the rollout ends and earns nothing.
    """

    def reset(self, episode: Episode) -> float | None:
        """Boots it. Returns the seconds that takes at least; None for no more than it took."""
        ...

    def step(self, said: Said) -> Answer:
        """Answers a turn. A mapping with `Answer`'s names will do, and so will a text, to which
        the model is to go on."""
        ...

    def close(self) -> None:
        """Ends it; nothing is called afterwards."""
        ...
