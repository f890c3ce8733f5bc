"""The interface of a task: prompts by group, and rewards of responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt, and what a reward function needs to judge a response to it."""

    text: str
    token_ids: tuple[int, ...]
    answer: Any = None


class Task(Protocol):
    """max_new_tokens: of a response, which is cut there and judged as it is."""

    max_new_tokens: int

    def prompt(self, group: int, seed: int) -> Prompt:
        """The prompt of a group, by ``(seed, group)`` alone."""
        ...

    def reward(self, prompt: Prompt, response_text: str) -> float:
        """The reward of a response, without its end token; perhaps a
        `simulator.core.rollout.LateReward`. Raises EngineError."""
        ...

    def held_out(self, count: int) -> Sequence[Prompt]:
        """The first ``count`` prompts that training never sees, or as many as there are."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of a response, without its end token."""
        ...


class FirstTurns:
    """A task of several turns whose rollouts end with their first turn, which earns nothing."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.max_new_tokens = task.max_new_tokens
        self.prompt, self.decode = task.prompt, task.decode
        self.held_out = task.held_out

    def reward(self, prompt: Prompt, response_text: str) -> float:
        """0."""
        return 0.0
