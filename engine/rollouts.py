"""The rollouts of a real world, from their submission to the segments that the loop gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from rollcast.engine.actors.fleet import Fleet
from rollcast.engine.environments.threads import Runner
from rollcast.engine.flights import Flight, Flights
from rollcast.engine.log import Failure
from rollcast.engine.responses import Responses
from rollcast.engine.sessions import Sessions, TurnRules
from rollcast.engine.tasks.base import Task
from rollcast.engine.world_clock import WorldClock
from rollcast.simulator.core.plan import Placement
from rollcast.simulator.core.rollout import UNSHARED, Key, Rollout, Segment
from rollcast.simulator.core.world import Ended, Event
from rollcast.simulator.errors import RunError


class Rollouts:
    """responses: prompts and tokens. flights: what replicas have. sessions: of rollouts with
    several turns; None without. version: of the replicas' weights, now."""

    def __init__(
        self,
        task: Task,
        seed: int,
        fleet: Fleet,
        routing: str,
        clock: WorldClock,
        version: Callable[[], int],
    ) -> None:
        self.responses = Responses(task, seed)
        self.flights = Flights(fleet, routing)
        self.sessions: Sessions | None = None
        self._clock, self._version = clock, version
        self._reported: dict[tuple[int, int, int], int] = {}  # tokens, by version, group and index

    def take_turns(
        self, rules: TurnRules, failed: Callable[[Failure], None], runner: Runner
    ) -> None:
        """Rollouts have turns from now on."""
        now = lambda: self._clock.now_s  # noqa: E731
        self.sessions = Sessions(rules, self.responses, now, failed, runner)

    @property
    def flying(self) -> set[Key]:
        """Those in flight, on a replica or away."""
        away = set() if self.sessions is None else self.sessions.flying
        return {*self.flights.by_key, *away}

    @property
    def any_flying(self) -> bool:
        """Whether any is in flight."""
        away = self.sessions is not None and self.sessions.flying
        return bool(self.flights.by_key or away)

    def submit(self, rollouts: Sequence[Rollout], placement: Placement) -> None:
        """Sends rollouts to their replicas."""
        fresh = []
        if self.sessions is not None:
            self.sessions.catch_up()
        for rollout in rollouts:
            if rollout.key in self.flights.by_key or self._away(rollout.key):
                raise RunError(f"{rollout} is already in flight")
            if self.sessions is None:
                order = self.responses.order(rollout)
                fresh.append(self.flights.start(rollout, order, placement))
                continue
            session = self.sessions.open(rollout, placement)
            if self.sessions.next_stage(session) == "model":
                order = self.sessions.order(session)
                fresh.append(self.flights.start(rollout, order, placement))
        self.flights.place(fresh)

    def _away(self, key: Key) -> bool:
        """Whether a rollout is in flight, but not on a replica."""
        away = self.sessions is not None and self.sessions.flies(key)
        return away and key not in self.flights.by_key

    def stopped(self, key: Key, for_good: bool) -> Segment:
        """The segment of a rollout that was aborted. for_good: it is never submitted again."""
        if key in self.flights.by_key:
            return self.hand_out(self.flights.by_key[key], for_good, aborted=True)
        assert self.sessions is not None
        self.flights.balance.left(key)
        return self.sessions.stop(key, for_good)

    def hand_out(self, flight: Flight, for_good: bool = False, aborted: bool = False) -> Segment:
        """The segment of a rollout that left its replica."""
        rollout, sessions = flight.rollout, self.sessions
        del self.flights.by_key[rollout.key]
        number = 0 if flight.replica is None else flight.replica.number
        zero_s = flight.zero_s + self._clock.zero_s
        if sessions is None:
            if flight.finished is None:
                segment = self.responses.nothing(rollout, number, self._clock.now_s)
            else:
                segment = self.responses.finish(rollout, flight.finished, number, zero_s)
        elif flight.finished is None:
            segment = sessions.stop(rollout.key, for_good, number)
        else:
            segment = sessions.left_engine(flight.finished, number, zero_s, for_good)
            if aborted and segment.ending == "turn":  # it was over just before
                sessions.suspend(sessions[rollout.key], for_good)
                segment = segment._replace(ending="aborted")
        if segment.ending != "turn":
            self.flights.balance.left(rollout.key)
        return segment if flight.finished is None else self._shared_with_reported(segment)

    def _shared_with_reported(self, segment: Segment) -> Segment:
        """The segment, its shared tokens kept only if the loop knows the other segment: a replica
        compares with all that ended there before."""
        if segment.group < 0:
            return segment
        parts = segment.tokens_by_version
        version = parts[0].version if parts else self._version()
        shared = segment.shared
        if self._reported.get((version, shared.group, shared.index), 0) < shared.tokens:
            segment = segment._replace(shared=UNSHARED)
        ids = self.responses.tokens[segment.key].ids
        self._reported[version, segment.group, segment.index] = segment.prompt_tokens + len(ids)
        return segment

    def settle(self) -> list[Event]:
        """Continues rollouts whose environments answered; returns the ends of rollouts."""
        if self.sessions is None:
            return []
        take_turns, ended = self.sessions.settle()
        self.flights.place(
            self.flights.start(session.rollout, self.sessions.order(session), session.placement)
            for session in take_turns
        )
        for segment in ended:
            self.flights.balance.left(segment.key)
        return [Ended(segment) for segment in ended]

    @contextmanager
    def apart(self, make_runner: Callable[[], Runner]) -> Iterator[None]:
        """Within, rollouts of several turns are others than before, with environments and slots of
        their own."""
        others = self.sessions
        if others is not None:
            self.sessions = others.twin(make_runner())
        try:
            yield
        finally:
            if self.sessions is not None:
                self.sessions.close()
            self.sessions = others

    def keep_only(self, groups: set[int]) -> None:
        """Forgets prompts and tokens of every other group."""
        if self.sessions is not None:
            self.sessions.keep_only(groups)
        self.responses.keep_only(groups)
        self._reported = {
            key: tokens
            for key, tokens in self._reported.items()
            if key[1] in groups or key[0] == self._version()
        }

    def forget_reported(self) -> None:
        """The loop knows no segment."""
        self._reported = {}

    def require(self, keys: Collection[Key]) -> None:
        """Raises RunError for one that is not in flight."""
        flying = self.flying
        for key in keys:
            if key not in flying:
                raise RunError(f"rollout {key} is not in flight and cannot be aborted")
