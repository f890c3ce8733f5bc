"""The world of actors under the loop: the laws, and the record that answers as it did.

Engine and trainer are small and of no model (`actor_fakes`), in threads that run by themselves.
"""

from itertools import pairwise

import pytest
from running_actors import CAP, EVERY, PLAN, STEPS, drive, keeps_its_bound, made, make, rows

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Oracle, StepPlan
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.world import Synced, TrainBatch, Trained
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.loop.recorded import RecordedWorld, read_entry
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.running import run
from tests.scenarios import FREE

SECONDS = {"iteration_s": 5e-4, "per_rollout_s": 1e-5, "train_per_token_s": 1e-5}
COST = LinearCost(**{**FREE, **SECONDS})


def plan_of(policy: str) -> StepPlan:
    chain = parse_policy(policy, seed=5)
    return chain.plan(PLAN, chain.init())


@pytest.mark.parametrize("policy", EVERY)
def test_the_laws_hold_and_the_record_answers_as_the_world_did(policy: str) -> None:
    first = plan_of(policy)
    if first.dispatch.predictor == Oracle():
        pytest.skip("asks for lengths that only a simulator knows")
    home = make()
    record = RecordedWorld([], home.world, home.world.shape, "engine")
    chain = parse_policy(policy, seed=5)
    try:
        trial = try_on(
            Monitor(record, CAP), chain, batch_groups=4, group_size=4, prompts=10, steps=STEPS
        )
        assert home.world.quiet  # nothing is left in flight
    finally:
        home.world.close()
    result = trial.run
    assert len(result.steps) == STEPS
    conserves(trial)
    never_on_two_replicas(trial)
    keeps_its_bound(trial)
    assert set(result.segments["replica"].tolist()) == {0, 1}
    assert home.world.log.updates[-1][0] == STEPS - 1
    assert not home.world.log.faults

    again = run(RecordedWorld(record.entries, None, result.shape, "engine"), chain, PLAN, STEPS)
    assert rows(again) == rows(result)
    assert again.decisions == result.decisions


@pytest.mark.parametrize("policy", ["fully_async", "streaming"])
def test_training_overlaps_with_rollout(policy: str) -> None:
    result, _ = drive(make(iteration_s=6e-3), policy)  # so slow that a busy machine changes nothing
    updates = [p for p in result.phases if p.track == "trainer" and p.kind == "forward"]
    segments = [
        (s, e) for s, e in zip(result.segments["start_s"], result.segments["end_s"], strict=True)
    ]
    beside = sum(any(s < p.end_s and e > p.start_s for s, e in segments) for p in updates)
    assert beside >= len(updates) // 2
    if policy != "streaming":
        assert max(max(record.staleness) for record in result.steps) >= 1


def test_versions_are_told_apart_within_a_rollout() -> None:
    """Weights that come in flight: a response has tokens of several versions, in order."""
    result, entries = drive(make(1, iteration_s=2e-3), "pipeline_rl", steps=6)
    segments = [segment for entry in entries for segment in entry.segments]
    mixed = [segment for segment in segments if len(segment.tokens_by_version) > 1]
    assert mixed
    for segment in mixed:
        versions = [part.version for part in segment.tokens_by_version]
        assert versions == sorted(set(versions))
    assert result.ledger.balance == 0


def test_one_replica_and_a_synchronous_policy_need_no_record() -> None:
    """Where order does not matter, lengths and rewards alone give the same run."""
    result, _ = drive(make(1), "sync")
    spec = EngineSpec(8, 512, 65_536, 32, prefix_caching=True)
    world = SimulatedCluster(result.shape, spec, COST, RecordedWorkload(result.segments, CAP))
    again = run(world, parse_policy("sync"), PLAN, STEPS)
    assert again.decisions == result.decisions


def test_two_replicas_make_the_same_rollouts_as_one() -> None:
    results = []
    for replicas in (1, 2):
        results.append(drive(make(replicas), "sync")[0])
        assert set(results[-1].segments["replica"].tolist()) == set(range(replicas))
    assert made(results[0]) == made(results[1])


POLICIES = ["sync", "april(over_sampling=2)", "sagc(candidates=[2, 4, 8], first=4)+prefix_reuse"]


@pytest.mark.parametrize(
    ("policy", "replicas"), [(POLICIES[0], 1), (POLICIES[1], 3), (POLICIES[2], 2)]
)
def test_replicas_that_sleep_switch_before_each_update_and_each_sync(
    policy: str, replicas: int
) -> None:
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
    again = RecordedWorld(entries, None, home.world.shape, "engine")
    assert run(again, parse_policy(policy, seed=5), PLAN, STEPS).decisions == result.decisions
    if policy == "sync":  # the same rollouts as of replicas that stay awake
        awake, _ = drive(make(replicas, colocated=True), policy)
        assert made(result) == made(awake)
        assert not [p for p in awake.phases if p.kind == "switch"]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"verb": "sleep", "at_s": 0.0},
        {"verb": "wait"},
        {"verb": "wait", "at_s": "soon"},
        {"verb": "wait", "at_s": 0.0, "segments": [[1, 2]]},
        {"verb": "wait", "at_s": 0.0, "more": 1},
    ],
)
def test_what_is_no_entry_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="here"):
        read_entry(data, "here")


def test_the_pulse_is_taken_at_rest_and_else_while_weights_are_on_their_way() -> None:
    """Replicas that take weights in at the same time would make it longer."""

    def step(number: int) -> int:
        world._probe.next_s = 0.0
        world.take_pulse(number)
        before = len(world.log.pulses)
        world.train(TrainBatch(number, ()), "dense")
        done = 0
        while not done:
            done = sum(isinstance(event, Trained) for event in world.wait())
        world._probe.next_s = 0.0
        world.sync_weights()
        while not any(isinstance(event, Synced) for event in world.wait()):
            pass
        while world._updates._pulse is not None:
            world._receive(0.1)
        return len(world.log.pulses) - before

    home = make(2)
    world = home.world
    try:
        assert step(0) == 0
        assert [done for done, _ in world.log.pulses] == [0]
        world._probe.next_s = world.now_s + 1.0
        world.take_pulse(1)
        assert len(world.log.pulses) == 1  # too soon after the last one
        world.submit([Rollout(0, 0)])
        assert step(1) == 1
        assert [done for done, _ in world.log.pulses] == [0, 2]
        world.abort()
        assert step(2) == 0
        assert [done for done, _ in world.log.pulses] == [0, 2, 2]
    finally:
        world.close()
