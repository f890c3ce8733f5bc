"""The built-in task of several turns: Collatz stopping times with a calculator.

As in `engine.tasks.collatz`, but for odd numbers the model asks: it writes ``x*3+1`` and ends its
turn, and the calculator writes the result and ``>``. Halving is the model's own work::

    874>  437>437*3+1  1312>  656>328>164=164
    |prompt|  turn 0  |answer|    turn 1

A turn that holds ``=`` is the last; the reward is 1 if what follows is right. The calculator
answers what it does not understand with ``?>``, and has nothing to say of right or wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from rollcast.engine.environments.base import Answer, CallError, Environment, Episode, Turn
from rollcast.engine.tasks import tokenizer
from rollcast.engine.tasks.collatz import (
    LARGEST_VALUE,
    LOG_SD,
    MOST_STEPS,
    CollatzTask,
    following,
    written,
)

if TYPE_CHECKING:
    from rollcast.engine.environments.delays import DrawnDelays

LARGEST_RESULT = 10**12
MOST_TOKENS = 900
NOT_UNDERSTOOD = "?>"
_QUESTION = re.compile(r"(\d{1,12})((?:[*+-]\d{1,12}){0,4})")
_FINAL = "="


def calculate(text: str) -> str:
    """The calculator's answer to a turn: the value of what follows its last ``>`` or ``!``."""
    question = _QUESTION.fullmatch(re.split("[>!]", text)[-1])
    if question is None or not question[2]:
        return NOT_UNDERSTOOD
    value = sum(
        _sign(term) * _product(term.lstrip("+-"))
        for term in re.findall(r"[+-]?[^+-]+", question[0])
    )
    return f"{value}>" if 0 <= value < LARGEST_RESULT else NOT_UNDERSTOOD


def _sign(term: str) -> int:
    return -1 if term.startswith("-") else 1


def _product(term: str) -> int:
    value = 1
    for factor in term.split("*"):
        value *= int(factor)
    return value


class Calculator:
    """Answers one rollout. delays: None: no delay."""

    def __init__(self, delays: DrawnDelays | None = None) -> None:
        self._delays = delays
        self._episode: Episode | None = None
        self._turn = -1
        self._failures = 0

    def reset(self, episode: Episode) -> float:
        """Returns the seconds of its boot."""
        self._episode = episode
        return self._delays.boot_s(episode) if self._delays else 0.0

    def step(self, turn: Turn) -> Answer:
        """The value of a question, or an answer's reward. Raises CallError for a drawn failure."""
        assert self._episode is not None
        if _FINAL in turn.text:
            right = turn.text.rpartition(_FINAL)[2] == self._episode.answer
            return Answer(done=True, reward=float(right))
        seconds = 0.0
        if self._delays is not None:
            seconds, failures = self._delays.turn(self._episode, turn.turn)
            if turn.turn != self._turn:
                self._turn, self._failures = turn.turn, failures
            if self._failures > 0:
                self._failures -= 1
                raise CallError("it failed, as environment.failure has it", seconds)
        return Answer(calculate(turn.text), seconds=seconds)

    def close(self) -> None:
        """Does nothing."""


class CalculatorTask(CollatzTask):
    """Prompts of `CollatzTask`, answered in turns. max_new_tokens: of a turn."""

    def __init__(
        self, max_new_tokens: int = 64, log_sd: float = LOG_SD, delays: DrawnDelays | None = None
    ) -> None:
        super().__init__("bare", max_new_tokens, log_sd)
        self._delays = delays

    def environment(self) -> Environment:
        """A calculator."""
        return Calculator(self._delays)

    def encode(self, text: str) -> Sequence[int]:
        """The token ids of an answer."""
        return tokenizer.encode(text)


def teacher_response(start: int, rng: Random, slip: float) -> tuple[list[int], list[bool]]:
    """A conversation by a teacher who gets a digit wrong with probability ``slip``, of an iterate
    or of a question's number; half of the slips are corrected at once after a ``!``. One that does
    not come down in time starts over. Returns token ids, and whether each is the model's."""
    while True:
        turns, value = _conversation(start, rng, slip)
        ids: list[int] = []
        mask: list[bool] = []
        for turn, answer in turns:
            sampled, observed = (
                [*tokenizer.encode(turn), tokenizer.END_ID],
                tokenizer.encode(answer),
            )
            ids += [*sampled, *observed]
            mask += [True] * len(sampled) + [False] * len(observed)
        if value < start and len(ids) <= MOST_TOKENS:
            return ids, mask


def _conversation(start: int, rng: Random, slip: float) -> tuple[list[tuple[str, str]], int]:
    """Turns with their answers, and the final value."""
    turns: list[tuple[str, str]] = []
    text, value = "", start
    for _ in range(2 * MOST_STEPS):
        if value % 2:
            number, asked = written(value, rng, slip)
            turns.append((f"{text}{number}*3+1", f"{3 * asked + 1}>"))
            text, value = "", 3 * asked + 1
        else:
            number, value = written(following(value), rng, slip)
            text += number if value < start else f"{number}>"
        if value < start or value > LARGEST_VALUE:
            break
    return [*turns, (f"{text}={value}", "")], value
