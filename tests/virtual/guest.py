"""rollcast's own loop on the engines of a fleet, in a thread of the virtual clock."""

import math
from collections.abc import Collection, Sequence

from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import Key, Rollout, Segment
from rollcast.simulator.core.world import Event, TrainBatch
from rollcast.simulator.costs.clock import to_ticks
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.kernel import Actor


class GuestWorld:
    """A `simulator.core.world.World`: its verbs go to the fleet's engines and trainer, and to wait
    is to let the other threads run."""

    name = "virtual"
    read_s = -math.inf  # the driver reads responses as they end

    def __init__(self, fleet: Fleet) -> None:
        self.shape = fleet.cluster.shape
        self._fleet = fleet
        self._mail: list[Event] = []
        self._waiting: Actor | None = None
        fleet.guest = self._happened

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._fleet.now_s

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """See `simulator.core.world.World.submit`."""
        self._fleet.cluster.submit(rollouts, placement)

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """See `simulator.core.world.World.abort`."""
        return self._fleet.cluster.abort(keys, for_good)

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """See `simulator.core.world.World.train`."""
        self._fleet.cluster.train(batch, layout)

    def sync_weights(self) -> None:
        """See `simulator.core.world.World.sync_weights`."""
        self._fleet.cluster.sync_weights()

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """See `simulator.core.world.World.oracle_tokens`."""
        return self._fleet.cluster.oracle_tokens(rollout)

    def wait(self, until_s: float | None = None) -> list[Event]:
        """See `simulator.core.world.World.wait`; raises DeadlockError where nothing is left."""
        kernel = self._fleet.kernel
        if not self._mail:
            self._waiting = kernel.current
            until = None if until_s is None else max(to_ticks(until_s), kernel.now)
            kernel.block(until, "an event of the engines")
            self._waiting = None
        mail, self._mail = self._mail, []
        return mail

    def _happened(self, events: Sequence[Event]) -> None:
        self._mail += events
        if self._waiting is not None:
            self._fleet.kernel.wake(self._waiting)
