"""The workload and the router of a fleet: what each request is, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.cluster.routing import ROUTINGS, Loaded, Queues, Router
from rollcast.simulator.core.rollout import Key, Rollout
from rollcast.simulator.workload.base import DerivedWorkload, Workload
from rollcast.simulator.workload.draws import GroupDraw

FIRST_ASKED = 1 << 40
"""Groups from this number on are requests; those below are of rollcast's own loop."""


class AskedWorkload(DerivedWorkload):
    """The scenario's workload, and the requests' own lengths."""

    def __init__(self, base: Workload) -> None:
        self.base = base
        self.asked: dict[int, GroupDraw] = {}

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """A request's own draw, or the scenario's."""
        if group >= FIRST_ASKED:
            return self.asked[group]
        return self.base.draw(group, size, attempt, version, prompt, visit)


class Load:
    """A replica's load when it was looked at last: a request looks at all of them."""

    __slots__ = ("load",)

    def __init__(self) -> None:
        self.load = 0


class Directed(Router):
    """Sends a request where it was directed, and everything else as the scenario says."""

    def __init__(self, replicas: Sequence[Loaded], routing: str) -> None:
        self._replicas = replicas
        self._loads = [Load() for _ in replicas]
        self.inner = ROUTINGS[routing](self._loads)
        self.where: dict[Key, int] = {}

    def look(self) -> None:
        """Looks at the replicas' loads, for ``inner``."""
        for replica, load in zip(self._replicas, self._loads, strict=True):
            load.load = replica.load

    def route(self, rollout: Rollout, queues: Queues) -> int:
        """The replica's number."""
        number = self.where.get(rollout.key)
        if number is not None:
            return number
        self.look()
        return self.inner.route(rollout, queues)

    def new_weights(self) -> None:
        """The replicas' caches are empty now."""
        self.inner.new_weights()
