"""What a replica and a trainer cost each other: the same work alone and at once."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from actor_fakes import FakeEngine, FakeTask, StartEngine, StartTrainer
from actor_threads import ThreadTransport
from running_actors import CAP, make

from rollcast.engine.actors.beside import measure
from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.tasks.base import FirstTurns
from rollcast.engine.world import EngineWorld, Recipes
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.plan import Batch
from rollcast.simulator.results.read import check
from rollcast.simulator.results.schema import PROBE
from rollcast.simulator.world import ClusterShape
from tests.turns.oracle import TurnTask

ITERATION_S, TOKEN_S = 2e-3, 2e-4


@pytest.fixture
def world() -> Iterator[EngineWorld]:
    recipes = Recipes([Recipe(StartEngine(8, ITERATION_S))], [Recipe(StartTrainer(TOKEN_S))])
    world = EngineWorld(ThreadTransport(), recipes, ClusterShape(1, 1, 1, False), FakeTask(CAP), 3)
    yield world
    world.close()


def test_each_round_times_the_same_work_alone_and_beside(world: EngineWorld) -> None:
    done: list[int] = []
    found = measure(world, 4, 4, rounds=3, on_round=lambda: done.append(1))
    assert len(found) == len(done) == 3
    updates = [one.update_alone_s for one in found]
    assert min(updates) > 10 * ITERATION_S
    assert max(updates) < 1.5 * min(updates)  # the same batch each time
    for one in found:
        assert one.iterations >= 5  # the update takes some
        for seconds in (one.iterations_alone_s, one.iterations_beside_s):
            assert ITERATION_S <= seconds / one.iterations < 5 * ITERATION_S
        assert one.update_beside_s > 10 * ITERATION_S
        assert one.pulse_alone.long_s > 0
        assert one.to_plain()["pulse_beside"]["short_s"] > 0
    assert world.quiet
    assert not world.log.arrivals  # no new weights, or responses would differ


def test_the_replica_samples_the_same_again_and_again(world: EngineWorld) -> None:
    measure(world, 2, 4, rounds=2)
    log = world.log.iterations
    work = list(zip(log["rollouts"].tolist(), log["context_tokens"].tolist(), strict=True))
    starts = [place for place, tokens in enumerate(log["prefill_tokens"].tolist()) if tokens]
    waves = [work[a:b] for a, b in zip(starts, [*starts[1:], len(work)], strict=True)]
    again = [wave for wave in waves if wave == waves[1]]
    assert len(again) >= len(waves) - 1 >= 6  # all but what is trained on


def test_of_rollouts_with_turns_the_first_is_timed() -> None:
    """Its environment would judge it; the same prompts are asked, and no reward is."""
    recipes = Recipes([Recipe(StartEngine(8, ITERATION_S))], [Recipe(StartTrainer(TOKEN_S))])
    task = FirstTurns(TurnTask())
    world = EngineWorld(ThreadTransport(), recipes, ClusterShape(1, 1, 1, False), task, 3)
    try:
        found = measure(world, 2, 4, rounds=2)
        assert world.quiet
        part = world._updates._states[-1].since[-1]
        assert all(set(group.baseline_rewards) == {0.0, 1.0} for group in part.groups)
    finally:
        world.close()
    assert all(one.iterations >= 3 and one.update_beside_s > ITERATION_S for one in found)
    assert task.prompt(5, 3) == TurnTask().prompt(5, 3)


SLICE_S = 8e-3


@dataclass(frozen=True)
class SharedCore:
    """The recipe of an engine whose iterations take as many slices of time as engines work."""

    def __call__(self) -> Any:
        engine = _Sharing()
        _Sharing.EVERY.append(engine)
        return engine


class _Sharing(FakeEngine):
    EVERY: ClassVar[list[FakeEngine]] = []

    def step(self) -> Any:
        working = sum(bool(engine.unfinished) for engine in self.EVERY)
        time.sleep(SLICE_S * working)
        return super().step()


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_that_share_a_core_are_timed_while_all_work(replicas: int) -> None:
    """No sleep ends early, so what a round takes at least holds on however busy a machine; what it
    takes at most, of the best round."""
    _Sharing.EVERY.clear()
    engines = [Recipe(SharedCore())] * replicas
    recipes = Recipes(engines, [Recipe(StartTrainer(5 * TOKEN_S))])
    shape = ClusterShape(replicas, 1, 1, False)
    world = EngineWorld(ThreadTransport(), recipes, shape, FakeTask(CAP), 3, "group_affinity")
    try:
        found = measure(world, 4, 4, rounds=3)
        assert world.quiet
    finally:
        world.close()
    for one in found:
        assert one.iterations_alone_s >= one.iterations * SLICE_S
        among = one.among
        assert among is not None
        assert among.replicas == one.to_plain()["among"]["replicas"] == replicas
        assert among.iterations >= 5
        assert among.iterations_alone_s >= among.iterations * SLICE_S
        assert among.iterations_among_s >= replicas * among.iterations * SLICE_S
        assert among.all_iterations >= 3
        assert among.all_iterations_alone_s >= among.all_iterations * SLICE_S
        assert among.all_iterations_s >= 0.7 * replicas * among.all_iterations * SLICE_S
        assert among.all_update_s > 0
    rounds = [(one, one.among) for one in found if one.among is not None]
    for times in (
        [among.iterations_among_s / among.iterations_alone_s for _, among in rounds],
        [among.all_iterations_s / among.all_iterations_alone_s for _, among in rounds],
    ):
        assert min(times) < 1.5 * replicas
    # The trainer has a core of its own.
    assert min(one.iterations_beside_s / one.iterations_alone_s for one in found) < 1.5
    assert min(among.all_update_s / one.update_alone_s for one, among in rounds) < 2


def test_of_any_other_world_there_is_nothing_to_measure() -> None:
    for options, said in (
        ({"replicas": 2}, "each group must keep to a replica"),
        ({"replicas": 1, "colocated": True}, "on devices of their own"),
    ):
        home = make(**options)  # type: ignore[arg-type]
        try:
            with pytest.raises(RunError, match=said):
                measure(home.world, 2, 2)
        finally:
            home.world.close()


def asked(shape: ClusterShape) -> Any:
    """As much of a scenario as a probe of nothing else looks at."""
    return SimpleNamespace(
        shape=shape,
        plan=SimpleNamespace(batch=Batch(2, 4)),
        model=None,
        engine=SimpleNamespace(device="cpu"),
        turns=None,
        raw=SimpleNamespace(data={"engine": {"max_seqs": 8}}),
    )


def test_a_probe_may_time_nothing_else(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from rollcast.engine import probe

    monkeypatch.setattr(probe, "prepare", lambda local_files: None)
    monkeypatch.setattr(probe, "start_actors", lambda spec, first_turns, routing: world)
    content = probe.probe(asked(ClusterShape(1, 1, 1, False)), beside_only=True)
    check(json.loads(json.dumps(content)), PROBE.shape, "probe.json", "--probe")
    assert (content["updates"], content["bursts"]) == ([], [])
    assert len(content["beside"]) >= 5
    with pytest.raises(ScenarioError, match="a replica and a trainer apart") as error:
        probe.probe(asked(ClusterShape(1, 1, 1, True)), beside_only=True)
    assert error.value.field == "--beside"
