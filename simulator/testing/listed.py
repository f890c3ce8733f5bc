"""A workload of lengths and rewards that are simply written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollcast.simulator.core.rollout import Ending
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.base import DerivedWorkload, GroupDraw, Trajectory, Turn, Workload


@dataclass(frozen=True)
class ListedWorkload:
    """Prompt p's rollouts get ``lengths[p]`` tokens each, and ``rewards[p]``.

    Prompts beyond the list, and rollouts beyond a row, begin again at its start; restarts and
    further visits get the same. prompt_tokens: by prompt, cyclic. max_new_tokens: the cap; None:
    one more than the longest, so that nothing is truncated.

    Raises ScenarioError (``lengths``, ``rewards``, ``prompt_tokens``, ``max_new_tokens``) for an
    empty list or row, or a length below 1.
    """

    lengths: tuple[tuple[int, ...], ...]
    rewards: tuple[tuple[float, ...], ...] = ((1.0, 0.0),)
    prompt_tokens: tuple[int, ...] = (8,)
    cap: int | None = None
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("lengths", "rewards"):
            rows = getattr(self, field)
            if not rows or not all(rows):
                raise ScenarioError(field, "must have at least one group, and each at least one")
        if min(map(min, self.lengths)) < 1:
            raise ScenarioError("lengths", "a response has at least 1 token")
        if not self.prompt_tokens or min(self.prompt_tokens) < 1:
            raise ScenarioError("prompt_tokens", "a prompt has at least 1 token")
        if self.cap is not None and self.cap < 1:
            raise ScenarioError("max_new_tokens", "must be at least 1")

    @classmethod
    def of(
        cls,
        lengths: Sequence[Sequence[int]],
        rewards: Sequence[Sequence[float]] | None = None,
        prompt_tokens: int | Sequence[int] = 8,
        max_new_tokens: int | None = None,
    ) -> ListedWorkload:
        """From lists or arrays of numbers; default rewards are 1 and 0 in turn. Raises
        ScenarioError for another shape."""
        prompts = [prompt_tokens] if isinstance(prompt_tokens, int) else prompt_tokens
        whole = _rows("lengths", lengths)
        if any(length != int(length) for row in whole for length in row):
            raise ScenarioError("lengths", "must be whole tokens")
        return cls(
            tuple(tuple(map(int, row)) for row in whole),
            ((1.0, 0.0),) if rewards is None else _rows("rewards", rewards),
            tuple(map(int, prompts)),
            max_new_tokens,
        )

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""
        return max(map(max, self.lengths)) + 1 if self.cap is None else self.cap

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt."""
        return max(self.prompt_tokens)

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``; see `simulator.workload.base.Workload`."""
        number = group if prompt is None else prompt
        lengths = self.lengths[number % len(self.lengths)]
        rewards = self.rewards[number % len(self.rewards)]
        cap = self.max_new_tokens
        return GroupDraw(
            self.prompt_tokens[number % len(self.prompt_tokens)],
            [min(lengths[i % len(lengths)], cap) for i in range(size)],
            [rewards[i % len(rewards)] for i in range(size)],
        )


@dataclass(frozen=True)
class InTurns(DerivedWorkload):
    """A workload whose responses are cut into turns of ``turn_tokens``; between two, an environment
    adds ``observation_tokens`` after ``environment_s``.

    judged_s: seconds of the judging at the end; None for none.
    """

    base: Workload
    turn_tokens: int
    observation_tokens: int = 2
    environment_s: float = 1.0
    judged_s: float | None = None

    @property
    def max_context_tokens(self) -> int:
        """The longest prompt with the longest response, and what is observed in it."""
        answers = (self.max_new_tokens - 1) // self.turn_tokens
        return self.max_prompt_tokens + self.max_new_tokens + answers * self.observation_tokens

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        return replace(drawn, trajectories=[self._trajectory(n) for n in drawn.new_tokens])

    def _trajectory(self, tokens: int) -> Trajectory:
        sizes = [self.turn_tokens] * (tokens // self.turn_tokens)
        if tokens % self.turn_tokens:
            sizes.append(tokens % self.turn_tokens)
        last = len(sizes) - 1
        turns = [
            Turn(self.observation_tokens if i else 0, n, self.environment_s if i < last else 0.0)
            for i, n in enumerate(sizes)
        ]
        ending: Ending = "length" if tokens >= self.max_new_tokens else "stop"
        return Trajectory(tuple(turns), ending, reward_s=self.judged_s)


def _rows(field: str, rows: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
    try:
        return tuple(tuple(map(float, row)) for row in rows)
    except (TypeError, ValueError):
        raise ScenarioError(
            field, "must be a list for each group, such as [[3, 9, 4], [5, 5, 12]]"
        ) from None
