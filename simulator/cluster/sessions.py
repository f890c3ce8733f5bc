"""Rollouts of several turns between their turns: in the environment, with the judge, put away.

A session is what a rollout's world keeps of it beside the replicas. It has at most one errand away
from them: its environment's boot, the answer to a turn, or the judging at its end. Errands want a
slot of a pool and wait for it, first come, first served; then they take their time.

An instant goes in rounds. Errands that end at it, and turns that ended at it, are taken in the
order of their rollouts' keys; each goes on to what follows: a replica, an errand, or its end. Then
slots that are free go to those who wait. Errands that take no time end in the next round.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Literal

import simpy

from simulator.costs.clock import to_seconds, to_ticks
from simulator.rollout import Call, CallEnd, Ending, Key, Rollout, Stay
from simulator.workload.draws import Trajectory
from simulator.workload.slots import EnvironmentSpec

Leg = Literal["model", "environment", "reward", "end"]
_LAST: dict[Ending, CallEnd] = {"timeout": "timeout", "environment": "failed"}


class Pool:
    """Slots, given first come, first served; None is no limit."""

    __slots__ = ("free", "waiting")

    def __init__(self, slots: int | None) -> None:
        self.free = float("inf") if slots is None else slots
        self.waiting: OrderedDict[Errand, None] = OrderedDict()


class Errand:
    """What a session waits for away from the replicas. start: the tick at which it had its slot;
    None before."""

    __slots__ = ("asked", "kind", "pool", "session", "start", "ticks", "turn")

    def __init__(
        self,
        session: Session,
        kind: Literal["environment", "reward"],
        pool: Pool,
        asked: int,
        ticks: int,
    ) -> None:
        self.session = session
        self.turn = session.turn
        self.kind: Literal["environment", "reward"] = kind
        self.pool = pool
        self.asked = asked
        self.start: int | None = None
        self.ticks = ticks


class Session:
    """A rollout's way through its trajectory.

    turn: which one it is in; observation_tokens: that its environment's answers have added;
    sampled: tokens so far, of which it has ``turn_end`` at the end of this turn. answered: whether
    the environment has answered the last turn; judged: whether it has been judged. booted: whether
    its environment is up; holds: whether it has a slot beyond an errand. flying: whether it is in
    flight. tokens_left, turns_left: that it may have in this flight; None for all. balanced:
    whether its placement is by expected tokens, and then it stays where it was ``placed``.
    """

    __slots__ = (
        "answered",
        "attempt",
        "balanced",
        "booted",
        "calls",
        "errand",
        "flying",
        "holds",
        "judged",
        "observation_tokens",
        "placed",
        "prompt_tokens",
        "reward",
        "rollout",
        "sampled",
        "tokens_left",
        "trajectory",
        "turn",
        "turn_end",
        "turns_left",
    )

    def __init__(
        self, rollout: Rollout, prompt_tokens: int, reward: float, trajectory: Trajectory
    ) -> None:
        self.rollout = rollout
        self.attempt = rollout.attempt
        self.prompt_tokens = prompt_tokens
        self.reward = reward
        self.trajectory = trajectory
        self.turn = rollout.turn
        self.observation_tokens = rollout.observation_tokens
        self.sampled = rollout.new_tokens
        self.turn_end = sum(turn.new_tokens for turn in trajectory.turns[: self.turn + 1])
        self.answered = self.judged = self.booted = self.holds = self.flying = False
        self.balanced = False
        self.tokens_left: int | None = None
        self.turns_left: int | None = None
        self.placed: int | None = None
        self.errand: Errand | None = None
        self.calls: list[Call] = []

    @property
    def key(self) -> Key:
        """(group, index)."""
        return self.rollout.group, self.rollout.index

    @property
    def known(self) -> int:
        """Tokens of its context."""
        return self.prompt_tokens + self.observation_tokens + self.sampled

    @property
    def last(self) -> bool:
        """Whether it is in its last turn."""
        return self.turn == len(self.trajectory.turns) - 1

    @property
    def leg(self) -> Leg:
        """What comes next."""
        if self.sampled < self.turn_end:
            return "model"
        if not self.last or (self.trajectory.asks_at_last and not self.answered):
            return "environment"
        return "reward" if self.trajectory.judged and not self.judged else "end"

    @property
    def turn_ending(self) -> Ending:
        """What the end of the turn under way is called. Where an environment has the last word, it
        is not known to be the last turn."""
        trajectory = self.trajectory
        if self.last and not trajectory.asks_at_last:
            return "turn" if trajectory.judged else trajectory.ending
        spent = self.tokens_left is not None and self.tokens_left <= self.turn_end - self.sampled
        return "budget" if spent or self.turns_left == 1 else "turn"

    def launch(self, rollout: Rollout) -> None:
        """It is submitted."""
        self.rollout = rollout
        self.flying = True
        self.tokens_left, self.turns_left = rollout.allowance, rollout.turn_allowance
        self.placed = None

    def told(self, stay: Stay) -> Stay:
        """What its world says of a stay."""
        calls = tuple(self.calls)
        self.calls.clear()
        return stay._replace(
            turn=self.turn, observation_tokens=self.observation_tokens, calls=calls
        )

    def nothing(self, ending: Ending, now: int) -> Stay:
        """The stay of a rollout that is stopped, or ends, away from the replicas."""
        rollout, now_s = self.rollout, to_seconds(now)
        reward = None
        if ending != "aborted":
            reward = self.reward
        key = (rollout.group, rollout.index, self.attempt)
        stay = Stay(*key, -1, self.prompt_tokens, (), ending, now_s, now_s, reward=reward)
        return self.told(stay)

    def sampled_in(self, stay: Stay) -> None:
        """A stay on a replica is over."""
        tokens = stay.new_tokens
        self.sampled += tokens
        if self.tokens_left is not None:
            self.tokens_left -= tokens
        if self.turns_left is not None and self.sampled == self.turn_end:
            self.turns_left -= 1

    def to_repeat(self) -> int:
        """Ticks until its environment is where it was."""
        if self.booted:
            return 0
        answered = self.trajectory.turns[: self.turn]
        ticks = to_ticks(self.trajectory.boot_s)
        return ticks + sum(to_ticks(turn.environment_s) for turn in answered)

    def ends(self, errand: Errand) -> CallEnd:
        """An errand is over: what became of it, and where the session is then."""
        if errand.kind == "reward":
            self.judged = True
            return "answered"
        self.booted = True
        if self.leg != "environment":  # a slot was all that it wanted
            return "answered"
        if self.last:
            self.answered = True
            return _LAST.get(self.trajectory.ending, "answered")
        self.turn += 1
        turn = self.trajectory.turns[self.turn]
        self.observation_tokens += turn.observation_tokens
        self.turn_end += turn.new_tokens
        return "answered"


class Sessions:
    """All sessions of a cluster, and the pools. env: its clock, in ticks."""

    def __init__(self, spec: EnvironmentSpec, env: simpy.Environment) -> None:
        self._spec = spec
        self._env = env
        self._known: dict[Key, Session] = {}
        self._environments, self._judges = Pool(spec.slots), Pool(spec.reward_slots)
        self._ends: list[tuple[int, Key, int, Errand]] = []  # a heap
        self._errands = 0
        self._turned: dict[Session, None] = {}
        self._waiting = False  # whether slots may be free for who waits

    @property
    def flying(self) -> set[Key]:
        """In flight."""
        return {session.key for session in self._known.values() if session.flying}

    def flies(self, key: Key) -> bool:
        """Whether a rollout with turns is in flight."""
        session = self._known.get(key)
        return session is not None and session.flying

    @property
    def _now(self) -> int:
        return self._env.now  # type: ignore[return-value]  # simpy: int | float

    def of(self, rollout: Rollout) -> Session | None:
        """The session of this attempt at a rollout, if it ever was in flight."""
        session = self._known.get(rollout.key)
        return None if session is None or session.attempt != rollout.attempt else session

    def __getitem__(self, key: Key) -> Session:
        return self._known[key]

    def open(
        self, rollout: Rollout, prompt_tokens: int, reward: float, trajectory: Trajectory
    ) -> Session:
        """The session of a rollout that is submitted."""
        session = self.of(rollout)
        if session is None:
            earlier = self._known.get(rollout.key)
            if earlier is not None:
                self.put_away(earlier, for_good=True)
            session = Session(rollout, prompt_tokens, reward, trajectory)
            self._known[rollout.key] = session
        session.launch(rollout)
        return session

    @property
    def stirs(self) -> bool:
        """Whether anything is to happen at this instant."""
        if self._turned or self._waiting:
            return True
        return bool(self._ends) and self._ends[0][0] <= self._env.now

    def turned(self, session: Session) -> None:
        """It goes on in the next round: its turn is over, at this instant, or all is."""
        self._turned[session] = None

    def next_leg(self, session: Session) -> Leg:
        """Sends it on its next errand, if there is one; ``model`` is the caller's."""
        leg = session.leg
        if session.errand is not None:  # it has worked on while the rollout was put away
            return "environment"
        if leg == "reward":
            self._free(session)
            self._ask(session, "reward", self._judges, to_ticks(session.trajectory.reward_s or 0.0))
        elif leg == "environment":
            turn = session.trajectory.turns[session.turn]
            ticks = session.to_repeat() + to_ticks(turn.environment_s)
            self._ask(session, "environment", self._environments, ticks)
        elif leg == "model" and self._spec.held == "rollout" and not session.holds:
            self._ask(session, "environment", self._environments, session.to_repeat())
            leg = "environment"
        elif leg == "end":
            self.turned(session)
        return leg

    def _ask(
        self,
        session: Session,
        kind: Literal["environment", "reward"],
        pool: Pool,
        ticks: int,
    ) -> None:
        errand = session.errand = Errand(session, kind, pool, self._now, ticks)
        if kind == "environment" and session.holds:
            self._begin(errand)
        else:
            pool.waiting[errand] = None
            self._waiting = True

    def _begin(self, errand: Errand) -> None:
        errand.start = self._now
        self._errands += 1
        session = errand.session
        heappush(self._ends, (errand.start + errand.ticks, session.key, self._errands, errand))
        self._env.timeout(errand.ticks)

    def _free(self, session: Session) -> None:
        """It gives back the slot that it holds, if any."""
        if session.holds:
            session.holds = False
            self._environments.free += 1
            self._waiting = True

    def round(self) -> list[Session] | None:
        """Who goes on now, in order of key; None if nothing happens any more at this instant, but
        that slots are given."""
        now, ends = self._now, self._ends
        news = [*self._turned]
        self._turned.clear()
        some = bool(news)
        while ends and ends[0][0] <= now:
            errand = heappop(ends)[3]
            session = errand.session
            if session.errand is errand:
                some = True
                self._over(errand, session.ends(errand))
                if session.flying:
                    news.append(session)
        if some:
            return sorted(news, key=lambda session: session.key)
        return None

    def give_slots(self) -> bool:
        """Gives free slots to those who wait; whether any was."""
        if not self._waiting:
            return False
        self._waiting = given = False
        for pool in (self._environments, self._judges):
            while pool.waiting and pool.free > 0:
                errand, _ = pool.waiting.popitem(last=False)
                pool.free -= 1
                self._begin(errand)
                given = True
        return given

    def _over(self, errand: Errand, ended: CallEnd) -> None:
        """An errand that had its slot is over."""
        session = errand.session
        self._tell(errand, ended)
        session.errand = None
        keeps = errand.kind == "environment" and self._spec.held == "rollout" and session.flying
        if keeps:
            session.holds = True
        else:
            session.holds = False
            errand.pool.free += 1
            self._waiting = True

    def _tell(self, errand: Errand, ended: CallEnd) -> None:
        now_s = to_seconds(self._now)
        start_s = now_s if errand.start is None else to_seconds(errand.start)
        errand.session.calls.append(
            Call(errand.kind, errand.turn, to_seconds(errand.asked), start_s, now_s, ended)
        )

    def put_away(self, session: Session, for_good: bool = False) -> None:
        """It is in flight no more; for_good: nor will it ever be again."""
        session.flying = False
        self._turned.pop(session, None)
        errand = session.errand
        closes = for_good or self._spec.put_away == "close"
        if errand is None:
            self._free(session)
        elif errand.start is None:
            self._tell(errand, "put_away")
            del errand.pool.waiting[errand]
            session.errand = None
        elif for_good or (closes and errand.kind == "environment"):
            self._over(errand, "closed")
        else:
            self._tell(errand, "put_away")
            errand.asked = errand.start = self._now
        if closes:
            session.booted = False
        if for_good:
            del self._known[session.key]

    def finished(self, session: Session) -> None:
        """It has come to its end."""
        self._free(session)
        del self._known[session.key]
