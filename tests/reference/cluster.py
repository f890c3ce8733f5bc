"""A simulated cluster, one iteration at a time, which the fast one must agree with to the instant.

It follows the specification sentence by sentence and looks at every replica at every instant at
which anything happens; there is no event queue. Time is counted in integer ticks.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Protocol

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import Ending, Key, Rollout, VersionTokens
from rollcast.simulator.core.rollout import Segment as Told
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
)
from rollcast.simulator.costs.base import CostModel, TrainLoad
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.errors import RunError
from rollcast.simulator.workload.base import GroupDraw, Workload
from rollcast.simulator.workload.slots import EnvironmentSpec
from tests.reference.journeys import Away, Journey
from tests.reference.replica import Pass, Replica, Segment


@dataclass
class Job:
    """An update or a weight sync: its phases, in ticks, begin once ``start`` is known."""

    step: int
    phases: list[tuple[str, int]]
    tokens: int = 0  # computed by each pass of an update
    start: int | None = None
    final: bool = True

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


GOES_ON = ("turn", "budget", "aborted")


class TokenWorkload(Workload, Protocol):
    """A workload that knows the tokens themselves, which the fast cluster only hears counts of."""

    def tokens(
        self, group: int, index: int, attempt: int, version: int, prompt: int, visit: int
    ) -> tuple[tuple[object, ...], int]:
        """Prompt and response of a rollout, drawn at this version, and how many of them it may
        have in common with others."""
        ...


class OnlyPromptsShared:
    """A workload of counts, with tokens: those of a prompt, and for each response its own."""

    def __init__(self, counts: Workload) -> None:
        self.max_new_tokens = counts.max_new_tokens
        self.max_prompt_tokens = counts.max_prompt_tokens
        self.warnings = counts.warnings
        self.draw = cache(counts.draw)

    def tokens(
        self, group: int, index: int, attempt: int, version: int, prompt: int, visit: int
    ) -> tuple[tuple[object, ...], int]:
        drawn = self.draw(group, index + 1, attempt, version, prompt, visit)
        asked = tuple((prompt, place) for place in range(drawn.prompt_tokens))
        own = range(drawn.new_tokens[index] + observed_in(drawn, index))
        return (*asked, *((group, index, attempt, place) for place in own)), len(asked)


def observed_in(drawn: GroupDraw, index: int) -> int:
    """Tokens that a rollout observes between its turns."""
    if drawn.trajectories is None:
        return 0
    return sum(turn.observation_tokens for turn in drawn.trajectories[index].turns)


class ReferenceCluster:
    """A `simulator.core.world.World` that computes every iteration of every replica."""

    name = "reference"
    read_s = -math.inf  # the driver reads responses as they end

    def __init__(
        self,
        shape: ClusterShape,
        engine: EngineSpec,
        cost: CostModel,
        workload: TokenWorkload,
        routing: str = "least_loaded",
        environment: EnvironmentSpec | None = None,
    ) -> None:
        assert routing in ("round_robin", "least_loaded", "group_affinity", "session_affinity")
        self.shape = shape
        self.cost = cost
        self.workload = workload
        self.routing = routing
        self.now = 0
        self.replicas = [Replica(number, engine, cost) for number in range(shape.replicas)]
        self.in_flight: dict[tuple[int, int], Segment] = {}
        self.update: Job | None = None
        self.sync: Job | None = None
        self.version = 0  # of the weights that the replicas have
        self.updates = 0  # that the trainer has made
        self.parts: list[TrainLoad] = []  # of the update under way that it has had already
        self.expected: dict[int, dict[Key, int]] = {r.number: {} for r in self.replicas}
        self.known_lengths: list[int] = []
        self.submitted = self.routed = self.aborts = 0
        self.leaves: dict[Key, int] = {}  # when those that were stopped have left their replica
        self.late: list[tuple[int, Rollout, Placement]] = []  # to be queued at that instant
        self.home: dict[object, Replica] = {}  # of each group or session, under affinity
        self.away = Away(environment or EnvironmentSpec())
        self.over: list[Told] = []  # ended on no replica
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

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Queues rollouts, in the order given; one that has still to leave a replica, when it has
        left."""
        for rollout in rollouts:
            assert not self.flies(rollout)
            assert rollout.key not in [late.key for _, late, _ in self.late]
            assert rollout.new_tokens < self.drawn(rollout).new_tokens[rollout.index] or (
                self.away.of(rollout) is not None
            )
        now = [r for r in rollouts if self.leaves.get(r.key, 0) <= self.now]
        self.queue(now, placement)
        for rollout in rollouts:
            if rollout not in now:
                self.late.append((self.leaves[rollout.key], rollout, placement))

    def flies(self, rollout: Rollout) -> bool:
        journey = self.away.journeys.get(rollout.key)
        return rollout.key in self.in_flight or (journey is not None and journey.flying)

    def queue(self, rollouts: Sequence[Rollout], placement: Placement) -> None:
        for rollout in rollouts:
            drawn = self.drawn(rollout)
            if drawn.trajectories is not None:
                trajectory, balanced = drawn.trajectories[rollout.index], placement == "balanced"
                journey = self.away.submit(rollout, trajectory, balanced, self.now)
                if journey.to_do or journey.request is not None:
                    self.go_on(journey)
                else:  # it is over before the next thing happens
                    self.away.turned.append(journey)
                continue
            if placement == "balanced":
                replica = self.least_expected(rollout)
            else:
                replica = self.route(rollout)
            until = drawn.new_tokens[rollout.index]
            self.hand_to(replica, rollout, 0, rollout.new_tokens, until, rollout.allowance)

    def hand_to(
        self,
        replica: Replica,
        rollout: Rollout,
        observed: int,
        sampled: int,
        until: int,
        allowance: int | None,
    ) -> None:
        segment = Segment(
            rollout,
            self.submitted,
            replica.number,
            self.tokens(rollout),
            self.drawn(rollout).prompt_tokens,
            observed,
            until,
            sampled,
            sampled,
            allowance,
        )
        self.submitted += 1
        replica.waiting.append(segment)
        self.in_flight[rollout.key] = segment

    def go_on(self, journey: Journey) -> None:
        """Sends a rollout with turns on; its end, if that is where it goes."""
        where = self.away.send(journey, self.now)
        if where == "over":
            told = self.tell_of_nothing(journey.rollout, journey.trajectory.ending, -1)
            self.away.over(journey)
            self.forget_expected(journey.rollout)
            self.over.append(told)
        elif where == "model":
            rollout, total = journey.rollout, self.drawn(journey.rollout).new_tokens
            left = sum(tokens for task, tokens in journey.to_do if task == "sample")
            sampled = total[rollout.index] - left
            if not journey.balanced:
                replica = self.route(rollout)
            else:
                if journey.placed is None:
                    journey.placed = self.least_expected(rollout).number
                replica = self.replicas[journey.placed]
            until = sampled + journey.to_do[0][1]
            self.hand_to(replica, rollout, journey.observed, sampled, until, journey.tokens_left)

    def drawn(self, rollout: Rollout) -> GroupDraw:
        """What its group does, as of the version of the rollout's first submit."""
        group, index, attempt = rollout.group, rollout.index, rollout.attempt
        version = self.first_version.setdefault((group, index, attempt), self.version)
        asked = rollout.prompt, rollout.visit
        return self.workload.draw(group, index + 1, attempt, version, *asked)

    def tokens(self, rollout: Rollout) -> tuple[object, ...]:
        """Its whole context at its end."""
        group, index, attempt = rollout.group, rollout.index, rollout.attempt
        drawn, version = self.drawn(rollout), self.first_version[group, index, attempt]
        asked = rollout.prompt, rollout.visit
        tokens, _ = self.workload.tokens(group, index, attempt, version, *asked)
        assert len(tokens) == (
            drawn.prompt_tokens + drawn.new_tokens[index] + observed_in(drawn, index)
        )
        return tokens

    def oracle_tokens(self, rollout: Rollout) -> int:
        return self.drawn(rollout).new_tokens[rollout.index]

    def route(self, rollout: Rollout) -> Replica:
        if self.routing == "round_robin":
            self.routed += 1
            return self.replicas[(self.routed - 1) % len(self.replicas)]
        least = min(self.replicas, key=lambda replica: (replica.rollouts, replica.number))
        if self.routing == "least_loaded":
            return least
        if self.routing == "session_affinity":
            return self.home.setdefault((*rollout.key, rollout.attempt), least)
        return self.home.setdefault(rollout.group, least)

    def least_expected(self, rollout: Rollout) -> Replica:
        """The replica with the fewest expected tokens of rollouts placed so and still there."""
        if rollout.expected_tokens is not None:
            whole = math.ceil(rollout.expected_tokens)
            self.known_lengths.append(whole)
            weight = max(whole - rollout.new_tokens, 1)
        elif self.known_lengths:
            weight = math.ceil(Fraction(sum(self.known_lengths), len(self.known_lengths)))
        else:
            weight = 1
        sums = {number: sum(placed.values()) for number, placed in self.expected.items()}
        number = min(sums, key=lambda number: (sums[number], number))
        self.expected[number][rollout.key] = weight
        return self.replicas[number]

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Told]:
        """Stops rollouts, all of which are in flight, at their replica's next boundary, or where
        they are."""
        told = []
        late = {rollout.key: rollout for _, rollout, _ in self.late}
        journeys = {key: journey for key, journey in self.away.journeys.items() if journey.flying}
        for key in sorted({*self.in_flight, *late, *journeys} if keys is None else set(keys)):
            if key in late:
                self.late = [one for one in self.late if one[1].key != key]
                told.append(self.tell_of_nothing(late[key], "aborted", 0))
                continue
            if key not in self.in_flight:
                journey = journeys[key]
                self.away.stop(journey, self.now, for_good)
                told.append(self.tell_of_nothing(journey.rollout, "aborted", -1, journey))
                self.forget_expected(journey.rollout)
                continue
            segment = self.in_flight.pop(key)
            replica = self.replicas[segment.replica]
            sampled, end = segment.sampled, self.now
            if segment in replica.waiting:
                replica.waiting.remove(segment)
            elif replica.ends is None:
                replica.leave_running(segment)
            else:
                self.aborts += 1
                segment.leaving = self.aborts
                self.leaves[key] = replica.ends
                sampled, end = replica.after(segment), replica.ends
            one = self.tell(segment, sampled, end)
            self.forget_expected(segment.rollout)
            left = self.away.of(segment.rollout)
            if left is not None:
                self.left(left, one, for_good)
            told.append(one._replace(ending="aborted") if one.ending == "turn" else one)
        return told

    def left(self, journey: Journey, told: Told, for_good: bool = False) -> None:
        """A rollout with turns has left its replica, and is in flight no more."""
        journey.has_sampled(told.new_tokens)
        if told.finished:
            self.away.over(journey)
        else:
            self.away.stop(journey, self.now, for_good)

    def tell_of_nothing(
        self, rollout: Rollout, ending: Ending, replica: int, of: Journey | None = None
    ) -> Told:
        """A rollout that ended, or was stopped, while it was on no replica."""
        drawn, journey = self.drawn(rollout), of or self.away.of(rollout)
        told = Told(
            rollout.group,
            rollout.index,
            rollout.attempt,
            replica,
            drawn.prompt_tokens,
            (),
            ending,
            self.now_s,
            self.now_s,
            reward=None if ending == "aborted" else drawn.rewards[rollout.index],
        )
        return told if journey is None else self.with_calls(told, journey)

    def with_calls(self, told: Told, journey: Journey) -> Told:
        calls, journey.calls = tuple(journey.calls), []
        return told._replace(turn=journey.turn, observation_tokens=journey.observed, calls=calls)

    def forget_expected(self, rollout: Rollout) -> None:
        """It has left its replica for good, as far as placement goes."""
        for placed in self.expected.values():
            placed.pop(rollout.key, None)

    def tell(self, segment: Segment, sampled: int, end: int) -> Told:
        """What came of a segment that ends with ``sampled`` response tokens."""
        rollout, drawn = segment.rollout, self.drawn(segment.rollout)
        journey = self.away.of(rollout)
        length = drawn.new_tokens[rollout.index]
        ending: Ending = "aborted"
        if sampled == segment.until:
            ending = "length" if length == self.workload.max_new_tokens else "stop"
            if journey is not None:
                ending = journey.ending
        elif segment.allowance is not None and sampled - segment.resumed_from == segment.allowance:
            ending = "budget"
        missing = (
            sampled - segment.resumed_from - len(segment.versions)
        )  # of the iteration under way
        tokens_by_version: list[VersionTokens] = []
        for version in segment.versions + [self.version] * missing:
            if tokens_by_version and tokens_by_version[-1].version == version:
                tokens_by_version[-1] = VersionTokens(version, tokens_by_version[-1].tokens + 1)
            else:
                tokens_by_version.append(VersionTokens(version, 1))
        told = Told(
            group=rollout.group,
            index=rollout.index,
            attempt=rollout.attempt,
            replica=segment.replica,
            prompt_tokens=segment.prompt,
            tokens_by_version=tuple(tokens_by_version),
            ending=ending,
            start_s=to_seconds(end if segment.start is None else segment.start),
            end_s=to_seconds(end),
            prefill_tokens=segment.prefill_tokens,
            recomputed_tokens=segment.recomputed_tokens,
            preemptions=segment.preemptions,
            reward=drawn.rewards[rollout.index] if ending not in GOES_ON else None,
        )
        return told if journey is None else self.with_calls(told, journey)

    # Trainer and sync

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update, or a part; on shared GPUs it begins when the replicas are idle."""
        assert self.update is None
        load = TrainLoad(
            [
                (
                    group.rollouts[0].prompt_tokens,
                    [r.new_tokens + r.observation_tokens for r in group.rollouts],
                )
                for group in batch.groups
            ],
            shared_prefix=layout == "shared_prefix",
        )
        seconds = dict(self.cost.train(load).phases_s)
        if "train" in seconds and self.parts:
            seconds["train"] = self.train_s([*self.parts, load]) - self.train_s(self.parts)
        if not batch.final:
            seconds.pop("gradient_exchange", None)
            seconds.pop("optimizer", None)
            seconds.pop("rest", None)
        self.parts = [] if batch.final else [*self.parts, load]
        phases = [(kind, to_ticks(max(each, 0.0))) for kind, each in seconds.items()]
        if self.shape.colocated:
            phases.insert(0, ("switch", to_ticks(self.cost.switch_to_train_s)))
        self.update = Job(batch.step, phases, load.tokens, final=batch.final)

    def train_s(self, loads: list[TrainLoad]) -> float:
        """Seconds of the one train phase of all these loads together."""
        groups = [group for load in loads for group in load.groups]
        together = TrainLoad(groups, loads[0].shared_prefix)
        return sum(s for kind, s in self.cost.train(together).phases_s if kind == "train")

    def sync_weights(self) -> None:
        """Starts a sync; it begins when every replica stands between two iterations."""
        assert self.sync is None
        assert not (self.shape.colocated and self.in_flight)
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
                if replica.ends is None and replica.rollouts > 0 and self.sync is None:
                    replica.begin(self.now)
            instants = [replica.ends for replica in self.replicas]
            instants += [instant for instant, _, _ in self.late]
            instants += [j.request.end for j in self.away.under_way if j.request is not None]
            instants += [job.end for job in (self.update, self.sync) if job is not None]
            known = [instant for instant in (*instants, until) if instant is not None]
            if not known:
                raise RunError("nothing is under way")
            self.now = min(known)

    def happen(self) -> list[Event]:
        """Everything that happens at this instant, in order of (kind, group, index)."""
        events: list[Event] = []
        for replica in self.replicas:
            if replica.ends == self.now:
                for segment in replica.end(self.now):
                    events.append(Ended(self.ended(segment)))
        idle = all(replica.idle for replica in self.replicas) and not self.late
        if self.update is not None:
            if self.update.start is None and (idle or not self.shape.colocated):
                self.update.start = self.now
            if self.update.end == self.now:
                events.append(Trained(self.update.step, self.update.spans()))
                self.updates += self.update.final
                self.update = None
        if self.sync is not None:
            if self.sync.start is None and all(r.ends is None for r in self.replicas):
                self.sync.start = self.now
            if self.sync.end == self.now:
                events.append(Synced(self.sync.spans()))
                self.version = self.updates
                self.sync = None
                if self.routing == "session_affinity":
                    self.home = {}
                for replica in self.replicas:
                    replica.version = self.version
                    replica.forget_free()
        arrived = [one for one in self.late if one[0] == self.now]
        self.late = [one for one in self.late if one[0] != self.now]
        for _, rollout, placement in arrived:
            self.queue([rollout], placement)
        happening = True
        while happening:
            going = self.away.end_errands(self.now)
            for journey in going or []:
                self.go_on(journey)
            happening = self.away.give_slots(self.now) or going is not None
        events += [Ended(told) for told in self.over]
        self.over = []
        return sorted(events, key=rank)

    def ended(self, segment: Segment) -> Told:
        """A segment has come to its end by itself."""
        del self.in_flight[segment.rollout.key]
        told = self.tell(segment, segment.sampled, self.now)
        journey = self.away.of(segment.rollout)
        if told.ending == "turn":
            journey.has_sampled(told.new_tokens)
            self.away.turned.append(journey)
            return told
        self.forget_expected(segment.rollout)
        if journey is not None:
            self.left(journey, told)
        return told


def rank(event: Event) -> tuple[int, int, int]:
    """The order of events: ends of turns, ends, updates, syncs."""
    if isinstance(event, Ended):
        return (0 if event.segment.ending == "turn" else 1), *event.segment.key
    return (2 if isinstance(event, Trained) else 3), 0, 0
