"""A request to an engine, and its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rollcast.simulator.core.rollout import Rollout, VersionTokens
from rollcast.simulator.virtual.prompts import (
    AnyPrompt,
    Conversation,
    Prompts,
    Reply,
    placeholder,
    words,
)

if TYPE_CHECKING:
    from rollcast.simulator.virtual.waits import Pending

Finish = Literal["stop", "length", "abort"]


class EngineError(RuntimeError):
    """A request that an engine failed. status: the HTTP status that tells it."""

    def __init__(self, message: str, status: int = 500) -> None:
        super().__init__(message)
        self.status = status


# A frozen one takes four times as long to make.
@dataclass(slots=True, eq=False, weakref_slot=True)
class Answer:
    """What an engine answered. Equal to itself alone.

    prompt_tokens, new_tokens: counts; versions: of the weights, oldest first, with their tokens.
    reward: of the whole response, by the scenario. turns_left, environment_s: turns that the
    scenario's rollout has after this one, and seconds until the next. start_s: of the first
    iteration. group, index: of the scenario's rollout.
    """

    request_id: str
    replica: int
    group: int
    index: int
    prompt_tokens: int
    new_tokens: int
    versions: tuple[VersionTokens, ...]
    finish: Finish
    reward: float
    asked_s: float
    start_s: float
    end_s: float
    cached_tokens: int
    preemptions: int
    turns_left: int
    environment_s: float
    ask: Asked

    @property
    def token_ids(self) -> list[int]:
        """Placeholders, as many as the answer has tokens. A later request that begins with its
        prompt and these goes on with its conversation."""
        conversation = self.ask.conversation
        ids = placeholder(conversation.serial, self.ask.turn, self.new_tokens)
        if _is_ids(self.ask.prompt):
            self.ask.remember(ids)
        return ids

    @property
    def text(self) -> str:
        """A word a token; goes on with the conversation as ``token_ids`` do."""
        said = words(self.ask.conversation.serial, self.ask.turn, self.new_tokens)
        prompt = self.ask.prompt
        if isinstance(prompt, str):
            self.ask.remember(said)
        elif isinstance(prompt, Sequence) and not _is_ids(prompt):
            self.ask.remember([{"role": "assistant", "content": said}])
        return said

    @property
    def version(self) -> int:
        """Of the weights that made the oldest token; of the engine if there is none."""
        return self.versions[0].version if self.versions else max(self.ask.version, 0)


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and bool(prompt) and isinstance(prompt[0], int)


class Asked:
    """What an answer knows of its request, which knows the answer: neither is found from the other,
    so that they go when nobody has them any more, and not when Python looks for cycles.

    shown: its rollout, as the tables have it. version: of the engine's weights when it was sent,
    -1 before.
    """

    __slots__ = ("conversation", "known", "prompt", "prompts", "shown", "turn", "version")

    def __init__(
        self,
        prompt: AnyPrompt,
        prompts: Prompts,
        conversation: Conversation,
        turn: int,
        shown: Rollout,
        version: int = -1,
    ) -> None:
        self.prompt, self.prompts, self.conversation = prompt, prompts, conversation
        self.turn, self.shown, self.version = turn, shown, version
        self.known = False

    @property
    def unit(self) -> str:
        """What the journal calls its rollout."""
        return f"{self.shown.group}.{self.shown.index}"

    def remember(self, said: Any) -> None:
        """Has requests that begin with this answer found again."""
        if not self.known and said:
            self.known = True
            self.prompts.answered(self.prompt, said, self.conversation)


class Ask(Asked):
    """A request in flight. placed: its replica, -1 before it has one. parts: its tokens by version
    so far. pending: its end, answered, aborted or failed."""

    __slots__ = (
        "asked",
        "key",
        "leaving",
        "parts",
        "pending",
        "placed",
        "preemptions",
        "prefilled",
        "prompt_tokens",
        "reply",
        "request_id",
        "rollout",
        "start_s",
        "tokens",
    )

    def __init__(
        self,
        key: tuple[int, int],
        prompt: AnyPrompt,
        prompts: Prompts,
        conversation: Conversation,
        shown: Rollout,
        reply: Reply,
        tokens: int,
        request_id: str,
        asked: int,
        pending: Pending,
    ) -> None:
        super().__init__(prompt, prompts, conversation, conversation.turn, shown)
        self.key = key
        self.reply, self.tokens, self.request_id, self.asked = reply, tokens, request_id, asked
        self.prompt_tokens = conversation.context
        self.placed = -1
        self.parts: list[VersionTokens] = []
        self.leaving = False
        self.pending = pending
        self.prefilled = self.preemptions = 0
        self.start_s = -1.0
        self.rollout: Rollout

    @property
    def started(self) -> bool:
        """Whether an engine has had it."""
        return self.version >= 0

    @property
    def made(self) -> int:
        """Tokens in its parts."""
        parts = self.parts
        return parts[0].tokens if len(parts) == 1 else sum(part.tokens for part in parts)

    def told(self) -> Asked:
        """What its answer knows of it."""
        return Asked(
            self.prompt, self.prompts, self.conversation, self.turn, self.shown, self.version
        )
