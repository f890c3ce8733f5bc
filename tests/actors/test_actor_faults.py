"""Actors that are lost: the run goes on, nothing is lost silently, nothing counted twice.

Actors are threads that are killed by being forgotten; `test_actors_on_ray` kills processes.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actor_fakes import FakeEngine, Trouble
from actor_threads import ThreadTransport
from running_actors import (
    CAP,
    STEPS,
    Home,
    drive,
    keeps_its_bound,
    made,
    make,
    trained_on,
    weight_of,
)

from rollcast.engine.actors.fleet import MOST_LOSSES, Fleet, Recipe
from rollcast.engine.actors.trainer import Part
from rollcast.engine.errors import EngineError, RankLostError
from rollcast.engine.world import EngineWorld
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on


class Killer:
    """Kills each actor of a world at random moments while it is used, never so often that the
    world gives up."""

    def __init__(self, home: Home, seed: int) -> None:
        self._home, self._random, self._end = home, Random(seed), threading.Event()
        self._left = ["replica 0", "replica 1", "trainer"] * MOST_LOSSES
        self.killed: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while self._left and not self._end.wait(self._random.uniform(0.002, 0.03)):
            name = self._random.choice(self._left)
            if actors := self._home.transport.alive(name):
                self._random.choice(actors).kill()  # of a trainer, one of its ranks
                self._left.remove(name)
                self.killed.append(name)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def watched(world: EngineWorld) -> list[Part]:
    """What the trainer is given, as the loop would have it."""
    parts: list[Part] = []
    begin = world._updates.begin

    def noted(part: Part) -> None:
        parts.append(part)
        begin(part)

    world._updates.begin = noted  # type: ignore[method-assign]
    return parts


@pytest.mark.parametrize(
    ("policy", "seed", "ranks", "sleeps"),
    [
        ("sync", 1, 3, False),
        ("april(over_sampling=2)", 2, 1, False),
        ("one_step_off", 3, 2, False),
        ("fully_async(max_staleness=2)", 1, 2, False),
        ("pipeline_rl", 2, 1, False),
        ("streaming", 3, 2, False),
        ("sync", 5, 2, True),
        ("april(over_sampling=2)", 0, 2, True),
    ],
)
def test_killed_at_random_moments_a_run_ends_right(
    policy: str, seed: int, ranks: int, sleeps: bool
) -> None:
    home = make(2, iteration_s=2e-3, ranks=ranks, colocated=sleeps, sleeps=sleeps)
    parts = watched(home.world)
    chain = parse_policy(policy, seed=5)
    try:
        with Killer(home, seed) as killer:
            record = RecordedWorld([], home.world, home.world.shape, "engine")
            monitor = Monitor(record, CAP)
            trial = try_on(monitor, chain, batch_groups=4, group_size=4, prompts=10, steps=STEPS)
        conserves(trial)
        never_on_two_replicas(trial)
        keeps_its_bound(trial)
        assert killer.killed
        assert weight_of(home) == trained_on(parts)
        assert len(home.world.log.faults) >= 1
        assert len(home.world.log.updates) == STEPS
        if policy == "sync":
            whole, _ = drive(make(2), policy)
            assert made(trial.run) == made(whole)
    finally:
        home.world.close()


def test_lost_rollouts_begin_again_and_are_counted() -> None:
    home = make(2, iteration_s=3e-3)
    world = home.world

    def kill() -> None:
        time.sleep(0.02)
        home.transport.alive("replica 0")[0].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    result, _ = drive(home, "sync", steps=2)
    thread.join()
    (fault,) = world.log.faults
    assert fault.actor == "replica 0"
    assert fault.cause == "killed"
    assert fault.rollouts > 0
    assert fault.at_s > 0
    assert result.ledger.balance == 0
    assert made(result) == made(drive(make(2), "sync", steps=2)[0])


@pytest.mark.parametrize(
    ("trouble", "cause", "replicas"),
    [
        ({"iteration": 20}, "on fire", 1),
        ({"iteration": 20}, "on fire", 2),
        ({"iteration": 10, "kind": "hang"}, "no sign of life for 1 s", 2),
        ({"kind": "load"}, "loading weights", 1),
        ({"kind": "load"}, "loading weights", 2),
        ({"kind": "sleep"}, "in sleep", 1),
        ({"kind": "sleep"}, "in sleep", 2),
        ({"kind": "wake"}, "in wake", 1),
        ({"kind": "wake"}, "in wake", 2),
    ],
)
def test_an_engine_that_fails_is_replaced(
    tmp_path: Path, trouble: dict[str, Any], cause: str, replicas: int
) -> None:
    sleeps = trouble.get("kind") in ("sleep", "wake")
    options = {"colocated": sleeps, "sleeps": sleeps}
    fails = Trouble(tmp_path / "mark", **trouble)
    home = make(replicas, engine_trouble=fails, heartbeat_s=1.0, **options)
    result, entries = drive(home, "sync")
    (fault,) = home.world.log.faults
    assert cause in fault.cause
    assert sum(bool(entry.synced) for entry in entries) == STEPS
    assert made(result) == made(drive(make(replicas), "sync")[0])


@dataclass(frozen=True)
class StartSlowLoader:
    """An engine that loads weights for longer than the heartbeat."""

    def __call__(self) -> FakeEngine:
        engine, load = FakeEngine(8), FakeEngine.load_weights

        def slowly(*given: Any, **options: Any) -> None:
            time.sleep(0.9)
            load(engine, *given, **options)

        engine.load_weights = slowly  # type: ignore[method-assign]
        return engine


def test_a_replica_that_loads_weights_is_not_lost() -> None:
    home = make(1, engine=StartSlowLoader(), heartbeat_s=0.4)
    drive(home, "sync", steps=1)
    assert not home.world.log.faults


def test_a_sync_that_fails_in_flight_is_tried_again(tmp_path: Path) -> None:
    home = make(2, engine_trouble=Trouble(tmp_path / "mark", kind="load"))
    result, entries = drive(home, "pipeline_rl")
    assert len(home.world.log.faults) == 1
    assert sum(bool(entry.synced) for entry in entries) == STEPS
    assert result.ledger.balance == 0


def test_a_replica_that_is_lost_again_and_again_ends_the_run() -> None:
    home = make(1, iteration_s=1e-2)
    stop = threading.Event()

    def kill() -> None:
        while not stop.wait(0.01):
            for actor in home.transport.alive("replica"):
                actor.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        with pytest.raises(EngineError, match=f"lost {MOST_LOSSES + 1} times in a row: killed"):
            drive(home, "sync")
    finally:
        stop.set()
        thread.join()


def test_an_engine_that_cannot_start_says_why() -> None:
    transport = ThreadTransport()
    fleet = Fleet(transport, [Recipe(_refuse)])
    transport.wait(fleet.polls, 10.0)
    with pytest.raises(EngineError, match="no room"):
        list(fleet.receive(fleet.polls))


def _refuse() -> Any:
    raise EngineError("no room")


def test_a_driver_that_was_busy_for_long_suspects_nobody() -> None:
    home = make(2, heartbeat_s=0.8)
    world = home.world
    for _ in range(2):
        time.sleep(0.9)
        world._receive(0.0)
    result, _ = drive(home, "sync", steps=1)
    assert result.ledger.balance == 0
    assert not world.log.faults


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_trainer_that_hangs_is_noticed(ranks: int) -> None:
    """Whatever it is busy with, a trainer that lives answers."""
    home = make(1, heartbeat_s=0.6, ranks=ranks)
    trainer = home.transport.alive("trainer")[-1]
    trainer.target.beat = lambda pause_s: time.sleep(3600)
    while not home.world.log.faults:
        home.world._receive(0.1)
    (fault,) = home.world.log.faults
    assert (fault.actor, fault.cause) == ("trainer", "no sign of life for 0.6 s")
    result, _ = drive(home, "fully_async", steps=3)
    assert result.ledger.balance == 0


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_is_lost_in_an_update_has_all_replaced(lost: int) -> None:
    """The others wait for it in vain; what they were is taken up by as many new ones."""
    home = make(2, ranks=3)
    parts = watched(home.world)
    updates, issue = home.world._updates, home.world._updates._issue
    killed: list[int] = []

    def kill(part: Part) -> None:
        issue(part)
        if part.version == 2 and not killed:
            (actor,) = home.transport.alive(f"trainer rank {lost}")
            actor.kill()
            killed.append(lost)

    updates._issue = kill  # type: ignore[method-assign]
    replace = updates.replace

    def replaced(*given: Any) -> None:
        replace(*given)
        assert len(home.transport.alive("trainer")) == 3  # none is left behind

    updates.replace = replaced  # type: ignore[method-assign]
    result, _ = drive(home, "one_step_off")
    (fault,) = home.world.log.faults
    assert (fault.actor, fault.cause) == ("trainer", f"rank {lost}: killed")
    assert weight_of(home) == trained_on(parts)
    assert result.ledger.balance == 0
    started = [name for name, _ in home.transport.actors if name.startswith("trainer")]
    assert started == [f"trainer rank {number}" for number in (0, 1, 2)] * 2


def test_a_rank_that_loses_another_is_lost_itself() -> None:
    """What it says is no verdict on the update."""
    home = make(1, ranks=2)
    (rank,) = home.transport.alive("trainer rank 1")

    def torn(*_: Any, **__: Any) -> None:
        raise RankLostError("connection closed by peer")

    rank.target._trainer.step = torn
    result, _ = drive(home, "sync", steps=2)
    (fault,) = home.world.log.faults
    assert (fault.actor, fault.cause) == ("trainer", "rank 1: connection closed by peer")
    assert result.ledger.balance == 0


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_update_that_is_refused_ends_the_run(ranks: int) -> None:
    home = make(1, ranks=ranks)

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("a token is outside the vocabulary of 100")

    for rank in home.transport.alive("trainer"):
        rank.target._trainer.step = refuse
    with pytest.raises(RunError, match="the update of step 0 failed: ValueError: a token"):
        drive(home, "sync", steps=2)
    assert not home.world.log.faults
