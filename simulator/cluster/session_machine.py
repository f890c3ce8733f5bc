"""The rules by which rollouts of several turns go on between their turns, for both worlds.

A session is a rollout's state beside the replicas. Its next stage is a turn of the model, a call of
its environment, its judging, or its end. At most one call is under way: a boot, an answer or a
judgement. Calls wait for a slot of a pool, first come, first served.

An instant goes in rounds. Calls that end at it, and turns that ended at it, are taken in the order
of their rollouts' keys; each session goes on to its next stage. Then slots that are free go to
those who wait. Calls that take no time end in the next round.

A world supplies the clock and carries out the calls: `simulator.cluster.sessions` knows how long
each takes, `engine.sessions` finds out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, Literal, TypeVar

from rollcast.simulator.core.rollout import Call, CallEnd, Key, Rollout, Segment
from rollcast.simulator.workload.slots import EnvironmentSpec

Stage = Literal["model", "environment", "reward", "end"]
Kind = Literal["environment", "reward"]


class Pool:
    """Slots, given first come, first served; None is no limit."""

    __slots__ = ("free", "waiting")

    def __init__(self, slots: int | None) -> None:
        self.free = float("inf") if slots is None else slots
        self.waiting: OrderedDict[Any, None] = OrderedDict()


class PendingCall:
    """A call that a session waits for. asked, start: clock instants at which it asked for a slot
    and got it (None before), or at which its rollout was suspended last."""

    __slots__ = ("asked", "kind", "pool", "session", "start", "turn")

    def __init__(self, session: Any, kind: Kind, pool: Pool, asked: float) -> None:
        self.session = session
        self.turn: int = session.turn
        self.kind = kind
        self.pool = pool
        self.asked = asked
        self.start: float | None = None


class BaseSession:
    """flying: whether in flight. holds: whether it keeps a slot beyond a call. call: under way.
    calls: for its next segment. tokens_left, turns_left: allowed in this flight; None for all."""

    __slots__ = ("call", "calls", "flying", "holds", "rollout", "tokens_left", "turns_left")

    def __init__(self, rollout: Rollout) -> None:
        self.rollout = rollout
        self.call: PendingCall | None = None
        self.calls: list[Call] = []
        self.flying = self.holds = False
        self.tokens_left: int | None = None
        self.turns_left: int | None = None

    @property
    def key(self) -> Key:
        """(group, index)."""
        return self.rollout.group, self.rollout.index

    @property
    def stage(self) -> Stage:
        """What comes next."""
        raise NotImplementedError

    def launch(self, rollout: Rollout) -> None:
        """It is submitted."""
        self.rollout, self.flying = rollout, True
        self.tokens_left, self.turns_left = rollout.allowance, rollout.turn_allowance

    def complete(self, segment: Segment, turn: int, observation_tokens: int) -> Segment:
        """A segment with its turn, observation tokens, and the calls since the one before."""
        calls = tuple(self.calls)
        self.calls.clear()
        return segment._replace(turn=turn, observation_tokens=observation_tokens, calls=calls)


S = TypeVar("S", bound=BaseSession)
C = TypeVar("C", bound=PendingCall)


class SessionMachine(Generic[S, C]):
    """All sessions of a world, and the pools."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._known: dict[Key, S] = {}
        self._environments, self._judges = Pool(spec.slots), Pool(spec.reward_slots)
        self._turned: dict[S, None] = {}
        self._waiting = False  # whether slots may be free for who waits

    # What a world supplies

    @property
    def _now(self) -> float:
        """The instant of its clock."""
        raise NotImplementedError

    def _seconds(self, instant: float) -> float:
        """An instant in seconds."""
        raise NotImplementedError

    def _call(self, session: S, kind: Kind, pool: Pool) -> C:
        """The call that a session needs for its next stage."""
        raise NotImplementedError

    def _carry_out(self, call: C) -> None:
        """Starts a call, which has its slot now."""
        raise NotImplementedError

    def _due(self) -> Iterable[tuple[C, CallEnd, float]]:
        """The calls that are over by now, their sessions told: how each ended, and when."""
        raise NotImplementedError

    def _abandon(self, call: C) -> None:
        """Nobody waits any more for a call that has its slot."""

    def _close(self, session: S) -> None:
        """Closes a session's environment, if it is up."""

    # Sessions

    @property
    def flying(self) -> set[Key]:
        """In flight."""
        return {session.key for session in self._known.values() if session.flying}

    def flies(self, key: Key) -> bool:
        """Whether a rollout with turns is in flight."""
        session = self._known.get(key)
        return session is not None and session.flying

    def __getitem__(self, key: Key) -> S:
        return self._known[key]

    def turned(self, session: S) -> None:
        """The session's turn, or all of it, is over: it goes on in the next round."""
        self._turned[session] = None

    def next_stage(self, session: S) -> Stage:
        """Starts its next call, if it needs one; ``model`` is the caller's."""
        if session.call is not None:  # it has worked on while the rollout was suspended
            return "environment"
        stage = session.stage
        if stage == "model" and self._spec.held == "rollout" and not session.holds:
            stage = "environment"
        if stage == "reward":
            self._release(session)
            self._ask(session, "reward", self._judges)
        elif stage == "environment":
            self._ask(session, "environment", self._environments)
        elif stage == "end":
            self.turned(session)
        return stage

    def _ask(self, session: S, kind: Kind, pool: Pool) -> None:
        call = session.call = self._call(session, kind, pool)
        if kind == "environment" and session.holds:
            self._begin(call)
        else:
            pool.waiting[call] = None
            self._waiting = True

    def _begin(self, call: C) -> None:
        call.start = self._now
        self._carry_out(call)

    def _release(self, session: S) -> None:
        """Gives back the session's slot, if it holds one."""
        if session.holds:
            session.holds = False
            self._environments.free += 1
            self._waiting = True

    def round(self) -> list[S] | None:
        """The sessions that go on now, by key; None where only slots are left to give now."""
        news = [*self._turned]
        self._turned.clear()
        some = bool(news)
        for call, ended, at in self._due():
            some = True
            session = call.session
            self._over(call, ended, at)
            if session.flying:
                news.append(session)
        return sorted(news, key=_key) if some else None

    def give_slots(self) -> bool:
        """Gives free slots to those who wait; whether any was."""
        if not self._waiting:
            return False
        self._waiting = given = False
        for pool in (self._environments, self._judges):
            while pool.waiting and pool.free > 0:
                call, _ = pool.waiting.popitem(last=False)
                pool.free -= 1
                self._begin(call)
                given = True
        return given

    def _over(self, call: PendingCall, ended: CallEnd, at: float) -> None:
        """A call that had its slot is over."""
        session = call.session
        self._note(call, ended, at)
        session.call = None
        keeps = call.kind == "environment" and self._spec.held == "rollout" and session.flying
        session.holds = keeps
        if not keeps:
            call.pool.free += 1
            self._waiting = True

    def _note(self, call: PendingCall, ended: CallEnd, at: float) -> None:
        """Adds the call, as far as it went, to the session's next segment."""
        end_s = self._seconds(at)
        start_s = end_s if call.start is None else self._seconds(call.start)
        times = (self._seconds(call.asked), start_s, max(start_s, end_s))
        call.session.calls.append(Call(call.kind, call.turn, *times, ended))

    def suspend(self, session: S, for_good: bool = False) -> None:
        """It is in flight no more; for_good: nor will it ever be again."""
        session.flying = False
        self._turned.pop(session, None)
        call, now = session.call, self._now
        closes = for_good or self._spec.on_suspend == "close"
        if call is None:
            self._release(session)
        elif call.start is None:
            self._note(call, "suspended", now)
            del call.pool.waiting[call]
            session.call = None
        elif for_good or (closes and call.kind == "environment"):
            self._over(call, "closed", now)
            self._abandon(call)  # type: ignore[arg-type]  # a session's calls are the world's
        else:
            self._note(call, "suspended", now)
            call.asked = call.start = now
        if closes:
            self._close(session)
        if for_good:
            del self._known[session.key]

    def finished(self, session: S) -> None:
        """It has come to its end."""
        session.flying = False
        self._release(session)
        self._close(session)
        del self._known[session.key]


def _key(session: BaseSession) -> Key:
    return session.key
