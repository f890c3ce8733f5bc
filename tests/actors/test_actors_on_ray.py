"""Actors in processes of Ray: what crosses, and what happens when one is killed or stopped.

The engines are of no size, so that it is the processes that are tested.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from actor_fakes import (
    FakeTask,
    StartEngine,
    StartProcessRank,
    StartTrainer,
    kill_signed,
    signed,
)
from running_actors import CAP, PLAN, STEPS, drive, make, rows
from test_actor_faults import made

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.transport import ActorLostError, Need
from rollcast.engine.errors import EngineError
from rollcast.engine.world import EngineWorld, Recipes
from rollcast.simulator.loop import run
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on
from rollcast.simulator.world import ClusterShape


def world_of(
    lent: Any, processes: Path, heartbeat_s: float = 60.0, ranks: int = 1, **options: Any
) -> EngineWorld:
    start = StartEngine(8, processes=processes, **options)
    alone = [Recipe(StartTrainer(1e-5, processes=processes))]
    trainer = alone if ranks == 1 else [Recipe(StartProcessRank(1e-5, processes))] * ranks
    recipes = Recipes([Recipe(start)] * 2, trainer)
    shape = ClusterShape(2, 1, ranks, colocated=False)
    return EngineWorld(lent, recipes, shape, FakeTask(CAP), 3, heartbeat_s=heartbeat_s)


class Echo:
    def say(self, value: Any) -> Any:
        return value

    def both(self) -> tuple[int, Any]:
        return 1, np.arange(5)

    def fail(self) -> None:
        raise ValueError("no")

    def die(self) -> None:
        os._exit(1)


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
    with pytest.raises(EngineError, match="asks for 2 GPUs, but Ray has 0"):
        lent.require([Need(1, 1), Need(1, 1)])


@pytest.mark.parametrize("ranks", [1, 2])
def test_processes_are_killed_at_random_moments(lent: Any, tmp_path: Path, ranks: int) -> None:
    """Replicas and the trainer, or one of its ranks, by SIGKILL; the run is that of one without."""
    if ranks > 1:
        pytest.importorskip("torch")
    random, stop, killed = Random(1), threading.Event(), []
    world = world_of(lent, tmp_path, ranks=ranks, iteration_s=5e-3)

    def kill() -> None:
        for name in ("replica", "trainer", "replica"):
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
