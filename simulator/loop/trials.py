"""When rollouts in flight reach the limit on a trial."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping

from rollcast.simulator.rollout import Key, Rollout


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
