"""Rollouts of several turns between their turns, in the real world: with their environment, with
their judge, put away.

What `simulator.cluster.sessions` is to the simulated one, rule by rule; but here nobody knows what
an environment is going to say, and it says it in a thread of its own. An instant is when the world
looks: errands that have ended by then, and turns that have, are taken in the order of their
rollouts' keys, and each goes on to what follows; then slots that are free go to those who wait.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.desk import Landed, Order
from engine.edges import Response
from engine.environments.base import Environment, Episode, Said
from engine.environments.sandbox import Outcome, Patience, Sandbox
from engine.environments.threads import Runner
from engine.log import Failure
from engine.responses import Responses, Tokens
from engine.tasks.base import Prompt
from simulator.errors import RunError
from simulator.plan import Placement
from simulator.rollout import FAILED, Call, CallEnd, Ending, Key, Rollout, Stay
from simulator.workload.slots import UNLIMITED, EnvironmentSpec

Leg = Literal["model", "environment", "end"]
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
    """What rollouts of several turns are.

    make: makes a rollout's environment. encode: token ids of what it says. vocab_size: of the
    model. spec: slots, and what becomes of environments that are put away. patience: with their
    calls. max_turns, max_context_tokens: at which a rollout is ended; None is no such cap. judge:
    of the whole response, by the prompt and its text; None is what the answers earned.
    """

    make: Callable[[], Environment]
    encode: Callable[[str], Sequence[int]]
    vocab_size: int
    spec: EnvironmentSpec = UNLIMITED
    patience: Patience = field(default_factory=Patience)
    max_turns: int | None = None
    max_context_tokens: int | None = None
    judge: Callable[[Prompt, str], float] | None = None

    @property
    def context_tokens(self) -> float:
        """At which a rollout is ended."""
        return math.inf if self.max_context_tokens is None else self.max_context_tokens


class _Errand:
    """What a session waits for away from the engines. sandbox: what does it; began_s: when that
    began; start_s: when it had its slot, or was told of last, None before; due_s: when it is over,
    None while it is not known."""

    __slots__ = ("asked_s", "began_s", "due_s", "outcome", "sandbox", "session", "start_s", "turn")

    def __init__(self, session: Session, asked_s: float) -> None:
        self.session, self.turn, self.asked_s = session, session.tokens.turn, asked_s
        self.sandbox: Sandbox | None = None
        self.began_s = 0.0
        self.start_s: float | None = None
        self.due_s: float | None = None
        self.outcome: Outcome | None = None


class Session:
    """A rollout with turns, as its world keeps it beside the engines.

    tokens: what it is made of. sandbox: its environment. holds: whether it has a slot beyond an
    errand. placement: of its turns. flying: whether it is in flight; tokens_left, turns_left: that
    it may have in this flight, None for all. calls: that its next stay tells of.
    """

    __slots__ = ("calls", "errand", "flying", "holds", "placement", "prompt_tokens", "rollout",
                 "sandbox", "tokens", "tokens_left", "turns_left")  # fmt: skip

    def __init__(self, rollout: Rollout, tokens: Tokens, prompt_tokens: int) -> None:
        self.rollout, self.tokens, self.prompt_tokens = rollout, tokens, prompt_tokens
        self.sandbox: Sandbox | None = None
        self.errand: _Errand | None = None
        self.holds = self.flying = False
        self.placement: Placement = "router"
        self.tokens_left: int | None = None
        self.turns_left: int | None = None
        self.calls: list[Call] = []

    @property
    def key(self) -> Key:
        """(group, index)."""
        return self.rollout.key

    @property
    def leg(self) -> Leg:
        """What comes next."""
        if self.tokens.ending is not None:
            return "end"
        return "environment" if self.tokens.asking else "model"

    def launch(self, rollout: Rollout, placement: Placement) -> None:
        """It is submitted."""
        self.rollout, self.placement, self.flying = rollout, placement, True
        self.tokens_left, self.turns_left = rollout.allowance, rollout.turn_allowance

    def told(self, stay: Stay) -> Stay:
        """What the world says of a stay."""
        calls, self.calls = tuple(self.calls), []
        turn, observed = self.tokens.turn, self.tokens.observation_tokens
        return stay._replace(turn=turn, observation_tokens=observed, calls=calls)


class Sessions:
    """All sessions of a world. now: its clock, seconds. failed: is told of calls that brought no
    answer. runner: does the environments' work."""

    def __init__(
        self,
        rules: TurnRules,
        responses: Responses,
        now: Callable[[], float],
        failed: Callable[[Failure], None],
        runner: Runner,
    ) -> None:
        self._rules, self._responses = rules, responses
        self._now, self._failed = now, failed
        self._runner = runner
        self._known: dict[Key, Session] = {}
        self._free = math.inf if rules.spec.slots is None else rules.spec.slots
        self._waiting: dict[_Errand, None] = {}
        self._working: dict[_Errand, None] = {}
        self._turned: dict[Session, None] = {}
        self._closing = 0  # environments that are being closed

    # In flight

    @property
    def flying(self) -> set[Key]:
        """In flight."""
        return {key for key, session in self._known.items() if session.flying}

    def flies(self, key: Key) -> bool:
        """Whether a rollout is in flight."""
        session = self._known.get(key)
        return session is not None and session.flying

    def __getitem__(self, key: Key) -> Session:
        return self._known[key]

    def catch_up(self) -> None:
        """Takes in what environments have done by now for rollouts that are put away."""
        self._look()
        for errand in [*self._working]:
            if self._is_due(errand) and not errand.session.flying:
                self._ends(errand)

    def open(self, rollout: Rollout, placement: Placement = "router") -> Session:
        """The session of a rollout that is submitted. Raises RunError where its prompt leaves no
        room in the context."""
        tokens = self._responses.begin(rollout)
        session = self._known.get(rollout.key)
        if session is not None and session.tokens is not tokens:
            self.put_away(session, for_good=True)
            session = None
        if session is None:
            prompt_tokens = len(self._responses.prompt(rollout.group).token_ids)
            if prompt_tokens >= self._rules.context_tokens:
                raise RunError(
                    f"the prompt of {rollout} has {prompt_tokens} tokens, and its context is ended "
                    f"at {self._rules.max_context_tokens}: make workload.max_context_tokens larger"
                )
            session = self._known[rollout.key] = Session(rollout, tokens, prompt_tokens)
        session.launch(rollout, placement)
        return session

    def order(self, session: Session) -> Order:
        """Its turn, or the rest of it, as an engine is asked for it."""
        tokens = session.tokens
        cap = min(self._turn_end(tokens), self._rules.context_tokens - session.prompt_tokens)
        if session.tokens_left is not None:
            cap = min(cap, len(tokens.ids) + session.tokens_left)
        return self._responses.order_to(session.rollout, int(cap))

    def _turn_end(self, tokens: Tokens) -> int:
        """How long the response may be at the end of its turn."""
        return tokens.turn_start + self._responses.task.max_new_tokens

    def landed(
        self, landed: Landed, replica: int, zero_s: float = 0.0, for_good: bool = False
    ) -> Stay:
        """Takes in what a turn, or a part of it, came to in an engine, and says what the stay was;
        see `engine.responses.Responses.land`. for_good: of one that was stopped, see `put_away`."""
        session = self._known[landed.key]
        rollout, tokens = session.rollout, session.tokens
        ending = self._ending(session, landed.response)
        made = self._responses.take_in(rollout, landed)
        if session.tokens_left is not None:
            session.tokens_left -= made
        tokens.asking = landed.response.finish_reason not in (None, "length")
        if tokens.asking and session.turns_left is not None:
            session.turns_left -= 1
        reward = None
        if ending in ("length", "context"):
            tokens.ending = ending
            reward = self._reward(session)
        stay = self._responses.stay(rollout, landed, replica, zero_s, ending, reward)
        told = session.told(stay)
        if ending == "turn":
            self._turned[session] = None
        elif told.finished:
            self._finished(session)
        else:
            self.put_away(session, for_good)
        return told

    def ends_turn(self, key: Key, response: Response) -> bool:
        """Whether what left an engine is a turn after which the rollout stays in flight."""
        return self._ending(self._known[key], response) == "turn"

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
        full = session.prompt_tokens + reached >= self._rules.context_tokens
        return "context" if full else "budget"

    def _reward(self, session: Session) -> float:
        """Of a rollout that is over."""
        tokens, judge = session.tokens, self._rules.judge
        if tokens.ending in FAILED:
            return 0.0
        if judge is None:
            return tokens.earned
        return judge(self._responses.prompt(session.rollout.group), self._text(tokens.ids))

    def _text(self, ids: Sequence[int]) -> str:
        return self._responses.task.decode(ids)

    def stop(self, key: Key, for_good: bool, replica: int = -1) -> Stay:
        """Stops a rollout that is in flight away from the engines, or waits for one."""
        session = self._known[key]
        self.put_away(session, for_good)
        return self._nothing(session, "aborted", None, replica)

    def _nothing(
        self, session: Session, ending: Ending, reward: float | None, replica: int = -1
    ) -> Stay:
        """The stay of a rollout that is stopped, or ends, without an iteration."""
        rollout, now_s = session.rollout, self._now()
        key = (rollout.group, rollout.index, rollout.attempt)
        stay = Stay(*key, replica, session.prompt_tokens, (), ending, now_s, now_s, reward=reward)
        return session.told(stay)

    # Between turns

    def settle(self) -> tuple[list[Session], list[Stay]]:
        """Goes on with all that has come by now: who takes a turn next, and whose end it is."""
        self._look()
        take_turns: list[Session] = []
        ended: list[Stay] = []
        while True:
            news = self._round()
            for session in news:
                if session.leg == "end":
                    assert session.tokens.ending is not None
                    reward = self._reward(session)
                    ended.append(self._nothing(session, session.tokens.ending, reward))
                    self._finished(session)
                elif self.next_leg(session) == "model":
                    take_turns.append(session)
            if not self._give_slots() and not news and not self._turned:
                return take_turns, ended

    def next_leg(self, session: Session) -> Leg:
        """Sends it on its next errand, if there is one; ``model`` is the caller's."""
        if session.errand is not None:  # it has worked on while the rollout was put away
            return "environment"
        leg = session.leg
        slot_first = self._rules.spec.held == "rollout" and not session.holds
        if leg == "environment" or (leg == "model" and slot_first):
            errand = session.errand = _Errand(session, self._now())
            if session.holds:
                self._begin(errand)
            else:
                self._waiting[errand] = None
            return "environment"
        if leg == "end":
            self._turned[session] = None
        return leg

    def wait(self, seconds: float) -> None:
        """Returns when something may have happened, or after ``seconds``."""
        seconds = min(seconds, self._due_s)
        if seconds > 0:
            self._runner.wait(seconds)

    @property
    def next_s(self) -> float:
        """Seconds after which to look again, for who waits for other things as well."""
        working = any(errand.outcome is None for errand in self._working)
        return min(self._due_s, _POLL_S if working else math.inf)

    @property
    def _due_s(self) -> float:
        """Seconds until an errand is over, or given up, as far as that is known."""
        now_s, seconds = self._now(), math.inf
        for errand in self._working:
            if errand.due_s is not None:
                seconds = min(seconds, errand.due_s - now_s)
            elif errand.sandbox is not None:
                since = errand.sandbox.since
                left_s = self._rules.patience.timeout_s
                if since is not None:
                    left_s -= self._runner.timer() - since
                seconds = min(seconds, left_s)
        return seconds

    def _look(self) -> None:
        """Takes note of work that is done, and gives up what takes too long."""
        for errand, outcome in self._runner.ended():
            if errand is None:
                self._closing -= 1
            elif errand in self._working and errand.outcome is None:
                errand.outcome, errand.due_s = outcome, errand.began_s + outcome.seconds
            else:
                self._close(errand.sandbox)
        limit_s, timer_s = self._rules.patience.timeout_s, self._runner.timer()
        for errand in self._working:
            since = None if errand.sandbox is None else errand.sandbox.since
            if errand.outcome is None and since is not None and timer_s - since > limit_s:
                self._give_up(errand)
                errand.due_s = self._now()
                reason = f"it did not answer within {limit_s:g} s"
                errand.outcome = Outcome("timeout", limit_s, reason=reason)

    def _round(self) -> list[Session]:
        """Who goes on now, in order of key."""
        news = dict(self._turned)
        self._turned.clear()
        for errand in [*self._working]:
            if self._is_due(errand):
                self._ends(errand)
                if errand.session.flying:
                    news[errand.session] = None
        return sorted(news, key=lambda session: session.key)

    def _is_due(self, errand: _Errand) -> bool:
        return errand.due_s is not None and errand.due_s <= self._now() + _AT_ONCE_S

    def _give_slots(self) -> bool:
        """Gives free slots to those who wait; whether any was."""
        given = False
        for errand in [*self._waiting]:
            if self._free <= 0:
                break
            del self._waiting[errand]
            self._free -= 1
            self._begin(errand)
            given = True
        self._look()
        return given

    def _begin(self, errand: _Errand) -> None:
        session = errand.session
        errand.began_s = errand.start_s = self._now()
        self._working[errand] = None
        if session.sandbox is None:
            session.sandbox = self._sandbox(session)
        said = self._said(session)
        asked = said.pop() if session.tokens.asking else None
        sandbox = errand.sandbox = session.sandbox
        self._runner.start(errand, lambda: sandbox.work(said, asked))

    def _sandbox(self, session: Session) -> Sandbox:
        rollout, rules = session.rollout, self._rules
        prompt = self._responses.prompt(rollout.group)
        episode = Episode(
            prompt.text, prompt.token_ids, prompt.answer, rollout.group, rollout.index,
            rollout.attempt, rollout.visit, rollout.prompt, self._responses.seed,
        )  # fmt: skip
        timer = self._runner.timer
        return Sandbox(rules.make, episode, rules.patience, rules.encode, rules.vocab_size, timer)

    def _said(self, session: Session) -> list[Said]:
        """The model's words in each turn that is over."""
        return [Said(turn, self._text(ids), ids) for turn, ids in enumerate(session.tokens.said)]

    def _ends(self, errand: _Errand) -> None:
        """An errand is over."""
        session, outcome = errand.session, errand.outcome
        assert outcome is not None
        ended, ending = _ENDS[outcome.ended]
        due_s = self._now() if errand.due_s is None else errand.due_s
        self._tell(errand, ended, due_s)
        if outcome.reason:
            self._failed(Failure(due_s, *session.key, errand.turn, outcome.reason))
        self._leave(errand)
        keeps = self._rules.spec.held == "rollout" and session.flying
        if keeps:
            session.holds = True
        else:
            session.holds = False
            self._free += 1
        tokens = session.tokens
        if ending is not None:
            tokens.ending, tokens.asking = ending, False
            self._close_of(session)
        elif tokens.asking:
            self._answered(session, outcome)

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
        elif context >= rules.context_tokens:
            tokens.ending = "context"
        else:
            tokens.observe(outcome.observed)

    def _leave(self, errand: _Errand) -> None:
        """It is nobody's errand any more."""
        self._waiting.pop(errand, None)
        self._working.pop(errand, None)
        errand.session.errand = None

    def _tell(self, errand: _Errand, ended: CallEnd, end_s: float) -> None:
        start_s = end_s if errand.start_s is None else errand.start_s
        call = Call("environment", errand.turn, errand.asked_s, start_s, max(start_s, end_s), ended)
        errand.session.calls.append(call)

    # Ends

    def put_away(self, session: Session, for_good: bool = False) -> None:
        """It is in flight no more; for_good: nor will it ever be again."""
        session.flying = False
        self._turned.pop(session, None)
        closes = for_good or self._rules.spec.put_away == "close"
        errand, now_s = session.errand, self._now()
        if errand is None:
            self._give_back(session)
        elif errand.start_s is None:
            self._tell(errand, "put_away", now_s)
            self._leave(errand)
        elif closes:
            self._tell(errand, "closed", now_s)
            self._leave(errand)
            if errand.outcome is None:
                self._give_up(errand)
            session.holds = False
            self._free += 1
        else:
            self._tell(errand, "put_away", now_s)
            errand.asked_s = errand.start_s = now_s
        if closes:
            self._close_of(session)
        if for_good:
            del self._known[session.key]

    def _finished(self, session: Session) -> None:
        """It has come to its end."""
        session.flying = False
        self._give_back(session)
        self._close_of(session)
        del self._known[session.key]

    def _give_back(self, session: Session) -> None:
        """The slot that it holds, if any."""
        if session.holds:
            session.holds = False
            self._free += 1

    def _close_of(self, session: Session) -> None:
        sandbox, session.sandbox = session.sandbox, None
        if sandbox is not None:
            self._close(sandbox)

    def _close(self, sandbox: Sandbox) -> None:
        """Closes an environment beside everything else."""
        self._closing += 1
        self._runner.start(None, sandbox.close)

    @staticmethod
    def _give_up(errand: _Errand) -> None:
        """Nobody waits for its work any more; when that is done, its environment is closed."""
        assert errand.sandbox is not None
        errand.sandbox.given_up = True
        errand.session.sandbox = None

    def keep_only(self, groups: Collection[int]) -> None:
        """Closes what rollouts of other groups left."""
        for key, session in [*self._known.items()]:
            if key[0] not in groups:
                self.put_away(session, for_good=True)

    def close(self) -> None:
        """Closes all of them, and waits for that as long as is decent."""
        self.keep_only(())
        until_s = time.monotonic() + CLOSING_S
        while self._closing and time.monotonic() < until_s:
            self._runner.wait(0.1)
            self._look()
