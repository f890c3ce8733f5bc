"""Some of what is trained on, as text, for people to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollcast.simulator.core.world import TrainBatch
from rollcast.simulator.loop.accounting import reward_of

MOST_CHARACTERS = 4000
"""Of a prompt, or of a response: its first and its last half of them are kept."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A rollout of a batch. advantage: None where its group has no baseline. version: of the
    weights that its last token was sampled with."""

    step: int
    group: int
    index: int
    prompt: str
    response: str
    tokens: int
    reward: float
    advantage: float | None
    version: int


class Texts(Protocol):
    """What samples are taken from: `engine.responses.Responses`."""

    tokens: Any
    task: Any

    def prompt(self, group: int) -> Any:
        """The prompt of a group."""
        ...


@dataclass(frozen=True, slots=True)
class Sampler:
    """Takes ``count`` rollouts of each batch: the first of as many groups, spread over it.
    advantage: of a reward, by the rewards of its group's baseline."""

    count: int
    advantage: Callable[[float, Sequence[float]], float]

    def of(self, batch: TrainBatch, responses: Texts) -> Iterable[Sample]:
        """The samples of a batch."""
        groups = [group for group in batch.groups if group.rollouts]
        every = max(1, len(groups) // max(1, self.count))
        for group in groups[::every][: self.count]:
            rollout = group.rollouts[0]
            tokens = responses.tokens[rollout.key]
            if not tokens.ids:
                continue
            reward = reward_of(rollout)
            advantage = None
            if group.baseline_rewards:
                advantage = self.advantage(reward, group.baseline_rewards)
            yield Sample(
                batch.step,
                rollout.group,
                rollout.index,
                _short(responses.prompt(rollout.group).text),
                _short(responses.task.decode(tokens.ids)),
                len(tokens.ids),
                float(reward),
                advantage,
                tokens.versions[-1],
            )


def _short(text: str) -> str:
    half = MOST_CHARACTERS // 2
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:half]} [{len(text) - MOST_CHARACTERS} characters left out] {text[-half:]}"
