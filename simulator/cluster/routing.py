"""Which replica a rollout goes to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from simulator.cluster.batching import Stay
from simulator.cluster.replica import Replica
from simulator.rollout import Rollout

Queues = Sequence[Sequence[Stay]]


class Router(Protocol):
    """Chooses replicas; ``queues`` are the stays routed in the submit under way, per replica."""

    def route(self, rollout: Rollout, queues: Queues) -> int:
        """The replica's number."""
        ...


class RoundRobin:
    """The i-th rollout submitted goes to replica i modulo their number."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = len(replicas)
        self._next = 0

    def route(self, rollout: Rollout, queues: Queues) -> int:
        """The next replica in turn."""
        number = self._next
        self._next = (number + 1) % self._replicas
        return number


class LeastLoaded:
    """To the replica with the fewest running or waiting (the lowest number among equals)."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas

    def route(self, rollout: Rollout, queues: Queues) -> int:
        """The least loaded replica."""
        loads = [r.load + len(queue) for r, queue in zip(self._replicas, queues, strict=True)]
        return loads.index(min(loads))


class GroupAffinity(LeastLoaded):
    """All rollouts of a group to one replica, the least loaded when the group is first seen, so
    that they share its prompt's blocks."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        super().__init__(replicas)
        self._homes: dict[int, int] = {}

    def route(self, rollout: Rollout, queues: Queues) -> int:
        """The group's replica."""
        home = self._homes.get(rollout.group)
        if home is None:
            home = self._homes[rollout.group] = super().route(rollout, queues)
        return home


ROUTINGS: dict[str, Callable[[Sequence[Replica]], Router]] = {
    "round_robin": RoundRobin,
    "least_loaded": LeastLoaded,
    "group_affinity": GroupAffinity,
}
