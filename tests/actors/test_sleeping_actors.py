"""Replicas that share their devices with the trainer, and sleep while it works: the same rollouts,
a switch before each update and each sync, and faults at any of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from actor_fakes import Trouble
from running_actors import CAP, PLAN, STEPS, drive, make
from test_actor_faults import Killer, made, trained_on, watched, weight_of

from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on

POLICIES = ["sync", "april(over_sampling=2)", "sagc(candidates=[2, 4, 8], first=4)+prefix_reuse"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_there_is_a_switch_before_each_update_and_each_sync(policy: str, replicas: int) -> None:
    home = make(replicas, colocated=True, ranks=replicas, sleeps=True)
    result, entries = drive(home, policy)
    assert not home.world.log.faults
    assert result.ledger.balance == 0
    phases = sorted(result.phases, key=lambda phase: phase.start_s)
    kinds = [p.kind for p in phases if p.kind in ("switch", "forward", "sync")]
    assert kinds == ["switch", "forward", "switch", "sync"] * STEPS
    for one, other in pairwise(phases):
        assert one.end_s <= other.start_s + 1e-9
    for switch in (p for p in phases if p.kind == "switch"):
        assert switch.end_s - switch.start_s >= 2e-3  # what it takes at the least
        inside = (result.segments["start_s"] < switch.end_s) & (
            result.segments["end_s"] > switch.start_s + 1e-6
        )
        assert not inside.any()
    for arrival in home.world.log.arrivals:
        assert arrival.sent_s + 2e-3 <= arrival.start_s <= arrival.loaded_s
    # What the loop is told holds no more than before: the record answers for it.
    again = RecordedWorld(entries, None, home.world.shape, "engine")
    followed = Loop(again, parse_policy(policy, seed=5), PLAN).run(STEPS)
    assert followed.decisions == result.decisions


def test_the_same_rollouts_as_of_replicas_that_stay_awake() -> None:
    asleep, _ = drive(make(2, colocated=True, sleeps=True), "sync")
    awake, _ = drive(make(2, colocated=True), "sync")
    assert made(asleep) == made(awake)
    assert not [p for p in awake.phases if p.kind == "switch"]


@pytest.mark.parametrize(("kind", "said"), [("sleep", "in sleep"), ("wake", "in wake")])
@pytest.mark.parametrize("replicas", [1, 2])
def test_an_engine_that_cannot_sleep_or_wake_is_replaced(
    tmp_path: Path, kind: str, said: str, replicas: int
) -> None:
    trouble = Trouble(tmp_path / "mark", kind=kind)
    home = make(replicas, colocated=True, engine_trouble=trouble, sleeps=True)
    result, _ = drive(home, "sync")
    (fault,) = home.world.log.faults
    assert said in fault.cause
    assert made(result) == made(drive(make(replicas, colocated=True), "sync")[0])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("policy", POLICIES[:2])
def test_killed_at_random_moments_a_run_ends_right(policy: str, seed: int) -> None:
    home = make(2, colocated=True, iteration_s=2e-3, ranks=1 + seed % 2, sleeps=True)
    parts = watched(home.world)
    chain = parse_policy(policy, seed=5)
    try:
        with Killer(home, seed) as killer:
            record = RecordedWorld([], home.world, home.world.shape, "engine")
            monitor = Monitor(record, CAP)
            trial = try_on(monitor, chain, batch_groups=4, group_size=4, prompts=10, steps=STEPS)
        conserves(trial)
        never_on_two_replicas(trial)
        assert killer.killed
        assert weight_of(home) == trained_on(parts)
        assert len(home.world.log.updates) == STEPS
        if policy == "sync":
            assert made(trial.run) == made(drive(make(2), policy)[0])
    finally:
        home.world.close()
