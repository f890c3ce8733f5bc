"""The workload and the router of a fleet: what each request is, and where it goes."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.cluster.routing import ROUTINGS, Router
from rollcast.simulator.core.rollout import Key, Rollout
from rollcast.simulator.workload.base import DerivedWorkload, GroupDraw, Workload

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


class Directed(Router):
    """Sends a request where it was directed, and everything else as the scenario says."""

    def __init__(self, routing: str) -> None:
        self.inner = ROUTINGS[routing]()
        self.where: dict[Key, int] = {}

    def route(self, rollout: Rollout, loads: Sequence[int]) -> int:
        """The replica's number."""
        number = self.where.get(rollout.key)
        return self.inner.route(rollout, loads) if number is None else number

    def new_weights(self) -> None:
        """The replicas' caches are empty now."""
        self.inner.new_weights()
