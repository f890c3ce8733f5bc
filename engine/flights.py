"""Rollouts in flight on the replicas, and which replica each goes to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollcast.engine.actors.fleet import Fleet, Replica
from rollcast.engine.actors.messages import Submit
from rollcast.engine.frontend import Finished, Order
from rollcast.simulator.cluster.routing import ROUTINGS, Balance, Queues, Router
from rollcast.simulator.core.plan import Placement
from rollcast.simulator.core.rollout import Key, Rollout


@dataclass(eq=False, slots=True)
class Flight:
    """A rollout that the loop considers in flight. replica: None while none lives to take it.
    finished: its result, once it has arrived here. zero_s: the replica's clock at the driver's 0.
    """

    rollout: Rollout
    order: Order
    placement: Placement
    replica: Replica | None = None
    finished: Finished | None = None
    zero_s: float = 0.0


class Flights:
    """The flights by key. routing: a rule of `simulator.cluster.routing`."""

    def __init__(self, fleet: Fleet, routing: str) -> None:
        self.by_key: dict[Key, Flight] = {}
        self.router: Router = ROUTINGS[routing]()
        self.balance = Balance(len(fleet.replicas))
        self._fleet = fleet
        self._waiting: list[Key] = []  # while no replica lives

    def start(self, rollout: Rollout, order: Order, placement: Placement) -> Flight:
        """Notes a flight, which is still to be placed."""
        flight = self.by_key[rollout.key] = Flight(rollout, order, placement)
        return flight

    def place(self, flights: Iterable[Flight]) -> None:
        """Sends rollouts to live replicas, each of which gets all of its own at once; without any,
        they wait for one."""
        replicas, live = self._fleet.replicas, self._fleet.live
        queues = Queues[Flight](replicas)
        for flight in flights:
            if not live:
                self._waiting.append(flight.rollout.key)
                continue
            if flight.placement == "balanced":
                number = self.balance.home(flight.rollout)
            else:
                number = self.router.route(flight.rollout, queues.loads)
            if not replicas[number].live:
                number = min(live, key=lambda one: queues.loads[one.number]).number
            queues.add(number, flight)
        for home, queue in zip(replicas, queues.by_replica, strict=True):
            if queue:
                for flight in queue:
                    flight.replica = home
                    home.flying.add(flight.rollout.key)
                home.post(Submit(tuple(flight.order for flight in queue)))

    def place_waiting(self) -> None:
        """Places the rollouts that waited for a replica."""
        waiting, self._waiting = self._waiting, []
        self.place(self.by_key[key] for key in waiting)

    def place_again(self, keys: Iterable[Key]) -> None:
        """Places rollouts whose replica was lost."""
        flights = [self.by_key[key] for key in sorted(keys)]
        for flight in flights:
            flight.replica = None
        self.place(flights)

    def stop_waiting(self, keys: Iterable[Key]) -> None:
        """Does not place these any more."""
        stopped = set(keys)
        self._waiting = [key for key in self._waiting if key not in stopped]

    def finish(self, home: Replica, finished: Finished) -> Flight:
        """Notes the result of a rollout that left its replica."""
        home.flying.discard(finished.key)
        home.losses = 0
        flight = self.by_key[finished.key]
        flight.finished, flight.zero_s = finished, home.zero_s
        return flight
