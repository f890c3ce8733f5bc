"""A simulated cluster, one iteration at a time, which the fast one must agree with to the instant.

It follows the specification sentence by sentence and looks at every replica at every instant at
which anything happens; there is no event queue. Time is counted in integer ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.cluster.replica import EngineSpec
from simulator.costs.base import CostModel, TrainLoad
from simulator.costs.clock import to_seconds, to_ticks
from simulator.errors import RunError
from simulator.plan import Layout
from simulator.rollout import Rollout
from simulator.workload.build import Workload
from simulator.world import (
    ClusterShape,
    Event,
    Finished,
    Phase,
    Synced,
    TrainBatch,
    Trained,
)
from tests.reference.replica import Pass, Replica, Stay


@dataclass
class Job:
    """An update or a weight sync: its phases, in ticks, begin once ``start`` is known."""

    step: int
    phases: list[tuple[str, int]]
    tokens: int = 0  # computed by each pass of an update
    start: int | None = None

    @property
    def end(self) -> int | None:
        return None if self.start is None else self.start + sum(t for _, t in self.phases)

    def spans(self) -> tuple[Phase, ...]:
        assert self.start is not None
        spans, instant = [], self.start
        for kind, ticks in self.phases:
            if ticks:
                start_s, end_s = to_seconds(instant), to_seconds(instant + ticks)
                spans.append(Phase(kind, start_s, end_s, 0 if kind == "switch" else self.tokens))
            instant += ticks
        return tuple(spans)


class ReferenceCluster:
    """A `simulator.world.World` that computes every iteration of every replica."""

    name = "reference"

    def __init__(
        self,
        shape: ClusterShape,
        engine: EngineSpec,
        cost: CostModel,
        workload: Workload,
        routing: str = "least_loaded",
    ) -> None:
        assert routing in ("round_robin", "least_loaded", "group_affinity")
        self.shape = shape
        self.cost = cost
        self.workload = workload
        self.routing = routing
        self.now = 0
        self.replicas = [Replica(number, engine, cost) for number in range(shape.replicas)]
        self.in_flight: dict[tuple[int, int], Stay] = {}
        self.update: Job | None = None
        self.sync: Job | None = None
        self.version = 0  # of the weights that the replicas have
        self.submitted = 0
        self.home: dict[int, Replica] = {}  # of each group, under group_affinity
        self.first_version: dict[tuple[int, int, int], int] = {}  # by (group, index, attempt)

    @property
    def now_s(self) -> float:
        """The clock, in seconds."""
        return to_seconds(self.now)

    @property
    def passes(self) -> list[Pass]:
        """Every iteration that was begun, by replica and then by time."""
        return [one for replica in self.replicas for one in replica.passes]

    # Rollouts

    def submit(self, rollouts: Sequence[Rollout]) -> None:
        """Queues rollouts, in the order given."""
        for rollout in rollouts:
            assert rollout.key not in self.in_flight
            prompt, length, reward = self.draw(rollout)
            assert rollout.new_tokens < length
            rollout.prompt_tokens = prompt
            replica = self.route(rollout)
            rollout.replica = replica.number
            stay = Stay(rollout, self.submitted, prompt, length, reward, rollout.new_tokens)
            self.submitted += 1
            replica.waiting.append(stay)
            self.in_flight[rollout.key] = stay

    def draw(self, rollout: Rollout) -> tuple[int, int, float]:
        """(prompt tokens, response tokens, reward), as of the version of the first submit."""
        group, index, attempt = rollout.group, rollout.index, rollout.attempt
        step = self.first_version.setdefault((group, index, attempt), self.version)
        drawn = self.workload.draw(group, index + 1, attempt, step)
        return drawn.prompt_tokens, drawn.new_tokens[index], drawn.rewards[index]

    def route(self, rollout: Rollout) -> Replica:
        if self.routing == "round_robin":
            return self.replicas[self.submitted % len(self.replicas)]
        least = min(self.replicas, key=lambda replica: (replica.rollouts, replica.number))
        if self.routing == "least_loaded":
            return least
        return self.home.setdefault(rollout.group, least)

    def abort(self, rollouts: Sequence[Rollout] | None = None) -> list[Rollout]:
        """Stops rollouts, all of which are in flight, at their replica's next boundary."""
        keys = sorted(self.in_flight if rollouts is None else {r.key for r in rollouts})
        stopped = []
        for key in keys:
            stay = self.in_flight.pop(key)
            replica = self.replicas[stay.rollout.replica]
            if stay in replica.waiting:
                replica.waiting.remove(stay)
                self.report(stay, stay.sampled, self.now)
            elif replica.ends is None:
                replica.leave_running(stay, self.now)
                self.report(stay, stay.sampled, self.now)
            else:
                stay.leaving = True
                self.report(stay, replica.after(stay), replica.ends)
            stopped.append(stay.rollout)
        return stopped

    def report(self, stay: Stay, sampled: int, end: int) -> None:
        """Writes what came of a stay into its rollout."""
        rollout = stay.rollout
        rollout.new_tokens = sampled
        rollout.finished = sampled == stay.length
        if rollout.finished:
            rollout.truncated = sampled == self.workload.max_new_tokens
            rollout.reward = stay.reward
        rollout.start_s = to_seconds(end if stay.start is None else stay.start)
        rollout.end_s = to_seconds(end)
        rollout.prefill_tokens = stay.prefill_tokens
        rollout.recomputed_tokens = stay.recomputed_tokens
        rollout.preemptions = stay.preemptions

    # Trainer and sync

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update; on shared GPUs it begins when the replicas are idle."""
        assert self.update is None
        load = TrainLoad(
            [
                (group.rollouts[0].prompt_tokens, [r.new_tokens for r in group.rollouts])
                for group in batch.groups
            ],
            shared_prefix=layout == "shared_prefix",
        )
        phases = [(kind, to_ticks(seconds)) for kind, seconds in self.cost.train(load).phases_s]
        if self.shape.colocated:
            phases.insert(0, ("switch", to_ticks(self.cost.switch_to_train_s)))
        self.update = Job(batch.step, phases, load.tokens)

    def sync_weights(self) -> None:
        """Starts a sync; it begins when the replicas are idle."""
        assert self.sync is None
        phases = [("sync", to_ticks(self.cost.sync_s))]
        if self.shape.colocated:
            phases.append(("switch", to_ticks(self.cost.switch_to_rollout_s)))
        self.sync = Job(-1, phases)

    # Time

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Goes on from instant to instant until something happens that the loop must know of."""
        until = None if until_s is None else to_ticks(until_s)
        while True:
            events = self.happen()
            if events:
                return events
            if until is not None and self.now >= until:
                return []
            for replica in self.replicas:
                if replica.ends is None and replica.rollouts > 0:
                    replica.begin(self.now)
            instants = [replica.ends for replica in self.replicas]
            instants += [job.end for job in (self.update, self.sync) if job is not None]
            known = [instant for instant in instants if instant is not None]
            if not known:
                raise RunError("nothing is under way")
            self.now = min(known) if until is None else min(*known, until)

    def happen(self) -> list[Event]:
        """Everything that happens at this instant, in order of (kind, group, index)."""
        finished: list[Stay] = []
        for replica in self.replicas:
            if replica.ends == self.now:
                finished += replica.end(self.now)
        for stay in finished:
            del self.in_flight[stay.rollout.key]
            self.report(stay, stay.sampled, self.now)
        rollouts = sorted((stay.rollout for stay in finished), key=lambda rollout: rollout.key)
        events: list[Event] = [Finished(rollout) for rollout in rollouts]

        idle = all(replica.idle for replica in self.replicas)
        if self.update is not None:
            if self.update.start is None and (idle or not self.shape.colocated):
                self.update.start = self.now
            if self.update.end == self.now:
                events.append(Trained(self.update.step, self.update.spans()))
                self.update = None
        if self.sync is not None:
            if self.sync.start is None and idle:
                self.sync.start = self.now
            if self.sync.end == self.now:
                events.append(Synced(self.sync.spans()))
                self.version += 1
                self.sync = None
                for replica in self.replicas:
                    assert replica.idle
                    replica.cache.clear()
        return events
