"""What a replica and a trainer cost each other: the same work alone and at once."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from running_actors import make

from rollcast.engine.actors.beside import measure
from rollcast.engine.tasks.base import FirstTurns
from rollcast.engine.world import EngineWorld
from rollcast.simulator.core.plan import Batch
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.results.fitted_file import PROBE
from rollcast.simulator.results.read import check
from tests.turns.oracle import TurnTask

ITERATION_S, TOKEN_S = 4e-3, 4e-4


@pytest.fixture
def world() -> Iterator[EngineWorld]:
    world = make(1, iteration_s=ITERATION_S, token_s=TOKEN_S).world
    yield world
    world.close()


def test_each_round_times_the_same_work_alone_and_beside(world: EngineWorld) -> None:
    done: list[int] = []
    found = measure(world, 4, 4, rounds=3, on_round=lambda: done.append(1))
    assert len(found) == len(done) == 3
    assert sum(one.iterations for one in found) > 0
    for one in found:
        assert min(one.update_alone_s, one.update_beside_s) > 10 * ITERATION_S
        for seconds in (one.iterations_alone_s, one.iterations_beside_s):
            assert seconds >= one.iterations * ITERATION_S
    trained = {metrics.trained_tokens for _, metrics in world.log.updates}
    assert len(trained) == 1  # the same batch each time
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
    task = FirstTurns(TurnTask())
    world = make(1, iteration_s=ITERATION_S, token_s=TOKEN_S, task=task).world
    try:
        found = measure(world, 2, 4, rounds=2)
        assert world.quiet
        part = world._updates._since[-1]
        assert all(set(group.baseline_rewards) == {0.0, 1.0} for group in part.groups)
    finally:
        world.close()
    assert all(one.update_beside_s > ITERATION_S for one in found)
    assert task.prompt(5, 3) == TurnTask().prompt(5, 3)


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
        engine=SimpleNamespace(device="cpu", name="vllm"),
        turns=None,
        raw=SimpleNamespace(data={"engine": {"max_seqs": 8}}),
    )


def test_a_probe_may_time_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from rollcast.engine import probe

    world = make(1, iteration_s=ITERATION_S / 2, token_s=TOKEN_S / 2).world
    unprepared = SimpleNamespace(prepare=lambda local_files: None)
    monkeypatch.setattr(probe, "adapter", lambda name: unprepared)
    monkeypatch.setattr(probe, "start_actors", lambda spec, first_turns, routing: world)
    content = probe.probe(asked(ClusterShape(1, 1, 1, False)), beside_only=True)
    check(json.loads(json.dumps(content)), PROBE.shape, "probe.json", "--probe")
    assert (content["updates"], content["bursts"]) == ([], [])
    assert len(content["beside"]) >= 5
    with pytest.raises(ScenarioError, match="a replica and a trainer apart") as error:
        probe.probe(asked(ClusterShape(1, 1, 1, True)), beside_only=True)
    assert error.value.field == "--beside"
