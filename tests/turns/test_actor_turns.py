"""Rollouts of several turns on actors: replicas sample, a trainer trains and environments work, all
at the same time."""

import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.trainer import Part
from rollcast.engine.environments import CallError, Episode
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import ENDINGS
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import RecordedWorld, read_entry
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.values.plain import to_plain
from tests.actors.actor_fakes import StartEngine, StartTrainer, Trouble
from tests.actors.actor_threads import ThreadTransport
from tests.turns.oracle import MAX_TURNS, Oracle, TurnTask, rules

STEPS = 4
PLAN = StepPlan(Batch(3, 4))


def make(
    trouble: Trouble | None = None,
    routing: str = "least_loaded",
    broken: Collection[int] = (),
    **spec: Any,
) -> EngineWorld:
    """broken: groups whose environments never boot."""
    recipes = Recipes([Recipe(StartEngine(8, 5e-4, trouble))] * 2, [Recipe(StartTrainer(1e-5))])
    shape = ClusterShape(2, 1, 1, colocated=False)
    turns = replace(rules(slow=20, **spec), make=lambda: Breaking(20, broken=broken))
    transport = ThreadTransport()
    return EngineWorld(
        transport, recipes, shape, TurnTask(), 3, routing, 60.0, lambda limits: turns
    )


def drive(world: EngineWorld, policy: str) -> tuple[Run, RecordedWorld]:
    record = RecordedWorld([], world, world.shape, world.name)
    try:
        return Loop(record, parse_policy(policy, seed=5), PLAN).run(STEPS), record
    finally:
        world.close()


@dataclass
class Breaking(Oracle):
    """An oracle that does not boot for rollouts of some groups."""

    broken: Collection[int] = ()

    def reset(self, episode: Episode) -> float:
        if episode.group in self.broken:
            raise CallError("no such box", 0.0)
        return super().reset(episode)


def test_a_group_whose_environments_all_failed_is_not_trained_on() -> None:
    """Where slots are held for a whole rollout, they may fail before its first token."""
    world = make(held="rollout", slots=12, broken={1})
    given: list[Part] = []
    begin = world._updates.begin
    world._updates.begin = lambda part: (given.append(part), begin(part))[1]  # type: ignore[method-assign]
    result, _ = drive(world, "sync")
    assert result.ledger.balance == 0
    assert [len(part.groups) for part in given] == [2, 3, 3, 3]
    assert all(group.rollouts for part in given for group in part.groups)


def test_a_step_without_a_token_ends_the_run() -> None:
    with pytest.raises(RunError, match="no rollout of step 0 has a token: their environments"):
        drive(make(held="rollout", slots=12, broken={0, 1, 2}), "sync")


CASES: list[tuple[str, dict[str, Any]]] = [
    ("sync", {"slots": 4}),
    ("april(over_sampling=2)", {"on_suspend": "close"}),
    ("one_step_off", {"routing": "session_affinity"}),
    ("fully_async(max_staleness=2)", {"slots": 6}),
    ("fully_async(max_staleness=1)", {"held": "rollout", "slots": 12, "on_suspend": "close"}),
    ("pipeline_rl", {"timeout": 0.8}),
    ("april(over_sampling=2)+longest_first(predictor=probe)", {}),
]


@pytest.mark.parametrize(("policy", "options"), CASES)
def test_turns_and_training_at_the_same_time(policy: str, options: dict[str, Any]) -> None:
    result, record = drive(make(**options), policy)
    assert result.ledger.balance == 0
    segments = result.segments
    ended = Counter(ENDINGS[number] for number in segments["ending"].tolist())
    assert ended["turn"] > ended["stop"] > 0
    assert 1 < max(segments["turn"]) < MAX_TURNS
    names = ("group", "index", "attempt", "finished")
    finished = Counter(
        key
        for *key, done in zip(*(segments[n].tolist() for n in names), strict=True)
        if done
        for key in [tuple(key)]
    )
    assert set(finished.values()) == {1}
    assert (result.calls["end_s"] >= result.calls["start_s"]).all()
    assert (result.calls["start_s"] >= result.calls["asked_s"]).all()
    same_again(result, record, policy)


def same_again(result: Run, record: RecordedWorld, policy: str) -> None:
    """The record, through JSON and in an earlier version's words, leads to the same decisions and
    figures."""
    lines = (json.dumps(entry.to_plain()) for entry in record.entries)
    entries = [
        read_entry(json.loads(line.replace('"suspended"', '"put_away"')), "entry") for line in lines
    ]
    told = RecordedWorld(entries, None, record.shape, record.name)
    again = Loop(told, parse_policy(policy, seed=5), PLAN).run(STEPS)
    assert to_plain(again.decisions) == to_plain(result.decisions)
    assert repr([*again.segments.rows()]) == repr([*result.segments.rows()])
    assert repr([*again.calls.rows()]) == repr([*result.calls.rows()])


def test_turns_of_a_replica_that_is_lost_begin_again(tmp_path: Path) -> None:
    world = make(Trouble(tmp_path / "struck", 60), slots=8)
    result, _ = drive(world, "fully_async(max_staleness=2)")
    assert len(world.log.faults) == 1
    assert result.ledger.balance == 0


@pytest.mark.parametrize("policy", ["april(over_sampling=2)", "fully_async(max_staleness=2)"])
def test_a_run_goes_on_from_whatever_was_under_way(policy: str) -> None:
    """Saved in the middle of a step, with rollouts in their environments."""
    first = make(slots=8)
    record = RecordedWorld([], first, first.shape, first.name)
    loop = Loop(record, parse_policy(policy, seed=5), PLAN)
    loop.begin(STEPS)
    asking = 0
    while len(loop.result.steps) < 2 or asking < 2:
        loop.advance()
        flying = [key for key in loop.rollouts.flying if key in first._rollouts.responses.tokens]
        asking = sum(first._rollouts.responses.tokens[key].asking for key in flying)
    state, entries = first.state(), list(record.entries)
    first.close()
    second = make(slots=8)
    second.load_state(replace(state), second.log)
    record = RecordedWorld(entries, second, second.shape, second.name, second.go_on)
    try:
        result = Loop(record, parse_policy(policy, seed=5), PLAN).run(STEPS)
    finally:
        second.close()
    assert len(result.steps) == STEPS
    assert result.ledger.balance == 0
    same_again(result, record, policy)
