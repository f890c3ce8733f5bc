"""Which of the rollouts that wait in the driver are handed to the replicas first."""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollcast.simulator.core.plan import Dispatch, Prompts
from rollcast.simulator.core.rollout import Group, Key, Rollout
from rollcast.simulator.core.world import World
from rollcast.simulator.errors import RunError


@dataclass(slots=True)
class PromptOrder:
    """turns: prompts that had their turn. visits: launches of each prompt of a finite dataset."""

    turns: int = 0
    visits: dict[int, int] = field(default_factory=dict)

    def following(self, plan: Prompts, chosen: deque[int]) -> tuple[int, int]:
        """(prompt, earlier visits) of the next group: the first of ``chosen``, which it removes,
        else the next in order. Raises RunError where all prompts are skipped."""
        prompt = chosen.popleft() if chosen else self._in_turn(plan)
        visit = 0
        if plan.dataset is not None or prompt in self.visits:
            visit = self.visits.get(prompt, 0)
            self.visits[prompt] = visit + 1
        return prompt, visit

    def _in_turn(self, plan: Prompts) -> int:
        tried = 0
        while True:
            prompt = self.turns if plan.dataset is None else self.turns % plan.dataset
            self.turns += 1
            if prompt not in plan.skip:
                return prompt
            tried += 1
            if plan.dataset is not None and tried >= plan.dataset:
                raise RunError(f"all {plan.dataset} prompts are skipped; let the policy skip fewer")


_FEW = 16
"""Of many that are held, rollouts that are found faster than by sorting all."""


def first_of(
    held: Sequence[Rollout],
    dispatch: Dispatch,
    count: int,
    groups: Mapping[int, Group],
    world: World,
) -> Sequence[Rollout]:
    """The first ``count`` of ``held`` in the order of ``dispatch``, by its predictor; notes the
    lengths that it predicts. groups: by number. Raises RunError for an oracle where nobody knows.
    """
    predictor = dispatch.predictor
    if predictor is None:
        return held[:count]
    finished: dict[int, list[int]] = {}
    for rollout in held:
        tokens = finished.get(rollout.group)
        if tokens is None:
            winners = groups[rollout.group].winners
            tokens = finished[rollout.group] = [winner.new_tokens for winner in winners]
        rollout.expected_tokens = predictor(_Known(rollout, tokens, world))
    if dispatch.order == "fifo":
        return held[:count]
    longest = dispatch.order == "longest_first"

    def place(rollout: Rollout) -> tuple[float, int]:
        expected = rollout.expected_tokens
        if expected is None:
            return (-math.inf if longest else math.inf), rollout.index
        return (-expected if longest else expected), 0

    # either way equals stay in order of launch
    if count > _FEW:
        return sorted(held, key=place)[:count]
    return heapq.nsmallest(count, held, key=place)


class _Known(NamedTuple):
    """A rollout as predictors see it."""

    rollout: Rollout
    siblings_tokens: Sequence[int]
    world: World

    @property
    def prompt(self) -> int:
        return self.rollout.prompt

    @property
    def new_tokens(self) -> int:
        return self.rollout.new_tokens

    def oracle_tokens(self) -> int:
        tokens = self.world.oracle_tokens(self.rollout)
        if tokens is None:
            raise RunError(
                f"the {self.world.name} world does not know lengths beforehand: a policy that asks "
                "an oracle runs in simulation only"
            )
        return tokens


class Trials:
    """limit_s: seconds in flight, over all flights of a rollout; None: no limit. flying: the
    rollouts in flight, by key, which its owner changes."""

    def __init__(self, limit_s: float | None, flying: Mapping[Key, Rollout]) -> None:
        self._limit_s, self._flying = limit_s, flying
        self._ends: list[tuple[float, Key, float]] = []  # a heap: end, rollout, when submitted

    def submitted(self, rollouts: Iterable[Rollout]) -> None:
        """These take off; ``submitted_s`` says when."""
        if self._limit_s is None:
            return
        for rollout in rollouts:
            end_s = rollout.submitted_s + max(self._limit_s - rollout.flown_s, 0.0)
            heapq.heappush(self._ends, (end_s, rollout.key, rollout.submitted_s))

    @property
    def next_s(self) -> float | None:
        """The instant at which the first of them reaches the limit."""
        while self._ends:
            end_s, key, submitted_s = self._ends[0]
            rollout = self._flying.get(key)
            if rollout is not None and rollout.submitted_s == submitted_s:
                return end_s
            heapq.heappop(self._ends)
        return None

    def over(self, now_s: float) -> list[Rollout]:
        """Those that have reached it by now, each told once."""
        late: list[Rollout] = []
        while (end_s := self.next_s) is not None and end_s <= now_s:
            late.append(self._flying[heapq.heappop(self._ends)[1]])
        return late
