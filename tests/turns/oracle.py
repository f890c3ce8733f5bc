"""A task of several turns, and an environment that does and takes what its rollout's name says."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from rollcast.engine.environments import Answer, CallError, Episode, Turn
from rollcast.engine.environments.sandbox import Patience
from rollcast.engine.sessions import TurnRules
from rollcast.engine.tasks.base import Prompt
from rollcast.simulator.workload.slots import EnvironmentSpec
from tests.turns.virtual import TICKS

VOCABULARY, FIRST_WORD = 96, 14
CAP, MAX_TURNS, MAX_CONTEXT = 12, 5, 100
"""Tokens of a turn, turns, and tokens of a context."""


@dataclass
class TurnTask:
    """Random prompts."""

    max_new_tokens: int = CAP

    def prompt(self, group: int, seed: int) -> Prompt:
        rng = Random(f"{seed} {group}")
        return Prompt(str(group), tuple(words(rng, rng.randrange(3, 40))))

    def reward(self, prompt: Prompt, response_text: str) -> float:
        raise AssertionError("its environment says what it earned")

    def held_out(self, count: int) -> list[Prompt]:
        return [self.prompt(-1 - number, 0) for number in range(min(count, 5))]

    def decode(self, token_ids: Sequence[int]) -> str:
        return " ".join(map(str, token_ids))


def words(rng: Random, count: int) -> list[int]:
    return [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(count)]


@dataclass
class Oracle:
    """Its boot and its answers take up to ``slow`` ticks. It fails now and then, and not always a
    second time; it must be told all that it had been asked, in order, whenever it boots."""

    slow: int = 40
    episode: Episode | None = None
    failed: set[int] = field(default_factory=set)
    asked: int = 0

    def reset(self, episode: Episode) -> float:
        self.episode, self.asked = episode, 0
        return self._rng("boot").randrange(1, 1 + self.slow) / TICKS

    def step(self, said: Turn) -> Answer:
        assert said.turn == self.asked, "it was not told of a turn"
        rng = self._rng(said.turn)
        seconds = rng.randrange(1, 1 + self.slow) / TICKS
        if rng.random() < 0.1 and said.turn not in self.failed:
            if rng.random() < 0.5:
                self.failed.add(said.turn)
            raise CallError("it failed", seconds)
        self.asked += 1
        observation = words(rng, rng.randrange(0, 20))
        reward = float(sum(said.token_ids) % 2)
        return Answer(observation, rng.random() < 0.25, reward, seconds)

    def close(self) -> None:
        self.episode = None

    def _rng(self, place: object) -> Random:
        assert self.episode is not None
        episode = self.episode
        return Random(f"{episode.group} {episode.index} {episode.attempt} {place}")


def rules(slow: int = 40, timeout: float | None = None, **spec: Any) -> TurnRules:
    """timeout: as a share of the slowest answer."""
    patience = Patience(1e6 if timeout is None else timeout * slow / TICKS, retry=1)
    return TurnRules(
        lambda: Oracle(slow),
        lambda text: [],
        VOCABULARY,
        EnvironmentSpec(**spec),
        patience,
        MAX_TURNS,
        MAX_CONTEXT,
    )


CASES: list[tuple[str, dict[str, Any], str]] = [
    ("sync", {}, "keep"),
    ("sync", {"slots": 5, "held": "rollout"}, "keep"),
    ("sync", {"slots": 3, "timeout": 0.75}, "restart"),
    ("april(over_sampling=2)", {"slots": 3}, "keep"),
    ("april(over_sampling=2)", {"slots": 6, "held": "rollout", "on_suspend": "close"}, "restart"),
    ("token_budget(tokens=1000, turns=1)", {"slots": 4}, "keep"),
    ("april(over_sampling=2)+pods(keep=2)+prefix_reuse", {"on_suspend": "close"}, "keep"),
]
"""Policies, environments, and what becomes of rollouts whose environment failed."""

MORE_CASES: list[tuple[str, dict[str, Any], str]] = [
    ("sync", {"slots": 1}, "keep"),
    ("sync", {"timeout": 0.75}, "keep"),
    ("sync", {"slots": 2, "held": "rollout", "timeout": 0.5}, "restart"),
    ("april(over_sampling=2)", {}, "keep"),
    ("april(over_sampling=2)", {"on_suspend": "close", "timeout": 0.9}, "restart"),
    ("april(over_sampling=2)", {"slots": 6, "held": "rollout"}, "keep"),
    ("april(over_sampling=1.5, surplus=drop, mask_off_policy=true)", {"slots": 4}, "keep"),
    ("partial_rollout", {"on_suspend": "close"}, "keep"),
    ("tail_batching", {"slots": 4}, "keep"),
    ("dynamic_sampling", {}, "keep"),
    ("sorted_rl", {"slots": 4}, "keep"),
    ("colocate_async", {"slots": 4}, "keep"),
    ("token_budget(tokens=20)", {}, "keep"),
    ("token_budget(tokens=20, turns=2)", {"on_suspend": "close", "slots": 2}, "keep"),
    ("sagc(candidates=[2, 4, 8], first=4)", {"slots": 8}, "keep"),
]
