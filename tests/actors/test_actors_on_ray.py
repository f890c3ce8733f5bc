"""Actors in processes of Ray: places, shared GPUs, calls, and actors that are killed or stopped.

Engines are of no size, and Ray counts GPUs that are not there.
"""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from actor_fakes import FakeTask, StartEngine, StartProcessRank, StartTrainer, kill_signed, signed
from ray_actors import Echo, Placed
from running_actors import CAP, PLAN, STEPS, drive, made, make, rows

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.transport import ActorLostError, Need, Sharing
from rollcast.engine.errors import EngineError
from rollcast.engine.start import shared
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import Recipes
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on
from tests.running import run

ray = pytest.importorskip("ray", reason="Ray is not installed (rollcast[ray])")


@pytest.fixture
def reserving(ray_transport: Any) -> Iterator[Any]:
    """The transport, and what it reserves is freed afterwards."""
    yield ray_transport
    ray_transport.end_actors()
    ray.util.remove_placement_group(ray_transport._group)
    ray_transport._group, ray_transport._places = None, []


def groups(state: str) -> dict[str, Any]:
    table = ray.util.placement_group_table()
    return {name: group for name, group in table.items() if group["state"] == state}


def test_actors_have_places_and_so_have_those_that_replace_them(reserving: Any) -> None:
    needs = [Need(2), Need(2), Need(1)]
    reserving.reserve(needs)
    [(name, table)] = groups("CREATED").items()
    assert table["strategy"] == "PACK"
    assert [place["CPU"] for place in table["bundles"].values()] == [2, 2, 1]
    # The small one comes first, and must not take the place of a large one.
    actors = [reserving.start(Placed, (), need, "placed") for need in reversed(needs)]
    calls = [actor.call("group") for actor in actors]
    for number in (2, 1, 0, 2):  # killed while they start, too
        reserving.kill(actors[number])
        need = needs[2 - number]
        actors[number] = reserving.start(Placed, (), need, "another")
        calls[number] = actors[number].call("group")
    for call in calls:
        assert reserving.wait([call], 60.0), "an actor found no place"
    assert {reserving.get(call) for call in calls} == {name}
    with pytest.raises(EngineError, match="no place for an actor of 0 GPUs and 1 CPUs is reserved"):
        reserving.start(Placed, (), Need(1), "one too many")
    # What is held is nobody else's: 64 CPUs are counted on this machine.
    with pytest.raises(EngineError, match=r"after 0.2 s 4 GPUs and 59 CPUs are free"):
        reserving.reserve([Need(60)], within_s=0.2)
    assert [*groups("CREATED")] == [name]
    assert len(groups("REMOVED")) == 1


def test_each_rank_sees_a_gpu_of_its_replica(reserving: Any) -> None:
    shape = ClusterShape(2, 2, 3, colocated=True)
    needs = shared([Need(2, 2), Need(2, 2), *[Need(1, 1)] * 3], shape)
    reserving.require(needs)  # seven actors' worth of GPUs are four
    reserving.reserve(needs)
    actors = [reserving.start(Placed, (), need, "seeing") for need in needs]
    reserving.kill(actors[0])  # and what replaces it sees what it saw
    actors[0] = reserving.start(Placed, (), needs[0], "another")
    first, second, *ranks = (reserving.get(actor.call("devices")) for actor in actors)
    assert len(first) == len(second) == 2
    assert sorted(first + second) == ["0", "1", "2", "3"]
    assert ranks == [[first[0]], [first[1]], [second[0]]]
    with pytest.raises(EngineError, match="no place for an actor of 1 GPUs"):
        reserving.start(Placed, (), Need(1, 1, sharing=Sharing(7, (0,))), "elsewhere")


def world_of(
    lent: Any, processes: Path, heartbeat_s: float = 60.0, ranks: int = 1, **options: Any
) -> EngineWorld:
    start = StartEngine(8, processes=processes, **options)
    alone = [Recipe(StartTrainer(1e-5, processes=processes))]
    trainer = alone if ranks == 1 else [Recipe(StartProcessRank(1e-5, processes))] * ranks
    recipes = Recipes([Recipe(start)] * 2, trainer)
    shape = ClusterShape(2, 1, ranks, colocated=False)
    return EngineWorld(lent, recipes, shape, FakeTask(CAP), 3, heartbeat_s=heartbeat_s)


def test_what_crosses(lent: Any) -> None:
    actor = lent.start(Echo, (), Need(), "echo")
    shared = lent.put({"w": np.arange(3)})
    said = actor.call("say", shared)
    one, array = actor.call("both", results=2)
    assert lent.get(said)["w"].tolist() == [0, 1, 2]
    assert (lent.get(one), lent.get(array).tolist()) == (1, [0, 1, 2, 3, 4])
    assert lent.get(actor.call("say", array, lane="watch")).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no"):
        lent.get(actor.call("fail"))
    lost = actor.call("die")
    with pytest.raises(ActorLostError):
        lent.get(lost)
    with pytest.raises(ActorLostError):
        lent.get(actor.call("say", 1))
    lent.kill(actor)
    assert lent.wait([], 0.0) == []


def test_more_than_there_is_is_refused(lent: Any) -> None:
    lent.require([Need(1)])
    needs = shared([Need(1, 1)] * 10, ClusterShape(5, 1, 5, colocated=True))
    for asked in (needs, [Need(1, 2), Need(1, 3)]):
        with pytest.raises(EngineError, match="asks for 5 GPUs, but Ray has 4"):
            lent.require(asked)


def test_processes_are_killed_at_random_moments(lent: Any, tmp_path: Path) -> None:
    """Replicas and a rank of the trainer, by SIGKILL; the run is that of one without."""
    pytest.importorskip("torch")
    random, stop, killed = Random(1), threading.Event(), []
    world = world_of(lent, tmp_path, ranks=2, iteration_s=5e-3)

    def kill() -> None:
        for name in ("replica", "trainer"):
            if stop.wait(random.uniform(0.05, 0.5)):
                return
            while not (there := signed(tmp_path, name)):  # it is being replaced
                if stop.wait(0.05):
                    return
            killed.append(kill_signed(random.choice(there)))

    thread = threading.Thread(target=kill)
    record = RecordedWorld([], world, world.shape, "engine")
    chain = parse_policy("sync")
    thread.start()
    try:
        trial = try_on(
            Monitor(record, CAP), chain, batch_groups=4, group_size=4, prompts=10, steps=STEPS
        )
    finally:
        stop.set()
        thread.join()
        world.close()
    conserves(trial)
    never_on_two_replicas(trial)
    assert killed
    assert len(world.log.faults) >= len(killed) - 1  # the last may be killed after all is done
    assert made(trial.run) == made(drive(make(2), "sync")[0])
    again = run(RecordedWorld(record.entries, None, world.shape, "engine"), chain, PLAN, STEPS)
    assert rows(again) == rows(trial.run)


def test_a_stopped_process_is_noticed(lent: Any, tmp_path: Path) -> None:
    world = world_of(lent, tmp_path, heartbeat_s=3.0, iteration_s=2e-3)
    mark = min(tmp_path.glob("replica-*"))
    os.kill(int(mark.name.partition("-")[2]), signal.SIGSTOP)
    record = RecordedWorld([], world, world.shape, "engine")
    try:
        result = run(record, parse_policy("fully_async"), PLAN, 3)
    finally:
        world.close()
    assert "no sign of life for 3 s" in world.log.faults[0].cause
    assert result.ledger.balance == 0
