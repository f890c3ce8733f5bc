"""Weights on their way from the trainer to the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from rollcast.engine.actors.fleet import Fleet, Replica
from rollcast.engine.actors.messages import Loaded
from rollcast.engine.actors.updates import Updates, Weights
from rollcast.engine.log import Arrival, EngineLog
from rollcast.engine.sync_check import require_close
from rollcast.simulator.core.world import Phase, Synced
from rollcast.simulator.errors import RunError


@dataclass(slots=True)
class _Sync:
    """A sync under way. waiting: replicas that have not loaded. woken_s: when the last one that
    slept was awake; 0 where none slept."""

    token: int
    weights: Weights
    start_s: float
    waiting: set[int]
    done: int = 0
    woken_s: float = 0.0
    end_s: float = 0.0

    def phases(self, zero_s: float) -> tuple[Phase, ...]:
        """Waking, where any replica slept, and loading."""
        loads_s = self.woken_s or self.start_s
        sync = Phase("sync", loads_s - zero_s, self.end_s - zero_s)
        if not self.woken_s:
            return (sync,)
        return Phase("switch", self.start_s - zero_s, loads_s - zero_s), sync


class WeightSyncs:
    """serving: the replicas' weights; None: those they started with. workers: of each replica.
    timer: the driver's clock, seconds. apart: whether replicas have processes of their own."""

    def __init__(
        self, fleet: Fleet, updates: Updates, workers: int, timer: Callable[[], float], apart: bool
    ) -> None:
        self.serving: Weights | None = None
        self._fleet, self._updates, self._workers = fleet, updates, workers
        self._timer, self._apart = timer, apart
        self._tokens = count(1)
        self._sync: _Sync | None = None

    @property
    def busy(self) -> bool:
        """Whether a sync is under way."""
        return self._sync is not None

    @property
    def version(self) -> int:
        """Of the replicas' weights."""
        return 0 if self.serving is None else self.serving.version

    def start(self) -> None:
        """Sends the newest weights to every replica. Raises RunError before the first update."""
        weights = self._updates.latest
        if weights is None:
            raise RunError("a sync was asked for before the first update")
        live = {home.number for home in self._fleet.live}
        self._sync = _Sync(next(self._tokens), weights, self._timer(), live)
        self.serve(weights, self._sync.token)

    def serve(self, weights: Weights, token: int = 0) -> None:
        """Loads weights into every replica. token: of the sync; 0 for none."""
        self.serving = weights
        self._load(self._fleet.live, token)

    def welcome(self, home: Replica) -> None:
        """Gives a replica that has started the others' weights."""
        self.connect(home)
        token = 0
        if self._sync is not None:
            token = self._sync.token
            self._sync.waiting.add(home.number)
        self._load([home], token)

    def connect(self, home: Replica) -> None:
        """Connects a replica and the trainer, where weights go by wire."""
        if self._updates.wired:
            home.actor.call("connect", self._updates.connect(home.number, self._workers))

    def loaded(
        self, home: Replica, loaded: Loaded, log: EngineLog, zero_s: float
    ) -> tuple[float, Synced] | None:
        """Logs that a replica has its weights and checks them; with the last one, the sync's end
        and event. zero_s: the driver's clock at the run's 0. Raises EngineError where engine and
        trainer differ."""
        sync = self._sync
        if sync is None or loaded.token != sync.token:
            return None
        end_s, trainers = loaded.end_s, sync.weights.log_probs
        if self._apart:
            ours = (at_s - home.zero_s for at_s in (loaded.start_s, loaded.loaded_s, end_s))
            times = (at_s - zero_s for at_s in (sync.start_s, *ours))
            log.arrivals.append(Arrival(sync.weights.version, home.number, *times))
        elif loaded.log_probs is not None:
            trainers, end_s = self._updates.log_probs(sync.weights.sample), self._timer()
        if loaded.log_probs is not None:
            found = require_close(loaded.log_probs, trainers, self._fleet.tolerance)
            log.sync_differences.append(found.worst)
            log.sync_means.append(found.mean)
            log.syncs_apart.append(found.p99 > self._fleet.tolerance)
            log.sync_check_s.append(end_s - loaded.loaded_s)
        sync.waiting.discard(home.number)
        sync.done += 1
        if loaded.woke:
            sync.woken_s = max(sync.woken_s, loaded.start_s - home.zero_s)
        sync.end_s = max(sync.end_s, end_s - home.zero_s)
        return self._ended(sync, zero_s)

    def lost(self, home: Replica, zero_s: float) -> tuple[float, Synced] | None:
        """Does not wait for a replica; the sync's end and event, if it was the last one."""
        if self._sync is None:
            return None
        self._sync.waiting.discard(home.number)
        return self._ended(self._sync, zero_s)

    def _ended(self, sync: _Sync, zero_s: float) -> tuple[float, Synced] | None:
        if sync.waiting or not sync.done:
            return None
        self._sync = None
        self._updates.keep_only([sync.weights])  # which every replica has by now
        return sync.end_s, Synced(sync.phases(zero_s))

    def _load(self, homes: Sequence[Replica], token: int) -> None:
        weights = self.serving
        if weights is None:
            return
        for home in homes:
            home.actor.call("load", token, weights.ref, weights.version, weights.sample)
        if self._updates.wired:
            self._updates.send([home.number for home in homes], weights.ref)
