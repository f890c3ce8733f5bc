"""A simulated cluster that is held to a record: it says how long things take, the record says what
came of them.

Where several replicas, or rollout and training at once, decide by their timing what the loop is
told first, a forecast would soon take other decisions than the run that it is to be held against.
Here it takes the same ones: each verb returns what the record says, with the times at which the
simulated cluster has done all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simulator.loop.recorded import Entry, RecordedWorld
from simulator.plan import Layout, Placement
from simulator.rollout import Key, Rollout, Stay
from simulator.world import Ended, Event, Synced, TrainBatch, Trained, World


class FollowingWorld:
    """A `simulator.world.World`. entries: the record; world: what it is carried out on, whose
    rollouts are as long as the record's (`simulator.workload.recorded.RecordedWorkload`).

    A rollout that the record stopped is stopped at the recorded count of tokens, however far the
    simulated one had got by then: where the costs are right, the two are near.

    Raises RunError where the loop asks for anything but what is recorded.
    """

    def __init__(self, entries: Sequence[Entry], world: World) -> None:
        self.name, self.shape = world.name, world.shape
        self._record = RecordedWorld([*entries], None, world.shape, world.name)
        self._world = world
        self._flying: set[Key] = set()  # in the simulated cluster
        self._ended: dict[Key, Stay] = {}  # there, and not yet by the record
        self._others: list[Trained | Synced] = []

    @property
    def now_s(self) -> float:
        """Simulated seconds since the run began."""
        return self._world.now_s

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts rollouts."""
        self._record.submit(rollouts, placement)
        self._world.submit(rollouts, placement)
        self._flying |= {rollout.key for rollout in rollouts}

    def foresee(self, rollout: Rollout) -> int | None:
        """Nobody knew when it was recorded."""
        return None

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Stay]:
        """Stops rollouts, as far along as the record says."""
        recorded = self._record.abort(keys, for_good)
        wanted = {stay.key for stay in recorded}
        timed = {stay.key: stay for stay in self._world.abort(wanted & self._flying, for_good)}
        self._flying -= wanted
        timed |= {key: self._ended.pop(key) for key in wanted & self._ended.keys()}
        return [_timed(stay, timed[stay.key]) for stay in recorded]

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update, or a part of one."""
        self._record.train(batch, layout)
        self._world.train(batch, layout)

    def sync_weights(self) -> None:
        """Starts a sync."""
        self._record.sync_weights()
        self._world.sync_weights()

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The recorded events, once all of them have happened here too."""
        recorded = self._record.wait(until_s)
        events: list[Event] = []
        for event in recorded:
            if isinstance(event, Ended):
                while event.stay.key not in self._ended:
                    self._go_on()
                events.append(Ended(_timed(event.stay, self._ended.pop(event.stay.key))))
            else:
                events.append(self._next_like(event))
        return events

    def _next_like(self, recorded: Trained | Synced) -> Trained | Synced:
        while True:
            for place, event in enumerate(self._others):
                if type(event) is type(recorded):
                    return self._others.pop(place)
            self._go_on()

    def _go_on(self) -> None:
        """Takes in the simulated cluster's next events."""
        for event in self._world.wait():
            if isinstance(event, Ended):
                self._flying.discard(event.stay.key)
                self._ended[event.stay.key] = event.stay
            else:
                self._others.append(event)


def _timed(recorded: Stay, simulated: Stay) -> Stay:
    """What was recorded, with where and when the simulated cluster did it, and its work."""
    return recorded._replace(
        replica=simulated.replica,
        start_s=simulated.start_s,
        end_s=simulated.end_s,
        prefill_tokens=simulated.prefill_tokens,
        recomputed_tokens=simulated.recomputed_tokens,
        preemptions=simulated.preemptions,
    )
