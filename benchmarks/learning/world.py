"""A world in which small models really learn, on a clock of its own.

Every token is sampled by the weights that the replica has at that time, and every update is a real
one, by the policies and the loop of rollcast; only the clock is simulated, in units of an engine
iteration. So a run needs seconds, does not depend on the machine's speed, and repeats itself.
"""

import copy
import math
import random
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.learning.learner import Learner
from benchmarks.learning.model import Decoder
from benchmarks.learning.sampling import Row, Sampler
from benchmarks.learning.tasks import Task
from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import Ending, Key, Rollout, Segment, VersionTokens
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
)
from rollcast.simulator.errors import RunError


@dataclass
class _Flight:
    """A rollout in flight: its row, the slot (None: it waits for one), what it may still sample,
    and how its present segment began."""

    rollout: Rollout
    row: Row
    submitted_s: float
    slot: int | None = None
    start_s: float = 0.0
    before: int = 0
    allowance: int | None = None


class LearningWorld:
    """A replica with ``slots`` and a trainer. train_s, sync_s: in engine iterations, which are the
    clock's seconds. apart: whether the trainer has a GPU of its own."""

    name = "learning"
    read_s = -math.inf  # the driver reads responses as they end

    def __init__(
        self,
        task: Task,
        learner: Learner,
        *,
        slots: int,
        train_s: float,
        apart: bool,
        seed: int,
        sync_s: float = 1.0,
    ) -> None:
        self.shape = ClusterShape(1, 1, 1, colocated=not apart, slots=slots)
        self._task, self._learner, self._seed = task, learner, seed
        self._train_s, self._sync_s = train_s, sync_s
        self._served = copy.deepcopy(learner.model)
        self._sampler = Sampler(task, Decoder(self._served, slots), slots, seed)
        self._flights: dict[Key, _Flight] = {}
        self._queue: deque[Key] = deque()
        self._rows: dict[tuple[int, int, int], Row] = {}  # stopped or whole, until trained on
        self._version = 0
        self._now_s = self._iteration_end_s = 0.0
        self._training: tuple[float, float, TrainBatch] | None = None
        self._syncing: tuple[float, float] | None = None

    @property
    def now_s(self) -> float:
        """Engine iterations so far."""
        return self._now_s

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """Nobody knows."""
        return None

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts or resumes rollouts."""
        for rollout in rollouts:
            if rollout.key in self._flights:
                raise RunError(f"rollout {rollout.key} is already in flight")
            name = (*rollout.key, rollout.attempt)
            row = self._rows.pop(name, None)
            if row is None:
                draw = random.Random(f"{self._seed} {rollout.prompt}")
                row = Row(*self._task.prompt(draw))
            flight = _Flight(rollout, row, self._now_s, allowance=rollout.allowance)
            flight.before = len(row.text)
            self._flights[rollout.key] = flight
            self._queue.append(rollout.key)

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts; iterations are whole at any time that the loop sees."""
        wanted = sorted(self._flights if keys is None else keys)
        for key in wanted:
            if key not in self._flights:
                raise RunError(f"rollout {key} is not in flight")
        return [self._end(key, "aborted") for key in wanted]

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Computes the update, which counts once its time is over."""
        rows = [
            [self._rows.pop((*r.key, r.attempt)) for r in group.rollouts] for group in batch.groups
        ]
        self._learner.take(batch, rows)
        self._training = (self._now_s, self._now_s + self._train_s, batch)

    def sync_weights(self) -> None:
        """Brings the weights to the replica."""
        self._syncing = (self._now_s, self._now_s + self._sync_s)

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The events of the next instant with any."""
        while True:
            if until_s is not None and until_s <= self._now_s:
                return []
            busy = bool(self._flights)
            if busy and self._iteration_end_s <= self._now_s:
                self._begin()
            ends = [self._iteration_end_s] if busy else []
            ends += [self._training[1]] if self._training else []
            ends += [self._syncing[1]] if self._syncing else []
            if not ends:
                raise RunError("nothing is under way")
            self._now_s = min([*ends, *([] if until_s is None else [until_s])])
            events: list[Event] = []
            if busy and self._iteration_end_s == self._now_s:
                events += self._iterate()
            if self._training and self._training[1] == self._now_s:
                start_s, end_s, batch = self._training
                self._training = None
                events.append(Trained(batch.step, (Phase("train", start_s, end_s),)))
            if self._syncing and self._syncing[1] == self._now_s:
                events.append(Synced((Phase("sync", *self._syncing),)))
                self._syncing = None
                self._served.load_state_dict(self._learner.model.state_dict())
                self._version += 1
            if events:
                return events

    def _begin(self) -> None:
        """Fills the slots for an iteration."""
        started: list[_Flight] = []
        while self._queue and len(started) < len(self._sampler.free):
            key = self._queue.popleft()
            if key in self._flights:
                started.append(self._flights[key])
        if started:
            slots = self._sampler.start([flight.row for flight in started])
            for flight, slot in zip(started, slots, strict=True):
                flight.slot, flight.start_s = slot, self._now_s
        self._iteration_end_s = self._now_s + 1.0

    def _iterate(self) -> list[Event]:
        """One character of every row."""
        whole = {*self._sampler.step(self._version)}
        events: list[Event] = []
        for key, flight in sorted(self._flights.items()):
            spent = flight.allowance is not None and _sampled(flight) >= flight.allowance
            if flight.slot in whole:
                events.append(Ended(self._end(key, "length" if flight.row.truncated else "stop")))
            elif spent and flight.slot is not None:
                events.append(Ended(self._end(key, "budget")))
        return events

    def _end(self, key: Key, ending: Ending) -> Segment:
        """Takes a rollout out of flight."""
        flight = self._flights.pop(key)
        if flight.slot is not None:
            self._sampler.stop(flight.slot)
        else:
            self._queue = deque(other for other in self._queue if other != key)
        row, rollout = flight.row, flight.rollout
        self._rows[(*key, rollout.attempt)] = row
        reward = None
        if ending in ("stop", "length"):
            reward = self._task.reward(row.answer, row.text)
        return Segment(
            *key,
            rollout.attempt,
            0,
            self._task.width,
            tuple(_by_version(row.versions[flight.before :])),
            ending,
            flight.start_s if flight.slot is not None else self._now_s,
            self._now_s,
            prefill_tokens=self._task.width + flight.before if flight.slot is not None else 0,
            reward=reward,
        )


def _sampled(flight: _Flight) -> int:
    return sum(flight.row.sampled[flight.before :])


def _by_version(versions: Sequence[int]) -> list[VersionTokens]:
    """Runs of equal versions, the environment's characters left out."""
    runs: list[VersionTokens] = []
    for version in versions:
        if version < 0:
            continue
        if runs and runs[-1].version == version:
            runs[-1] = VersionTokens(version, runs[-1].tokens + 1)
        else:
            runs.append(VersionTokens(version, 1))
    return runs
