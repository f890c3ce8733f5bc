"""Replicas that free their devices' memory before an update, which begins once all sleep. They wake
by themselves, for weights or rollouts (`engine.actors.replica`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollcast.engine.actors.fleet import Replica
from rollcast.engine.actors.messages import Sleep, Slept
from rollcast.engine.actors.trainer import Part
from rollcast.engine.actors.updates import Updates
from rollcast.simulator.core.world import Phase


@dataclass(slots=True)
class _Waiting:
    """An update that waits. until_s: when the last one fell asleep, by the driver's clock."""

    token: int
    part: Part
    since_s: float
    awake: set[int]
    until_s: float = 0.0


class Sleepers:
    """updates: the trainer. timer: the driver's clock, seconds."""

    def __init__(self, updates: Updates, timer: Callable[[], float]) -> None:
        self._timer = timer
        self._updates = updates
        self._waiting: _Waiting | None = None
        self._tokens = 0
        self._slept: tuple[float, float] | None = None

    @property
    def busy(self) -> bool:
        """Whether an update waits for them."""
        return self._waiting is not None

    def make_room(self, part: Part, replicas: Sequence[Replica]) -> None:
        """Has these sleep, then begins the update."""
        self._tokens += 1
        numbers = {home.number for home in replicas}
        self._waiting = _Waiting(self._tokens, part, self._timer(), numbers)
        for home in replicas:
            home.post(Sleep(self._tokens))
        self._begin_in_room()

    def sleeps(self, home: Replica, slept: Slept) -> None:
        """Notes that one sleeps."""
        waiting = self._waiting
        if waiting is not None and slept.token == waiting.token:
            waiting.awake.discard(home.number)
            waiting.until_s = max(waiting.until_s, slept.end_s - home.zero_s)
            self._begin_in_room()

    def lost(self, home: Replica) -> None:
        """Does not wait for one."""
        if self._waiting is not None:
            self._waiting.awake.discard(home.number)
            self._begin_in_room()

    def switch(self, zero_s: float) -> tuple[Phase, ...]:
        """The phase of falling asleep before the update that has ended; none without sleepers.
        zero_s: the driver's clock at the run's 0."""
        slept, self._slept = self._slept, None
        if slept is None:
            return ()
        return (Phase("switch", slept[0] - zero_s, slept[1] - zero_s),)

    def _begin_in_room(self) -> None:
        waiting = self._waiting
        if waiting is None or waiting.awake:
            return
        self._waiting = None
        if waiting.until_s:
            self._slept = waiting.since_s, waiting.until_s
        self._updates.begin(waiting.part)
