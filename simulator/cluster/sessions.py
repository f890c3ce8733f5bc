"""Sessions of simulated rollouts: what their environments say, and how long it takes, is known."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import simpy

from rollcast.simulator.cluster.session_machine import (
    BaseSession,
    Kind,
    PendingCall,
    Pool,
    SessionMachine,
    Stage,
)
from rollcast.simulator.core.rollout import CallEnd, Ending, Rollout, Segment
from rollcast.simulator.costs.clock import to_seconds, to_ticks
from rollcast.simulator.workload.base import Trajectory
from rollcast.simulator.workload.slots import EnvironmentSpec

_LAST: dict[Ending, CallEnd] = {"timeout": "timeout", "environment": "failed"}


class TimedCall(PendingCall):
    """A call that takes so many ticks once it has its slot."""

    __slots__ = ("ticks",)

    def __init__(self, session: Session, kind: Kind, pool: Pool, asked: int, ticks: int) -> None:
        super().__init__(session, kind, pool, asked)
        self.ticks = ticks


class Session(BaseSession):
    """A rollout's way through its trajectory.

    turn: the current one. observation_tokens: added by the environment so far. sampled: tokens so
    far; ``turn_end`` at the end of this turn. answered: whether the last turn was. judged, booted:
    whether it was judged, and its environment is up. balanced: whether it is placed by expected
    tokens.
    """

    __slots__ = (
        "answered",
        "attempt",
        "balanced",
        "booted",
        "judged",
        "observation_tokens",
        "prompt_tokens",
        "reward",
        "sampled",
        "trajectory",
        "turn",
        "turn_end",
    )

    def __init__(
        self, rollout: Rollout, prompt_tokens: int, reward: float, trajectory: Trajectory
    ) -> None:
        super().__init__(rollout)
        self.attempt = rollout.attempt
        self.prompt_tokens = prompt_tokens
        self.reward = reward
        self.trajectory = trajectory
        self.turn = rollout.turn
        self.observation_tokens = rollout.observation_tokens
        self.sampled = rollout.new_tokens
        self.turn_end = sum(turn.new_tokens for turn in trajectory.turns[: self.turn + 1])
        self.answered = self.judged = self.booted = self.balanced = False

    @property
    def known(self) -> int:
        """Tokens of its context."""
        return self.prompt_tokens + self.observation_tokens + self.sampled

    @property
    def last(self) -> bool:
        """Whether it is in its last turn."""
        return self.turn == len(self.trajectory.turns) - 1

    @property
    def stage(self) -> Stage:
        """What comes next."""
        if self.sampled < self.turn_end:
            return "model"
        if not self.last or (self.trajectory.asks_at_last and not self.answered):
            return "environment"
        return "reward" if self.trajectory.judged and not self.judged else "end"

    @property
    def turn_ending(self) -> Ending:
        """The turn's end. Where the environment has the last word, no turn is known to be last."""
        trajectory = self.trajectory
        if self.last and not trajectory.asks_at_last:
            return "turn" if trajectory.judged else trajectory.ending
        spent = self.tokens_left is not None and self.tokens_left <= self.turn_end - self.sampled
        return "budget" if spent or self.turns_left == 1 else "turn"

    def with_calls(self, segment: Segment) -> Segment:
        """A segment on a replica with its turn, and what came between it and the one before."""
        return self.complete(segment, self.turn, self.observation_tokens)

    def nothing(self, ending: Ending, now: int) -> Segment:
        """The segment of a rollout that is stopped, or ends, away from the replicas."""
        rollout, now_s = self.rollout, to_seconds(now)
        reward = None if ending == "aborted" else self.reward
        key = (rollout.group, rollout.index, self.attempt)
        segment = Segment(*key, -1, self.prompt_tokens, (), ending, now_s, now_s, reward=reward)
        return self.with_calls(segment)

    def sampled_in(self, segment: Segment) -> None:
        """A segment on a replica is over."""
        tokens = segment.new_tokens
        self.sampled += tokens
        if self.tokens_left is not None:
            self.tokens_left -= tokens
        if self.turns_left is not None and self.sampled == self.turn_end:
            self.turns_left -= 1

    def ticks_to(self, kind: Kind) -> int:
        """What the call takes that it needs for its next stage."""
        if kind == "reward":
            return to_ticks(self.trajectory.reward_s or 0.0)
        ticks = self.to_repeat()
        if self.stage == "environment":
            ticks += to_ticks(self.trajectory.turns[self.turn].environment_s)
        return ticks

    def to_repeat(self) -> int:
        """Ticks until its environment is where it was."""
        if self.booted:
            return 0
        answered = self.trajectory.turns[: self.turn]
        ticks = to_ticks(self.trajectory.boot_s)
        return ticks + sum(to_ticks(turn.environment_s) for turn in answered)

    def ends(self, call: PendingCall) -> CallEnd:
        """A call is over: what became of it, and where the session is then."""
        if call.kind == "reward":
            self.judged = True
            return "answered"
        self.booted = True
        if self.stage != "environment":  # a slot was all that it wanted
            return "answered"
        if self.last:
            self.answered = True
            return _LAST.get(self.trajectory.ending, "answered")
        self.turn += 1
        turn = self.trajectory.turns[self.turn]
        self.observation_tokens += turn.observation_tokens
        self.turn_end += turn.new_tokens
        return "answered"


class Sessions(SessionMachine[Session, TimedCall]):
    """All sessions of a cluster, and the pools. env: its clock, in ticks."""

    def __init__(self, spec: EnvironmentSpec, env: simpy.Environment) -> None:
        super().__init__(spec)
        self._env = env
        self._ends: list[tuple[int, tuple[int, int], int, TimedCall]] = []  # a heap
        self._begun = 0

    @property
    def _now(self) -> int:
        return self._env.now  # type: ignore[return-value]  # simpy: int | float

    def _seconds(self, instant: float) -> float:
        return to_seconds(instant)  # type: ignore[arg-type]  # a whole number of ticks

    def of(self, rollout: Rollout) -> Session | None:
        """The session of this attempt at a rollout, if it ever was in flight."""
        session = self._known.get(rollout.key)
        return None if session is None or session.attempt != rollout.attempt else session

    def open(
        self, rollout: Rollout, prompt_tokens: int, reward: float, trajectory: Trajectory
    ) -> Session:
        """The session of a rollout that is submitted."""
        session = self.of(rollout)
        if session is None:
            earlier = self._known.get(rollout.key)
            if earlier is not None:
                self.suspend(earlier, for_good=True)
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

    def _call(self, session: Session, kind: Kind, pool: Pool) -> TimedCall:
        return TimedCall(session, kind, pool, self._now, session.ticks_to(kind))

    def _carry_out(self, call: TimedCall) -> None:
        self._begun += 1
        heappush(self._ends, (self._now + call.ticks, call.session.key, self._begun, call))
        self._env.timeout(call.ticks)

    def _due(self) -> Iterator[tuple[TimedCall, CallEnd, float]]:
        now, ends = self._now, self._ends
        while ends and ends[0][0] <= now:
            call = heappop(ends)[3]
            if call.session.call is call:
                yield call, call.session.ends(call), now

    def _close(self, session: Session) -> None:
        session.booted = False
