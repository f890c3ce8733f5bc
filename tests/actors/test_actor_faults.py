"""Actors that are lost: the run goes on, nothing is lost silently, nothing counted twice.

Here actors are threads that are killed by being forgotten; `test_actors_on_ray` does it to
processes.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest
from actor_fakes import FakeTrainer, Trouble
from actor_threads import ThreadTransport
from running_actors import CAP, PLAN, STEPS, Home, drive, keeps_its_bound, make

from rollcast.engine.actors.fleet import MOST_LOSSES, Fleet, Recipe
from rollcast.engine.actors.trainer import Part
from rollcast.engine.errors import EngineError, RankLostError
from rollcast.engine.world import EngineWorld
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.spans import Run
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on

POLICIES = [
    "sync",
    "april(over_sampling=2)",
    "one_step_off",
    "fully_async(max_staleness=2)",
    "pipeline_rl",
    "streaming",
]


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


def trained_on(parts: list[Part]) -> float:
    """The weight of a trainer that was given these, once each."""
    trainer = FakeTrainer()
    for part in parts:
        trainer.step(
            part.groups,
            shared_prefix=part.shared_prefix,
            version=part.version,
            final=part.final,
        )
    return float(trainer.weights()["w"][0])


def weight_of(home: Home) -> float:
    latest = home.world._updates.latest
    assert latest is not None
    packed: Any = home.transport.get(latest.ref)
    return float(packed["w"].array[0])


def made(result: Run) -> list[tuple[Any, ...]]:
    columns = ("group", "index", "attempt", "total_tokens", "reward", "trained_step")
    finished = result.segments["finished"].astype(bool)
    return sorted(zip(*(result.segments[name][finished].tolist() for name in columns), strict=True))


@pytest.mark.parametrize(("seed", "ranks"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 2), (5, 3)])
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_at_random_moments_a_run_ends_right(policy: str, seed: int, ranks: int) -> None:
    home = make(2, iteration_s=2e-3, ranks=ranks)
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


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_engine_that_fails_is_replaced(tmp_path: Path, replicas: int) -> None:
    home = make(replicas, engine_trouble=Trouble(tmp_path / "mark", 20))
    result, _ = drive(home, "sync")
    (fault,) = home.world.log.faults
    assert "on fire" in fault.cause
    assert made(result) == made(drive(make(replicas), "sync")[0])


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("policy", ["sync", "pipeline_rl"])
def test_a_sync_that_fails_on_one_replica_is_tried_again(
    tmp_path: Path, policy: str, replicas: int
) -> None:
    trouble = Trouble(tmp_path / "mark", kind="load")
    home = make(replicas, engine_trouble=trouble)
    result, entries = drive(home, policy)
    (fault,) = home.world.log.faults
    assert "loading weights" in fault.cause
    assert sum(bool(entry.synced) for entry in entries) == STEPS
    assert result.ledger.balance == 0


def test_an_engine_that_hangs_is_noticed(tmp_path: Path) -> None:
    trouble = Trouble(tmp_path / "mark", 10, kind="hang")
    home = make(2, engine_trouble=trouble, heartbeat_s=2.0)
    result, _ = drive(home, "sync")
    assert {fault.cause for fault in home.world.log.faults} == {"no sign of life for 2 s"}
    assert made(result) == made(drive(make(2), "sync")[0])


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


def test_an_update_that_the_trainer_refuses_ends_the_run(tmp_path: Path) -> None:
    home = make(1, trainer_trouble=Trouble(tmp_path / "mark", 2))
    with pytest.raises(RunError, match="the update of step 1 failed: RuntimeError: out of memory"):
        drive(home, "sync")


def test_an_engine_that_cannot_start_says_why() -> None:
    transport = ThreadTransport()
    fleet = Fleet(transport, [Recipe(_refuse)])
    transport.wait(fleet.polls, 10.0)
    with pytest.raises(EngineError, match="no room"):
        list(fleet.receive(fleet.polls))


def _refuse() -> Any:
    raise EngineError("no room")


def test_a_loop_goes_on_while_a_replica_starts_again() -> None:
    """With another replica alive, nothing waits for the lost one."""
    home = make(2, iteration_s=1e-3)
    record = RecordedWorld([], home.world, home.world.shape, "engine")
    loop = Loop(record, parse_policy("sync"), PLAN)
    home.transport.alive("replica 1")[0].kill()
    result = loop.run(2)
    home.world.close()
    assert result.ledger.balance == 0
    assert home.world.log.faults[0].actor == "replica 1"


def test_a_driver_that_was_busy_for_long_suspects_nobody() -> None:
    home = make(2, heartbeat_s=0.5)
    world = home.world
    for _ in range(3):
        time.sleep(0.8)
        world._receive(0.0)
    result, _ = drive(home, "sync", steps=1)
    assert result.ledger.balance == 0
    assert not world.log.faults


def test_a_trainer_that_hangs_is_noticed() -> None:
    """Whatever it is busy with, a trainer that lives answers."""
    home = make(1, heartbeat_s=1.0)
    (trainer,) = home.transport.alive("trainer")
    trainer.target.beat = lambda pause_s: time.sleep(3600)
    while not home.world.log.faults:
        home.world._receive(0.1)
    (fault,) = home.world.log.faults
    assert (fault.actor, fault.cause) == ("trainer", "no sign of life for 1 s")
    result, _ = drive(home, "fully_async", steps=3)
    assert result.ledger.balance == 0


@pytest.mark.parametrize("lost", [0, 1, 2])
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


def test_a_rank_that_hangs_is_noticed() -> None:
    home = make(1, heartbeat_s=1.0, ranks=2)
    (rank,) = home.transport.alive("trainer rank 1")
    rank.target.beat = lambda pause_s: time.sleep(3600)
    while not home.world.log.faults:
        home.world._receive(0.1)
    (fault,) = home.world.log.faults
    assert (fault.actor, fault.cause) == ("trainer", "no sign of life for 1 s")
    result, _ = drive(home, "sync", steps=2)
    assert result.ledger.balance == 0


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


def test_an_update_that_all_ranks_refuse_ends_the_run() -> None:
    home = make(1, ranks=2)

    def refuse(*_: Any, **__: Any) -> None:
        raise ValueError("a token is outside the vocabulary of 100")

    for rank in home.transport.alive("trainer rank"):
        rank.target._trainer.step = refuse
    with pytest.raises(RunError, match="the update of step 0 failed: ValueError: a token"):
        drive(home, "sync", steps=2)
    assert not home.world.log.faults
