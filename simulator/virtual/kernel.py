"""One thread runs at a time; when all wait, the clock jumps to the next event.

Every thread of a run is an `Actor` with a gate of its own, a real lock that it waits at while
others run. Whatever blocks calls `Kernel.block`, which opens the gate of who runs next. The clock
counts the simulator's ticks (`simulator.costs.clock`).
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.errors import DeadlockError, LimitError, Stopped
from rollcast.simulator.virtual.pace import Pace
from rollcast.simulator.virtual.report import who_waits

_LOOKS_AT_REAL_TIME_EVERY = 256
_STALE_TIMERS = 10_000
_MOST_STOPS = 100
_SHARE_OF_HAND_OVERS = 0.25
_LONGEST_REAL_WAIT_S = 0.05
_SELECTS_S, _SHORTEST_S = 1e-3, 2e-4
"""Real seconds. A selector waits for whole milliseconds, rounded up: what is due sooner is waited
for in short naps."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of a run: virtual_s, real_s (seconds), events (hand-overs, rounds of event loops and jumps),
    instant (events while the clock stands still). None: none."""

    virtual_s: float | None = None
    real_s: float | None = None
    events: int | None = None
    instant: int = 2_000_000


class Source(Protocol):
    """What else makes things happen: simulated engines."""

    def advance(self, until: int | None) -> int | None:
        """Goes on to the next instant at which it has something to tell, at most to tick ``until``,
        and tells it; returns the tick reached, or None where nothing will ever happen."""

    def peek(self) -> int | None:
        """The tick at which it has something to do next."""


class Pollable(Protocol):
    """Real file descriptors that an actor waits for."""

    def ready(self) -> bool:
        """Whether any of them is ready now."""

    def wait(self, seconds: float) -> None:
        """Waits until any of them is ready, at most so many real seconds."""


class Actor:
    """A thread of the run. waits: what for, in words; polls: descriptors that it waits for too;
    error: raised in it when it runs next."""

    __slots__ = (
        "at_end",
        "blocked",
        "entry",
        "error",
        "gate",
        "ident",
        "number",
        "polls",
        "stops",
        "until",
        "waits",
        "woken",
    )

    def __init__(self, number: int) -> None:
        self.gate = real.allocate_lock()
        self.gate.acquire()
        self.number = number
        self.ident = 0
        self.blocked = self.woken = False
        self.until: int | None = None
        self.entry: int | None = None  # the tick of its latest entry among the timers
        self.waits = "its turn"
        self.polls: Pollable | None = None
        self.error: BaseException | None = None
        self.stops = 0
        self.at_end: list[Callable[[], Any]] = []


class Kernel:
    """The clock and who runs. seed: 0 runs the ready in the order in which they became so, any
    other in a random order, and hands over at releases of locks too. pace: of the clock in real
    time; None: as fast as it goes."""

    def __init__(self, seed: int, bounds: Bounds, pace: Pace | None = None) -> None:
        self.pace = pace
        self._worked = False  # whether anybody ran since the clock went on
        self.now = 0
        self.seed, self.bounds = seed, bounds
        self.random = random.Random(seed)
        self.shuffles = seed != 0
        self.source: Source | None = None
        self.events = self.jumps = self.switches = 0
        self.actors: dict[Actor, None] = {}
        self.loops: list[Any] = []  # virtual event loops, in the order in which they were made
        self.over = self.closed = False
        self.verdict: BaseException | None = None  # why the run was ended
        self.dead_threads: list[str] = []
        self._ready: deque[Actor] = deque()
        self._timers: list[tuple[int, int, Actor | Callable[[], None]]] = []
        self._sequence = count()
        self._instant = 0  # events since the clock moved
        self._began = real.perf_counter()
        self._polling: dict[Actor, None] = {}
        self._limited = False
        self._made = count()
        self.main = self.current = self._actor()
        self.main.ident = real.get_ident()

    def _actor(self) -> Actor:
        actor = Actor(next(self._made))
        self.actors[actor] = None
        return actor

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return to_seconds(self.now)

    def mine(self) -> bool:
        """Whether the calling thread is of this run."""
        return self.current.ident == real.get_ident() and not self.closed

    def after(self, seconds: float) -> int:
        """The tick at which a wait of so many seconds, counted in floats as callers do, ends."""
        until = to_ticks(to_seconds(self.now) + seconds)
        return until if until > self.now else self.now + max(to_ticks(seconds), 1)

    # Of the actor that runs

    def block(self, until: int | None, waits: str, polls: Pollable | None = None) -> bool:
        """Lets others run until somebody wakes the caller (True) or tick ``until`` (False)."""
        actor = self.current
        if self.over:
            self._stop(actor)
        actor.blocked, actor.woken, actor.waits, actor.until = True, False, waits, until
        if until is not None and until != actor.entry:
            heapq.heappush(self._timers, (until, next(self._sequence), actor))
            actor.entry = until
            if len(self._timers) > _STALE_TIMERS + 4 * len(self.actors):
                self._forget_stale_timers()
        if polls is not None:
            actor.polls = polls
            self._polling[actor] = None
        self._hand_over(actor)
        if polls is not None:
            actor.polls = None
            self._polling.pop(actor, None)
        self._raise_error_of(actor)
        return actor.woken

    def give_way(self) -> None:
        """Lets those run who are ready; the caller stays ready."""
        actor = self.current
        if self._ready and not self.over:
            self._ready.append(actor)
            actor.waits = "its turn"
            self._hand_over(actor)
        self._raise_error_of(actor)

    def may_give_way(self) -> None:
        """In a search for races, hands over now and then."""
        if self.shuffles and self._ready and self.random.random() < _SHARE_OF_HAND_OVERS:
            self.give_way()

    def _raise_error_of(self, actor: Actor) -> None:
        if actor.error is not None:
            error, actor.error = actor.error, None
            raise error

    def wake(self, actor: Actor) -> None:
        """Makes an actor ready that is blocked."""
        if actor.blocked:
            actor.blocked, actor.woken = False, True
            self._ready.append(actor)

    def call_at(self, tick: int, call: Callable[[], None]) -> None:
        """Calls at that tick, in whichever thread hands over then; it must not block."""
        heapq.heappush(self._timers, (max(tick, self.now), next(self._sequence), call))

    def round_of_loop(self) -> None:
        """Counts a round of an event loop that has more to do at once, and lets others run."""
        self._count()
        self.give_way()

    # Bounds

    def _count(self) -> None:
        self.events += 1
        self._instant += 1
        bounds = self.bounds
        if self._instant > bounds.instant:
            self._instant = 0
            self._limit(
                f"the run did {bounds.instant:,} things while the clock stood still: somebody "
                "loops without waiting"
            )
        elif bounds.events is not None and self.events > bounds.events:
            self._limit(f"the run did more than {bounds.events:,} things (its bound on events)")
        elif (
            bounds.real_s is not None
            and not self.events % _LOOKS_AT_REAL_TIME_EVERY
            and real.perf_counter() - self._began > bounds.real_s
        ):
            self._limit(f"the run took more than its bound of {bounds.real_s:g} s of real time")

    def _limit(self, what: str) -> None:
        """Ends the run at a bound: once, so that the cleaning up has a way."""
        if not self._limited:
            self._limited = True
            self.throw(LimitError(f"at {self.now_s:g} s {what}\n{who_waits(self)}"))

    def throw(self, error: BaseException) -> None:
        """Raises an error in the thread that began the run, when it runs next."""
        if self.verdict is None:
            self.verdict = error
        self.main.error = error
        self.wake(self.main)

    def deaths(self) -> list[str]:
        """Tasks and threads that died of an exception which nobody has looked at."""
        return [*self.dead_threads, *(death for loop in self.loops for death in loop.deaths())]

    # Whose turn it is

    def _hand_over(self, actor: Actor) -> None:
        following = self._next()
        if following is actor:
            return
        self.switches += 1
        self.current = following
        following.gate.release()
        if actor in self.actors:
            actor.gate.acquire()

    def _next(self) -> Actor:
        ready = self._ready
        while True:
            if ready:
                self._count()
                if self.shuffles and len(ready) > 1:
                    ready.rotate(-self.random.randrange(len(ready)))
                return ready.popleft()
            for actor in list(self._polling):  # real sockets before time moves
                if actor.polls is not None and actor.polls.ready():
                    self.wake(actor)
            if self.pace is None:
                if not ready:
                    self._move()
            elif ready:
                self.pace.came()
                self._worked = True
            else:
                self._move_at_pace(self.pace)

    def _move(self) -> None:
        """Goes on to the next instant at which anything happens."""
        until = self._next_timer()
        if self.source is not None:
            reached = self._advance(until)
            if self._ready and reached is None:
                return
            if reached is None:
                until = None
            elif until is None or reached < until:
                self._jump(reached)
                return
        if until is None:
            if self.main not in self._ready:
                self.throw(
                    DeadlockError(
                        f"at {self.now_s:g} s everybody waits and nothing will ever happen:\n"
                        f"{who_waits(self)}"
                    )
                )
            return
        self._fire(until)

    def _move_at_pace(self, pace: Pace) -> None:
        """Goes on with real time, to the next instant at which anything happens."""
        if self._worked:
            self._worked = False
            pace.stand(self.now)
        if (hold_s := pace.hold_s()) > 0:
            self._wait(hold_s)
            pace.stand(self.now, held=True)
            return
        now = max(pace.now(), self.now)
        until = self._next_timer()
        limit = now if until is None else min(until, now)
        if self.source is not None:
            reached = self._advance(limit)
            if self._ready:
                self._worked = True
                if reached is not None:
                    self._jump(reached)
                return
        if until is not None and until <= now:
            self._worked = True
            self._fire(until)
            return
        self.now, self._instant = now, 0
        following = None if self.source is None else self.source.peek()
        ends = [tick for tick in (until, following) if tick is not None]
        left_s = to_seconds(min(ends) - now) / pace.speed if ends else _LONGEST_REAL_WAIT_S
        self._wait(min(max(left_s, 0.0), _LONGEST_REAL_WAIT_S))
        self.now = max(now, min([pace.now(), *ends]))  # what is due is not passed
        if self.source is not None:
            self._advance(self.now)

    def _wait(self, seconds: float) -> None:
        """Waits in real time, or until a socket is ready; not always as long."""
        polls = next((a.polls for a in self._polling if a.polls is not None), None)
        if polls is None:
            real.sleep(seconds)
        elif seconds > 2 * _SELECTS_S:
            polls.wait(seconds - _SELECTS_S)
        elif not polls.ready():
            real.sleep(min(seconds, _SHORTEST_S))

    def _next_timer(self) -> int | None:
        timers = self._timers
        while timers and not self._valid(timers[0]):
            self._pop_timer()
        return timers[0][0] if timers else None

    def _advance(self, until: int | None) -> int | None:
        assert self.source is not None
        try:
            return self.source.advance(until)
        except Exception as error:  # of the engines: the run cannot go on
            self.source = None
            self.throw(error)
            return None

    def _fire(self, until: int) -> None:
        """Goes on to the tick of the next timers, and wakes whom they are for."""
        timers = self._timers
        self._jump(until)
        due = []
        while timers and timers[0][0] == until:
            entry = self._pop_timer()
            if self._valid(entry):
                due.append(entry[2])
        if self.shuffles:
            self.random.shuffle(due)
        for what in due:
            if not isinstance(what, Actor):
                what()
            elif what.blocked:
                what.blocked = False
                self._ready.append(what)

    @staticmethod
    def _valid(entry: tuple[int, int, Actor | Callable[[], None]]) -> bool:
        what = entry[2]
        return not isinstance(what, Actor) or (what.blocked and what.until == entry[0])

    def _pop_timer(self) -> tuple[int, int, Actor | Callable[[], None]]:
        entry = heapq.heappop(self._timers)
        what = entry[2]
        if isinstance(what, Actor) and what.entry == entry[0]:
            what.entry = None
        return entry

    def _forget_stale_timers(self) -> None:
        self._timers = [entry for entry in self._timers if self._valid(entry)]
        heapq.heapify(self._timers)
        for actor in self.actors:
            actor.entry = actor.until if actor.blocked else None

    def _jump(self, tick: int) -> None:
        if tick > self.now:
            self.now = tick
            self.jumps += 1
            self._instant = 0
        self._count()
        limit = self.bounds.virtual_s
        if limit is not None and tick > to_ticks(limit):
            self._limit(f"the run went beyond its bound of {limit:g} s of virtual time")

    # Threads

    def start(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        done: Callable[[], None] | None = None,
    ) -> int:
        """Starts a thread of this run; returns its identifier. done: called as it ends."""
        actor = self._actor()

        def run() -> None:
            actor.gate.acquire()
            try:
                if not self.over:
                    function(*args, **kwargs)
            except Stopped:
                pass
            finally:
                self._end(actor, done)

        actor.ident = real.start_new_thread(run, ())
        self._ready.append(actor)
        return actor.ident

    def at_end_of_current(self, call: Callable[[], Any]) -> None:
        """Calls as the thread whose turn it is ends."""
        self.current.at_end.append(call)

    def _end(self, actor: Actor, done: Callable[[], None] | None) -> None:
        shuffles, self.shuffles = self.shuffles, False  # not to give way while it ends
        for call in (*actor.at_end, *((done,) if done is not None else ())):
            call()
        self.shuffles = shuffles
        del self.actors[actor]
        if self.over:
            self._to_main()
        else:
            self._hand_over(actor)

    def _to_main(self) -> None:
        self.current = self.main
        self.main.gate.release()

    def _stop(self, actor: Actor) -> None:
        """Ends a thread that would wait though the run is over. One that catches everything is
        left where it is."""
        actor.stops += 1
        if actor.stops > _MOST_STOPS and actor is not self.main:
            self._to_main()
            actor.gate.acquire()
        raise Stopped

    def stop_all(self) -> int:
        """Ends every other thread by raising `Stopped` where it waits; returns how many go on."""
        self.over, self.source = True, None
        left = [actor for actor in self.actors if actor is not self.main]
        for actor in left:
            actor.error = Stopped()
            self.current = actor
            actor.gate.release()
            self.main.gate.acquire()
        return sum(actor in self.actors for actor in left)
