"""Environments that raise, hang or lie end their rollout with a reason, and the run goes on."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rollcast.engine.environments import Answer, CallError, Episode, Turn
from rollcast.engine.environments.sandbox import Outcome, Patience, Sandbox
from rollcast.engine.environments.threads import Threads
from rollcast.engine.in_process import in_process
from rollcast.engine.sessions import TurnRules
from rollcast.engine.world import EngineWorld
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import ENDINGS, Rollout
from rollcast.simulator.core.spans import Run
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.workload.slots import EnvironmentSpec
from tests.actors.actor_fakes import FakeEngine, FakeTrainer
from tests.running import run
from tests.turns.oracle import MAX_CONTEXT, MAX_TURNS, VOCABULARY, TurnTask

EPISODE = Episode("two and two?", (3, 4), 4, 0, 0)
SAID = Turn(0, "2+2", (5, 6, 1))


class Scripted:
    """Does one thing after the other."""

    def __init__(self, *script: Any) -> None:
        self.script, self.log = list(script), list[str]()

    def reset(self, episode: Episode) -> Any:
        self.log.append("reset")
        return None

    def step(self, said: Turn) -> Any:
        self.log.append(f"step {said.turn}")
        now = self.script.pop(0)
        if isinstance(now, BaseException):
            raise now
        return now

    def close(self) -> None:
        self.log.append("close")


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def ask(environment: Any, timeout_s: float = 10.0, retry: int = 0) -> Outcome:
    patience = Patience(timeout_s, retry)
    sandbox = Sandbox(lambda: environment, EPISODE, patience, encode, 63, lambda: 0.0)
    return sandbox.work((), SAID)


@pytest.mark.parametrize(
    ("given", "observed"),
    [
        ("4>", (52, 62)),
        ({"observation": [3, 4], "reward": 0.5, "seconds": 2}, (3, 4)),
        (Answer([3], reward=0.5, seconds=2.0), (3,)),
        ({"done": True, "observation": "not looked at", "reward": True}, ()),
    ],
)
def test_what_an_answer_may_be(given: Any, observed: tuple[int, ...]) -> None:
    outcome = ask(Scripted(given))
    assert outcome.ended == "answered", outcome.reason
    assert outcome.observed == observed
    assert outcome.seconds == outcome.answer.seconds


NONSENSE = [
    (None, "step returned NoneType, and not an answer, a mapping or a text"),
    (7, "step returned int"),
    ({"obs": "4"}, "its answer has 'obs'"),
    ({"observation": 4}, "its observation is int, not text or token ids"),
    ({"observation": b"4"}, "its observation is bytes"),
    ({"observation": [3, 63]}, "holds 63, which is no token of the model's vocabulary of 63"),
    ({"observation": [-1]}, "holds -1"),
    ({"observation": [True]}, "holds True"),
    ({"observation": [3.0]}, "holds 3.0"),
    ({"observation": "\u00e9"}, "holds 233, which is no token"),
    ({"observation": "4", "done": 1}, "its done is 1, not true or false"),
    ({"observation": "4", "reward": "high"}, "its reward is 'high', not a finite number"),
    ({"observation": "4", "reward": float("nan")}, "its reward is nan"),
    ({"observation": "4", "seconds": -1}, "its seconds is -1"),
    ({"observation": "4", "seconds": float("inf")}, "its seconds is inf"),
    ({"observation": "4", "seconds": 1e9}, "its seconds is 1e\\+09"),
    ({"observation": "4", "seconds": None}, "its seconds is None"),
    (ValueError("a wall"), "ValueError: a wall"),
    (SystemExit(3), "SystemExit: 3"),
    (CallError("no luck", -5), "CallError: no luck"),
]


@pytest.mark.parametrize(("given", "reason"), NONSENSE)
def test_nonsense_is_a_failure_with_a_reason(given: Any, reason: str) -> None:
    import re

    outcome = ask(Scripted(given))
    assert outcome.ended == "failed"
    assert outcome.answer is None
    assert re.search(reason, outcome.reason), outcome.reason


def test_a_failure_takes_its_time_and_is_tried_again() -> None:
    environment = Scripted(CallError("busy", 2.0), RuntimeError("no"), Answer("4", seconds=3.0))
    outcome = ask(environment, retry=2)
    assert (outcome.ended, outcome.seconds) == ("answered", 5.0)
    assert environment.log == ["reset", "step 0", "step 0", "step 0"]
    again = Scripted(CallError("busy", 2.0), CallError("busy", 2.5))
    outcome = ask(again, retry=1)
    assert (outcome.ended, outcome.seconds) == ("failed", 4.5)


def test_an_answer_that_would_take_longer_than_the_timeout_is_not_waited_for() -> None:
    outcome = ask(Scripted(Answer("4", seconds=11.0)), timeout_s=10.0, retry=5)
    assert (outcome.ended, outcome.seconds) == ("timeout", 10.0)


def test_what_is_booted_anew_is_told_all_it_had_been_asked() -> None:
    made: list[Scripted] = []

    def make() -> Any:
        made.append(Scripted(*["yes"] * 9))
        return made[-1]

    sandbox = Sandbox(make, EPISODE, Patience(), encode, 200, lambda: 0.0)
    turns = [Turn(turn, "?", (5,)) for turn in range(3)]
    sandbox.work(turns[:1], turns[1])
    sandbox.work(turns[:2], turns[2])
    sandbox.close()
    sandbox.work(turns[:2], turns[2])
    first, second = made
    assert first.log == ["reset", "step 0", "step 1", "step 2", "close"]
    assert second.log == ["reset", "step 0", "step 1", "step 2"]


# In a run

ONCE_S, TIMEOUT_S = 0.02, 0.5


@dataclass
class Zoo:
    """Makes environments of which some raise, hang or lie, by index, and counts what they do."""

    release: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    at_once: int = 0
    most_at_once: int = 0
    made: int = 0
    closed: int = 0
    closed_at_work: int = 0

    def make(self) -> Any:
        return Animal(self)


class Animal:
    def __init__(self, zoo: Zoo) -> None:
        self.zoo, self.index, self.busy = zoo, -1, False
        with zoo.lock:
            zoo.made += 1

    def reset(self, episode: Episode) -> None:
        self.index = episode.index
        if episode.group == 1 and episode.index == 3:
            raise OSError("no such box")

    def step(self, said: Turn) -> Any:
        zoo = self.zoo
        with zoo.lock:
            self.busy = True
            zoo.at_once += 1
            zoo.most_at_once = max(zoo.most_at_once, zoo.at_once)
        try:
            return self._answer(said)
        finally:
            with zoo.lock:
                self.busy = False
                zoo.at_once -= 1

    def _answer(self, said: Turn) -> Any:
        if self.index == 0 and said.turn == 1:
            raise RuntimeError("a wall")
        if self.index == 1 and said.turn == 0:
            self.zoo.release.wait()
        if self.index == 2:
            return {"observation": [10**9]}
        time.sleep(ONCE_S)
        return Answer("ab", done=said.turn == 2, reward=1.0)

    def close(self) -> None:
        with self.zoo.lock:
            self.zoo.closed += 1
            self.zoo.closed_at_work += self.busy
        raise RuntimeError("who cares")


@pytest.fixture
def zoo() -> Iterator[Zoo]:
    zoo = Zoo()
    yield zoo
    zoo.release.set()


def in_vocabulary(text: str) -> list[int]:
    return [20 + ord(letter) % 50 for letter in text]


def real_run(zoo: Zoo, failed: Any = "keep", **spec: Any) -> tuple[Run, EngineWorld]:
    world = make_world(zoo, **spec)
    try:
        plan = StepPlan(Batch(2, 8), failed=failed)
        return run(world, parse_policy("sync"), plan, 2), world
    finally:
        world.close()


def make_world(zoo: Zoo, **spec: Any) -> EngineWorld:
    rules = TurnRules(
        zoo.make,
        in_vocabulary,
        VOCABULARY,
        EnvironmentSpec(**spec),
        Patience(TIMEOUT_S),
        MAX_TURNS,
        MAX_CONTEXT,
    )
    return in_process(FakeEngine(16), FakeTrainer(), TurnTask(40), 3, turns=rules)


def until(reached: Callable[[], bool]) -> None:
    for _ in range(3000):
        if reached():
            return
        time.sleep(0.01)
    raise AssertionError("it never came")


def test_a_raising_a_hanging_and_a_lying_environment_end_their_rollouts_alone(zoo: Zoo) -> None:
    result, world = real_run(zoo, slots=6)
    segments = result.segments
    done = segments["finished"] == 1
    assert done.sum() == 32
    how = dict(
        zip(segments["index"][done].tolist(), segments["ending"][done].tolist(), strict=True)
    )
    endings = {index: ENDINGS[number] for index, number in how.items()}
    assert endings[1] == "timeout"
    assert endings[2] == "environment"
    for failure in world.log.failures:
        assert failure.at_s >= 0
    reasons = Counter(failure.reason for failure in world.log.failures)
    lies = [reason for reason in reasons if "1000000000, which is no token" in reason]
    assert sum(reasons[reason] for reason in lies) == 4
    assert reasons[f"it did not answer within {TIMEOUT_S:g} s"] == 4
    assert reasons["RuntimeError: a wall"] >= 1
    assert reasons["OSError: no such box"] == 1
    rewards = segments["reward"][done]
    failed = [ENDINGS[number] in ("timeout", "environment") for number in segments["ending"][done]]
    assert set(rewards[failed].tolist()) == {0.0}
    assert rewards.max() == 3.0
    assert result.ledger.balance == 0
    assert max(Counter(segments["turn"][done].tolist())) == 2
    # They waited beside each other, as many as there are slots; who hung had to be left behind.
    assert 4 < zoo.most_at_once <= 6 + 4
    zoo.release.set()
    until(lambda: zoo.closed == zoo.made)


def test_a_rollout_without_a_token_is_not_trained_on(zoo: Zoo) -> None:
    """Where slots are held for a whole rollout, a boot may fail before its first turn."""
    result, world = real_run(zoo, held="rollout", slots=16)
    segments = result.segments
    empty = (segments["finished"] == 1) & (segments["total_tokens"] == 0)
    keys = zip(segments["group"][empty].tolist(), segments["index"][empty].tolist(), strict=True)
    assert list(keys) == [(1, 3)]
    assert result.steps[0].trained_rollouts == 16
    ((_, first), _) = world.log.updates
    assert first.rollouts == 15


@pytest.mark.parametrize("for_good", [False, True])
def test_an_environment_is_not_closed_while_it_works(zoo: Zoo, for_good: bool) -> None:
    world = make_world(zoo, on_suspend="close")
    rollouts = [Rollout(0, index) for index in range(8)]
    world.submit(rollouts)
    while zoo.at_once < 3:
        world.wait(world.now_s + 0.002)
    segments = world.abort(for_good=for_good)
    assert {segment.key for segment in segments} <= {rollout.key for rollout in rollouts}
    assert {"closed"} <= {call.ended for segment in segments for call in segment.calls}
    zoo.release.set()
    until(lambda: zoo.closed == zoo.made)
    assert zoo.closed_at_work == 0
    world.close()


def test_another_rollout_takes_the_place_of_one_whose_environment_failed(zoo: Zoo) -> None:
    """Where it always fails the run ends, and says so."""
    from rollcast.simulator.errors import RunError

    with pytest.raises(RunError, match="never ends: its environment failed"):
        real_run(zoo, failed="restart")


def test_threads_are_used_again_and_a_stop_does_not_wait_for_them() -> None:
    threads, before = Threads(), threading.active_count()
    held = threading.Event()
    threads.start("held", held.wait)
    for number in range(20):
        threads.start(number, lambda: threading.get_ident())
        until(lambda: len(threads._seen) > 0 or threads.wait(0.05) or len(threads._seen) > 0)
        ((ticket, _),) = threads.ended()
        assert ticket == number
    began = time.perf_counter()
    threads.wait(0.05)
    assert time.perf_counter() - began > 0.04
    assert threading.active_count() <= before + 4
    held.set()
