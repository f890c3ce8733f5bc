"""A run of several turns goes on from a checkpoint and loses nothing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rollcast.engine.in_process import in_process
from rollcast.engine.log import EngineLog
from rollcast.engine.responses import Tokens
from rollcast.engine.saving import pack, unpack
from rollcast.engine.world import EngineWorld
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import ENDINGS
from rollcast.simulator.core.spans import Run
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import Entry, RecordedWorld
from rollcast.simulator.policies import parse_policy
from tests.actors.actor_fakes import FakeEngine, FakeTrainer
from tests.turns.oracle import TurnTask, rules
from tests.turns.test_both_worlds import ITERATION_S
from tests.turns.virtual import Inline, TimedEngine, VirtualClock

STEPS, STOP = 5, 2
PLAN = StepPlan(Batch(4, 4))


def start(policy: str, entries: list[Entry], **spec: Any) -> tuple[Loop, EngineWorld]:
    clock = VirtualClock()
    engine: Any = TimedEngine(FakeEngine(8), clock, ITERATION_S)
    world = in_process(
        engine,
        FakeTrainer(),
        TurnTask(),
        3,
        turns=rules(**spec),
        runner=Inline(clock),
        timer=clock.timer,
    )
    record = RecordedWorld(entries, world, world.shape, world.name, world.go_on)
    return Loop(record, parse_policy(policy, seed=5), PLAN), world


def uninterrupted(policy: str, **spec: Any) -> Run:
    loop, world = start(policy, [], **spec)
    return loop.run(STEPS, after_step=lambda loop: world.keep_only(loop.outstanding))


def interrupted(policy: str, **spec: Any) -> tuple[Run, list[Tokens]]:
    """A run that stops after two steps, and another process's that goes on to the end; what its
    rollouts were made of between the two."""
    entries: list[Entry] = []
    loop, world = start(policy, entries, **spec)
    loop.run(STOP, after_step=lambda loop: world.keep_only(loop.outstanding))
    state = world.state()
    kept = unpack(pack(state.tokens))
    assert kept == state.tokens
    world.close()
    again, other = start(policy, entries, **spec)
    between = list(unpack(pack(kept)).values())
    other.load_state(replace(state, tokens=kept), EngineLog())

    def between_steps(loop: Loop) -> None:
        if not loop.world.resuming:  # type: ignore[attr-defined]
            other.keep_only(loop.outstanding)

    return again.run(STEPS, after_step=between_steps), between


def test_a_resumed_run_is_the_run_that_nothing_interrupts() -> None:
    """With environments that are closed with their rollouts, it is to the last figure."""
    policy, spec = "april(over_sampling=2)", {"on_suspend": "close", "slots": 4}
    whole = uninterrupted(policy, **spec)
    resumed, between = interrupted(policy, **spec)
    assert any(tokens.asking for tokens in between)
    assert any(tokens.answers and not tokens.asking for tokens in between)
    for table in ("segments", "calls"):
        ours, theirs = getattr(whole, table), getattr(resumed, table)
        for column in ours.columns:
            assert np.array_equal(ours[column], theirs[column], equal_nan=True), column
    assert whole.decisions == resumed.decisions
    assert whole.ledger == resumed.ledger


@pytest.mark.parametrize("held", ["call", "rollout"])
def test_environments_that_were_kept_boot_anew_and_are_told_all(held: str) -> None:
    """`Oracle` sees to it that it is; the rollouts become what they would have."""
    policy, spec = "april(over_sampling=2)", {"held": held, "slots": 12}
    whole = uninterrupted(policy, **spec)
    resumed, between = interrupted(policy, **spec)
    assert any(tokens.asking for tokens in between)
    assert resumed.ledger.balance == 0
    mine, other = courses(whole), courses(resumed)
    both = mine.keys() & other.keys()
    assert len(both) > 60
    assert all(mine[key] == other[key] for key in both)


def courses(run: Run) -> dict[tuple[int, ...], list[Any]]:
    """By (group, index, attempt), of rollouts that came to their end: tokens of each turn, what had
    been observed before it, how it ended and what it earned. What its weights were is left out."""
    found: dict[tuple[int, ...], list[Any]] = {}
    names = (
        "group",
        "index",
        "attempt",
        "turn",
        "new_tokens",
        "observation_tokens",
        "ending",
        "finished",
        "reward",
    )
    ended = set()
    for *key, turn, new, observed, ending, finished, reward in zip(
        *(run.segments[name].tolist() for name in names), strict=True
    ):
        turns = found.setdefault(tuple(key), [])
        while len(turns) <= turn:
            turns.append([0, observed])
        turns[turn][0] += new
        if finished:
            ended.add(tuple(key))
            turns.append((ENDINGS[ending], reward))
    return {key: turns for key, turns in found.items() if key in ended}


TOKENS = {
    (3, 0): Tokens(1, (5, 6, 7, 8), (-0.1, 0.0, 0.0, -2.5), (0, 0, 0, 1), ((1, 3),), True, 0.5),
    (4, 1): Tokens(0, (5, 6), (-0.1, -0.2), (0, 0), (), False, 0.0, "turns"),
    (4, 2): Tokens(),
}


def test_what_turns_are_made_of_comes_back() -> None:
    assert unpack(pack(TOKENS)) == TOKENS
    assert TOKENS[3, 0].turns == [(5,), (8,)]
    assert TOKENS[3, 0].observed == (False, True, True, False)


def test_an_answer_is_of_the_version_before_it() -> None:
    tokens = Tokens(0, (5, 6), (-0.1, -2.0), (0, 3))
    tokens.observe((8, 9))
    assert tokens == Tokens(0, (5, 6, 8, 9), (-0.1, -2.0, 0.0, 0.0), (0, 3, 3, 3), ((2, 4),))
    tokens.observe(())
    assert (tokens.turn, tokens.turn_start, tokens.observation_tokens) == (2, 4, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"earned": None}, "turns are missing"),
        ({"turns": np.zeros((2, 3), dtype=np.int64)}, "turns are missing"),
        ({"turns": np.zeros((3, 3), dtype=np.int32)}, "of another type"),
        ({"turns": np.array([[1, 2, -1], [0, 0, 2], [0, 0, -1]])}, "are none"),
        ({"turns": np.array([[1, 1, 99], [0, 0, 2], [0, 0, -1]])}, "are none"),
        ({"turns": np.array([[0, 1, -1], [0, 0, 2], [0, 0, -1]])}, "not as many"),
        ({"answers": np.array([[1, 30]])}, "do not lie within"),
        ({"answers": np.array([[3, 1]])}, "do not lie within"),
        ({"answers": np.array([1, 3])}, "turns are missing"),
    ],
)
def test_planted_turns(change: dict[str, Any], said: str) -> None:
    arrays = {**pack(TOKENS), **change}
    with pytest.raises(ValueError, match=said):
        unpack({name: array for name, array in arrays.items() if array is not None})
