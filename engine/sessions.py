"""Rollouts of several turns between their turns: with their environment or judge, or suspended.

The rules are those of `simulator.cluster.session_machine`; but an environment answers in a thread
of its own, and nobody knows when. An instant is when the world looks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from rollcast.engine.edges import Response
from rollcast.engine.environments.base import Environment, Episode, Turn
from rollcast.engine.environments.sandbox import Outcome, Patience, Sandbox
from rollcast.engine.environments.threads import Runner
from rollcast.engine.frontend import NO_BUDGET, Finished, Order
from rollcast.engine.log import Failure
from rollcast.engine.responses import Responses, Tokens
from rollcast.engine.tasks.base import Prompt
from rollcast.simulator.cluster.session_machine import (
    BaseSession,
    Kind,
    PendingCall,
    Pool,
    SessionMachine,
    Stage,
)
from rollcast.simulator.core.plan import Placement
from rollcast.simulator.core.rollout import FAILED, CallEnd, Ending, Key, Rollout, Segment
from rollcast.simulator.errors import RunError
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec

_ENDS: dict[str, tuple[CallEnd, Ending | None]] = {
    "answered": ("answered", None),
    "timeout": ("timeout", "timeout"),
    "failed": ("failed", "environment"),
}
CLOSING_S = 5.0
"""That a run waits at its end for its environments to close."""
_POLL_S = 0.01
_AT_ONCE_S = 1e-9
"""What is due so soon is due now."""


@dataclass(frozen=True)
class TurnRules:
    """The rules of rollouts with several turns. make: makes a rollout's environment. encode: token
    ids of its text. vocab_size: of the model. spec: slots, and what happens to suspended
    environments. patience: with calls. max_turns, max_context_tokens: end a rollout; None: no cap.
    judge: of the whole response, by prompt and text; None: the sum of the answers' rewards."""

    make: Callable[[], Environment]
    encode: Callable[[str], Sequence[int]]
    vocab_size: int
    spec: EnvironmentSpec = UNLIMITED
    patience: Patience = field(default_factory=Patience)
    max_turns: int | None = None
    max_context_tokens: float = math.inf
    judge: Callable[[Prompt, str], float] | None = None


class EnvironmentCall(PendingCall):
    """A call of an environment, its boot included. sandbox: carries it out; began_s: its beginning;
    due_s: its end, None while unknown."""

    __slots__ = ("began_s", "due_s", "outcome", "sandbox")

    def __init__(self, session: Session, kind: Kind, pool: Pool, asked_s: float) -> None:
        super().__init__(session, kind, pool, asked_s)
        self.sandbox: Sandbox | None = None
        self.began_s = 0.0
        self.due_s: float | None = None
        self.outcome: Outcome | None = None


class Session(BaseSession):
    """A rollout with turns, as its world keeps it beside the engines. placement: of its turns."""

    __slots__ = ("placement", "prompt_tokens", "sandbox", "tokens")

    def __init__(self, rollout: Rollout, tokens: Tokens, prompt_tokens: int) -> None:
        super().__init__(rollout)
        self.tokens, self.prompt_tokens = tokens, prompt_tokens
        self.sandbox: Sandbox | None = None
        self.placement: Placement = "router"

    @property
    def turn(self) -> int:
        """The number of its turn."""
        return self.tokens.turn

    @property
    def stage(self) -> Stage:
        """What comes next."""
        if self.tokens.ending is not None:
            return "end"
        return "environment" if self.tokens.asking else "model"

    def with_calls(self, segment: Segment) -> Segment:
        """A segment on an engine, with its turn and the calls before it."""
        return self.complete(segment, self.tokens.turn, self.tokens.observation_tokens)


