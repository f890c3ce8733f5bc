"""Which replica a rollout goes to."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from rollcast.simulator.core.rollout import Key, Rollout

T = TypeVar("T")


class Loaded(Protocol):
    """A replica, as far as loads count; simulated or real."""

    @property
    def load(self) -> int:
        """Rollouts running or waiting there."""


class Queues(Generic[T]):
    """What one submit sends to each replica. loads: rollouts running, waiting or in these queues,
    by replica; the replicas are looked at once."""

    def __init__(self, replicas: Iterable[Loaded]) -> None:
        self.loads = [replica.load for replica in replicas]
        self.by_replica: list[list[T]] = [[] for _ in self.loads]

    def add(self, number: int, item: T) -> None:
        """Puts it into a replica's queue."""
        self.by_replica[number].append(item)
        self.loads[number] += 1


class Router:
    """Chooses replicas by their loads, of which there are as many as replicas."""

    def route(self, rollout: Rollout, loads: Sequence[int]) -> int:
        """The replica's number."""
        raise NotImplementedError

    def new_weights(self) -> None:
        """The replicas' caches are empty now."""


class RoundRobin(Router):
    """The i-th request goes to replica i modulo their number: each turn of a rollout is one."""

    def __init__(self) -> None:
        self._next = 0

    def route(self, rollout: Rollout, loads: Sequence[int]) -> int:
        """The next replica in turn."""
        number = self._next
        self._next = (number + 1) % len(loads)
        return number


class LeastLoaded(Router):
    """To the replica with the fewest running or waiting (the lowest number among equals)."""

    def route(self, rollout: Rollout, loads: Sequence[int]) -> int:
        """The least loaded replica."""
        return loads.index(min(loads))


class GroupAffinity(LeastLoaded):
    """All rollouts of a group to one replica, at first the least loaded, to share prompt blocks."""

    def __init__(self) -> None:
        self._homes: dict[Hashable, int] = {}

    def route(self, rollout: Rollout, loads: Sequence[int]) -> int:
        """The replica that has its blocks."""
        name = self._name(rollout)
        home = self._homes.get(name)
        if home is None:
            home = self._homes[name] = super().route(rollout, loads)
        return home

    def _name(self, rollout: Rollout) -> Hashable:
        return rollout.group


class SessionAffinity(GroupAffinity):
    """Each turn to the replica of the one before, which may have its blocks; the first turn, and
    the next one after new weights, to the least loaded."""

    def _name(self, rollout: Rollout) -> Hashable:
        return rollout.group, rollout.index, rollout.attempt

    def new_weights(self) -> None:
        """Nobody has blocks any more."""
        self._homes.clear()


class Balance:
    """Rollouts to the replica with the fewest expected tokens outstanding (rounded up, so that sums
    are exact), the lowest number among equals: longest processing time first (Graham 1969) if given
    in that order. Without an expectation a rollout counts as the mean of the others, or as one
    token."""

    def __init__(self, replicas: int) -> None:
        self._loads = [0] * replicas
        self._placed: dict[Key, tuple[int, int]] = {}
        self._expected = 0  # of all that were expected
        self._count = 0

    def place(self, rollout: Rollout) -> int:
        """The rollout's replica."""
        expected = rollout.expected_tokens
        if expected is None:
            weight = -(-self._expected // self._count) if self._count else 1
        else:
            self._expected += math.ceil(expected)
            self._count += 1
            weight = max(math.ceil(expected) - rollout.new_tokens, 1)
        number = self._loads.index(min(self._loads))
        self._loads[number] += weight
        self._placed[rollout.key] = (number, weight)
        return number

    def home(self, rollout: Rollout) -> int:
        """The replica of a rollout, which stays there turn after turn, or is placed now."""
        known = self._placed.get(rollout.key)
        return self.place(rollout) if known is None else known[0]

    def left(self, key: Key) -> None:
        """A rollout has left its replica."""
        if key in self._placed:
            number, weight = self._placed.pop(key)
            self._loads[number] -= weight


ROUTINGS: dict[str, Callable[[], Router]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "group_affinity": GroupAffinity,
    "session_affinity": SessionAffinity,
}
