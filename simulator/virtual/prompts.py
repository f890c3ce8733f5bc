"""Which prompt a request asks, how long its answer is, and what it has in common with others."""

from __future__ import annotations

import json
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.workload.base import GroupDraw, Trajectory, Workload

_HEAD = 16
_KEPT_DRAWS = 256
_MOST_CONVERSATIONS = 64
_FIRST_TOKEN, _TOKENS = 1_000, 20_011


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the scenario, by its number. tokens: its length; None: the scenario's."""

    number: int
    tokens: int | None = None


AnyPrompt = Prompt | str | Sequence[int] | Sequence[Mapping[str, Any]]
"""What a request may ask: a prompt of the scenario, a text, token identifiers, or messages."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a request is going to be answered: how many tokens, and the reward of the whole
    response. more: turns that follow; environment_s: until the next one can begin. arrives_s: from
    when it is sent until it reaches an engine, virtual seconds."""

    new_tokens: int
    reward: float = 0.0
    more: int = 0
    environment_s: float = 0.0
    arrives_s: float = 0.0


Replies = Callable[[int, int, int], Reply]
"""A reply by (number of the prompt, how many asked it before, turn)."""


class Conversation:
    """A response and the turns that follow it.

    number: of the prompt; place: how many asked it before; context: tokens so far; turn: of the
    next request. busy: whether a request of it is in flight.
    """

    __slots__ = ("busy", "context", "number", "place", "prompt_tokens", "serial", "turn")

    def __init__(self, serial: int, number: int, place: int, prompt_tokens: int) -> None:
        self.serial, self.number, self.place = serial, number, place
        self.prompt_tokens = self.context = prompt_tokens
        self.turn = 0
        self.busy = False


def placeholder(serial: int, turn: int, tokens: int) -> list[int]:
    """Token identifiers of an answer: as many as it has, other ones than of other answers."""
    first = _FIRST_TOKEN + (serial * 7_919 + turn * 104_729) % _TOKENS
    return list(range(first, first + tokens))


def words(serial: int, turn: int, tokens: int) -> str:
    """The text of an answer: a word a token."""
    return " ".join([f"answer-{serial}-{turn}", *["and"] * (tokens - 1)])


class Prompts:
    """Numbers prompts as they are first met; finds the conversation that a request continues."""

    def __init__(
        self, workload: Workload, group_size: int, replies: Replies | None, count_sent: bool
    ) -> None:
        self._workload, self._group_size, self._replies = workload, group_size, replies
        self._count_sent = count_sent
        self._numbers: dict[Hashable, int] = {}
        self._asked: dict[int, int] = {}
        self._drawn: OrderedDict[tuple[int, int], GroupDraw] = OrderedDict()
        self._known: dict[Hashable, list[tuple[int, int, Conversation]]] = {}
        self._serials = 0

    def find(self, prompt: AnyPrompt) -> Conversation:
        """The conversation that ``prompt`` goes on with, its context made as long as the prompt; a
        new one otherwise."""
        if isinstance(prompt, Prompt):
            return self._begin(prompt.number, prompt.tokens)
        parts = _parts(prompt)
        found = self._continued(parts)
        if found is not None:
            return found
        key = (len(parts), hash(parts))
        number = self._numbers.setdefault(key, len(self._numbers))
        return self._begin(number, _tokens(parts) if self._count_sent else None)

    def _begin(self, number: int, tokens: int | None) -> Conversation:
        place = self._asked.get(number, 0)
        self._asked[number] = place + 1
        if tokens is None:
            tokens = self._draw(number, place).prompt_tokens
        self._serials += 1
        return Conversation(self._serials - 1, number, place, tokens)

    def _draw(self, number: int, place: int) -> GroupDraw:
        """The scenario's draw of the group in which the ``place``-th asking of a prompt falls."""
        visit = place // self._group_size
        known = self._drawn.get((number, visit))
        if known is None:
            known = self._workload.draw(number, self._group_size, prompt=number, visit=visit)
            self._drawn[number, visit] = known
            if len(self._drawn) > _KEPT_DRAWS:
                self._drawn.popitem(last=False)
        return known

    def reply(self, conversation: Conversation) -> Reply:
        """What the next request of a conversation is answered."""
        number, place, turn = conversation.number, conversation.place, conversation.turn
        if self._replies is not None:
            return self._replies(number, place, turn)
        draw, index = self._draw(number, place), place % self._group_size
        if draw.trajectories is None:
            return Reply(draw.new_tokens[index], draw.rewards[index])
        return _turn_of(draw.trajectories[index], turn, draw.rewards[index])

    def answered(self, prompt: AnyPrompt, answer: Any, conversation: Conversation) -> None:
        """Remembers what a request that goes on with this answer begins with."""
        if isinstance(prompt, Prompt):
            return
        parts = (
            (*_parts(prompt), *_parts(answer)) if not isinstance(prompt, str) else (prompt + answer)
        )
        known = self._known.setdefault(_head(parts), [])
        insort(known, (len(parts), hash(parts), conversation), key=lambda entry: entry[0])
        if len(known) > _MOST_CONVERSATIONS:
            del known[0]

    def _continued(self, parts: Any) -> Conversation | None:
        known = self._known.get(_head(parts), ())
        for length, code, conversation in reversed(known):
            if length > len(parts) or conversation.busy or hash(parts[:length]) != code:
                continue
            conversation.context += _tokens(parts[length:])
            return conversation
        return None


def _turn_of(trajectory: Trajectory, turn: int, reward: float) -> Reply:
    turns = trajectory.turns
    this = turns[min(turn, len(turns) - 1)]
    return Reply(this.new_tokens, reward, max(len(turns) - 1 - turn, 0), this.environment_s)


def _parts(prompt: Any) -> Any:
    """A text, or a tuple of token identifiers or of messages as texts."""
    if isinstance(prompt, str):
        return prompt
    return tuple(
        json.dumps([part.get("role"), part.get("content")], sort_keys=True, default=str)
        if isinstance(part, Mapping)
        else part
        for part in prompt
    )


def _head(parts: Any) -> Hashable:
    """What all continuations of a conversation begin with."""
    if parts and not isinstance(parts, str) and isinstance(parts[0], str):
        return parts[0]
    head: Hashable = parts[:_HEAD]
    return head


def _tokens(parts: Any) -> int:
    """Tokens of what was sent: identifiers, or words of a text."""
    if isinstance(parts, str):
        return max(len(parts.split()), 1)
    return sum(len(part.split()) if isinstance(part, str) else 1 for part in parts)