class Sessions(SessionMachine[Session, EnvironmentCall]):
    """All sessions of a world. now: its clock, seconds. failed: called with failed calls. runner:
    runs the environments."""

    def __init__(
        self,
        rules: TurnRules,
        responses: Responses,
        now: Callable[[], float],
        failed: Callable[[Failure], None],
        runner: Runner,
    ) -> None:
        super().__init__(rules.spec)
        self._rules, self._responses = rules, responses
        self._clock, self._failed = now, failed
        self._runner = runner
        self._working: dict[EnvironmentCall, None] = {}
        self._closing = 0  # environments that are being closed

    def twin(self, runner: Runner) -> Sessions:
        """Sessions by the same rules, of other rollouts."""
        return Sessions(self._rules, self._responses, self._clock, self._failed, runner)

    # In flight

    def catch_up(self) -> None:
        """Takes in the answers for suspended rollouts."""
        self._look()
        for call, ended, at_s in self._due(suspended=True):
            self._over(call, ended, at_s)

    def open(self, rollout: Rollout, placement: Placement = "router") -> Session:
        """The session of a submitted rollout. Raises RunError if its prompt fills the context."""
        tokens = self._responses.begin(rollout)
        session = self._known.get(rollout.key)
        if session is not None and session.tokens is not tokens:
            self.suspend(session, for_good=True)
            session = None
        if session is None:
            prompt_tokens = len(self._responses.prompt(rollout.group).token_ids)
            if prompt_tokens >= self._rules.max_context_tokens:
                raise RunError(
                    f"the prompt of {rollout} has {prompt_tokens} tokens, and its context is ended "
                    f"at {self._rules.max_context_tokens}: make workload.max_context_tokens larger"
                )
            session = self._known[rollout.key] = Session(rollout, tokens, prompt_tokens)
        session.launch(rollout)
        session.placement = placement
        return session

    def order(self, session: Session) -> Order:
        """The order for its turn, or the rest of it."""
        tokens = session.tokens
        cap = min(self._turn_end(tokens), self._rules.max_context_tokens - session.prompt_tokens)
        below = NO_BUDGET if session.turns_left != 1 else 0
        if session.tokens_left is not None:
            budget = len(tokens.ids) + session.tokens_left
            cap, below = min(cap, budget), min(below, budget)
        return self._responses.order_to(session.rollout, int(cap), below)

    def _turn_end(self, tokens: Tokens) -> int:
        """Response tokens at the end of the turn, at most."""
        return tokens.turn_start + self._responses.task.max_new_tokens

    def left_engine(
        self, finished: Finished, replica: int, zero_s: float = 0.0, for_good: bool = False
    ) -> Segment:
        """Takes in the result of a turn, or of a part of it; returns its segment. See
        `engine.responses.Responses.finish`. for_good: an aborted one is not submitted again."""
        session = self._known[finished.key]
        rollout, tokens = session.rollout, session.tokens
        ending = self._ending(session, finished.response)
        made = self._responses.take_in(rollout, finished)
        if session.tokens_left is not None:
            session.tokens_left -= made
        tokens.asking = finished.response.finish_reason not in (None, "length")
        if tokens.asking and session.turns_left is not None:
            session.turns_left -= 1
        reward = None
        if ending in ("length", "context"):
            tokens.ending = ending
            reward = self._reward(session)
        segment = self._responses.segment(rollout, finished, replica, zero_s, ending, reward)
        segment = session.with_calls(segment)
        if ending == "turn":
            self.turned(session)
        elif segment.finished:
            self.finished(session)
        else:
            self.suspend(session, for_good)
        return segment

    def _ending(self, session: Session, response: Response) -> Ending:
        tokens, reached = session.tokens, len(response.token_ids)
        if response.finish_reason is None:
            return "aborted"
        if response.finish_reason != "length":
            made, left = reached - len(tokens.ids), session.tokens_left
            spent = session.turns_left == 1 or (left is not None and left <= made)
            return "budget" if spent else "turn"
        if reached >= self._turn_end(tokens):
            return "length"
        full = session.prompt_tokens + reached >= self._rules.max_context_tokens
        return "context" if full else "budget"

    def _reward(self, session: Session) -> float:
        tokens, judge = session.tokens, self._rules.judge
        if tokens.ending in FAILED:
            return 0.0
        if judge is None:
            return tokens.earned
        return judge(self._responses.prompt(session.rollout.group), self._text(tokens.ids))

    def _text(self, ids: Sequence[int]) -> str:
        return self._responses.task.decode(ids)

    def stop(self, key: Key, for_good: bool, replica: int = -1) -> Segment:
        """Stops a rollout that is not on an engine."""
        session = self._known[key]
        self.suspend(session, for_good)
        return self._nothing(session, "aborted", None, replica)

    def _nothing(
        self, session: Session, ending: Ending, reward: float | None, replica: int = -1
    ) -> Segment:
        nothing = self._responses.nothing(session.rollout, replica, self._now, ending, reward)
        return session.with_calls(nothing)

    # Between turns

    def settle(self) -> tuple[list[Session], list[Segment]]:
        """Continues after all calls that have ended; returns the rollouts that take a turn next,
        and the segments of those that ended."""
        self._look()
        take_turns: list[Session] = []
        ended: list[Segment] = []
        while True:
            news = self.round()
            for session in news or ():
                if session.stage == "end":
                    assert session.tokens.ending is not None
                    reward = self._reward(session)
                    ended.append(self._nothing(session, session.tokens.ending, reward))
                    self.finished(session)
                elif self.next_stage(session) == "model":
                    take_turns.append(session)
            if not self.give_slots() and news is None:
                return take_turns, ended

    def wait(self, seconds: float) -> None:
        """Returns when something may have happened, or after ``seconds``."""
        seconds = min(seconds, self._due_s)
        if seconds > 0:
            self._runner.wait(seconds)

    @property
    def next_s(self) -> float:
        """Seconds until the next look, for who waits for other things as well."""
        working = any(call.outcome is None for call in self._working)
        return min(self._due_s, _POLL_S if working else math.inf)

    @property
    def _due_s(self) -> float:
        """Seconds until a call ends or times out, as far as known."""
        now_s, seconds = self._now, math.inf
        for call in self._working:
            if call.due_s is not None:
                seconds = min(seconds, call.due_s - now_s)
            elif call.sandbox is not None:
                since = call.sandbox.since
                left_s = self._rules.patience.timeout_s
                if since is not None:
                    left_s -= self._runner.timer() - since
                seconds = min(seconds, left_s)
        return seconds

    def _look(self) -> None:
        """Notes finished calls, and gives up those that take too long."""
        for call, outcome in self._runner.ended():
            if call is None:
                self._closing -= 1
            elif call in self._working and call.outcome is None:
                call.outcome, call.due_s = outcome, call.began_s + outcome.seconds
            else:
                self._close_sandbox(call.sandbox)
        limit_s, timer_s = self._rules.patience.timeout_s, self._runner.timer()
        for call in self._working:
            since = None if call.sandbox is None else call.sandbox.since
            if call.outcome is None and since is not None and timer_s - since > limit_s:
                self._give_up(call)
                call.due_s = self._now
                reason = f"it did not answer within {limit_s:g} s"
                call.outcome = Outcome("timeout", limit_s, reason=reason)

    # What the machine asks for

    @property
    def _now(self) -> float:
        return self._clock()

    def _seconds(self, instant: float) -> float:
        return instant

    def _call(self, session: Session, kind: Kind, pool: Pool) -> EnvironmentCall:
        return EnvironmentCall(session, kind, pool, self._now)

    def give_slots(self) -> bool:
        """Gives free slots to waiting calls; returns whether any was given."""
        given = super().give_slots()
        self._look()
        return given

    def _carry_out(self, call: EnvironmentCall) -> None:
        session: Session = call.session
        call.began_s = self._now
        self._working[call] = None
        if session.sandbox is None:
            session.sandbox = self._sandbox(session)
        turns = self._turns(session)
        asked = turns.pop() if session.tokens.asking else None
        sandbox = call.sandbox = session.sandbox
        self._runner.start(call, lambda: sandbox.work(turns, asked))

    def _due(self, suspended: bool = False) -> Iterator[tuple[EnvironmentCall, CallEnd, float]]:
        """suspended: only of suspended rollouts."""
        now_s = self._now
        for call in [*self._working]:
            due_s = call.due_s
            if due_s is None or due_s > now_s + _AT_ONCE_S or (suspended and call.session.flying):
                continue
            del self._working[call]
            yield call, self._take_in(call, due_s), due_s

    def _take_in(self, call: EnvironmentCall, due_s: float) -> CallEnd:
        """The end of a call."""
        session: Session = call.session
        outcome = call.outcome
        assert outcome is not None
        ended, ending = _ENDS[outcome.ended]
        if outcome.reason:
            self._failed(Failure(due_s, *session.key, call.turn, outcome.reason))
        tokens = session.tokens
        if ending is not None:
            tokens.ending, tokens.asking = ending, False
            self._close(session)
        elif tokens.asking:
            self._answered(session, outcome)
        return ended

    def _abandon(self, call: EnvironmentCall) -> None:
        self._working.pop(call, None)
        if call.outcome is None:
            self._give_up(call)

    def _close(self, session: Session) -> None:
        sandbox, session.sandbox = session.sandbox, None
        if sandbox is not None:
            self._close_sandbox(sandbox)

    def _sandbox(self, session: Session) -> Sandbox:
        rollout, rules = session.rollout, self._rules
        prompt = self._responses.prompt(rollout.group)
        episode = Episode(
            prompt.text,
            prompt.token_ids,
            prompt.answer,
            rollout.group,
            rollout.index,
            rollout.attempt,
            rollout.visit,
            rollout.prompt,
            self._responses.seed,
        )
        timer = self._runner.timer
        return Sandbox(rules.make, episode, rules.patience, rules.encode, rules.vocab_size, timer)

    def _turns(self, session: Session) -> list[Turn]:
        return [Turn(turn, self._text(ids), ids) for turn, ids in enumerate(session.tokens.turns)]

    def _answered(self, session: Session, outcome: Outcome) -> None:
        tokens, rules = session.tokens, self._rules
        assert outcome.answer is not None
        tokens.asking = False
        tokens.earned += outcome.answer.reward
        context = session.prompt_tokens + len(tokens.ids) + len(outcome.observed)
        if outcome.answer.done:
            tokens.ending = "stop"
        elif rules.max_turns is not None and tokens.turn + 1 >= rules.max_turns:
            tokens.ending = "turns"
        elif context >= rules.max_context_tokens:
            tokens.ending = "context"
        else:
            tokens.observe(outcome.observed)

    # Ends

    def _close_sandbox(self, sandbox: Sandbox) -> None:
        self._closing += 1
        self._runner.start(None, sandbox.close)

    @staticmethod
    def _give_up(call: EnvironmentCall) -> None:
        """Leaves a call to itself; its environment is closed once it ends."""
        assert call.sandbox is not None
        call.sandbox.given_up = True
        call.session.sandbox = None

    def keep_only(self, groups: Collection[int]) -> None:
        """Closes the environments of all other groups."""
        for key, session in [*self._known.items()]:
            if key[0] not in groups:
                self.suspend(session, for_good=True)

    def close(self) -> None:
        """Closes all of them, waiting at most `CLOSING_S`."""
        self.keep_only(())
        until_s = time.monotonic() + CLOSING_S
        while self._closing and time.monotonic() < until_s:
            self._runner.wait(0.1)
            self._look()
