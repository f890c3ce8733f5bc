"""Replicas and a trainer of processes of their own, simulated: by hand, and against none of it."""

from typing import Any

import pytest

from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import Ended, Event, Synced, TrainBatch, Trained
from rollcast.simulator.costs.actors import ActorCosts
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import Scenario, build_scenario
from rollcast.simulator.values import read
from tests.refusals import refuses
from tests.running import run
from tests.scenarios import FREE

ITERATION_S, UPDATE_S, SYNC_S = 0.1, 0.5, 0.2
WAYS = {"to_trainer_s": 0.01, "from_trainer_s": 0.02, "load_s": 0.05, "check_s": 0.1}


def scenario(
    policy: str = "sync",
    actors: dict[str, Any] | None = None,
    *,
    tokens: int = 10,
    replicas: int = 1,
    sd: float = 0.0,
    groups: int = 1,
    steps: int = 2,
    per_rollout_s: float = 0.0,
) -> Scenario:
    costs = {
        **FREE,
        "iteration_s": ITERATION_S,
        "train_fixed_s": UPDATE_S,
        "train_per_rollout_s": per_rollout_s,
        "sync_s": SYNC_S,
        "actors": actors,
    }
    lengths = {
        "family": "lognormal",
        "median_tokens": tokens - 0.5,
        "between_sd": sd,
        "within_sd": sd,
    }
    return build_scenario(
        RawScenario(
            {
                "cluster": {"placement": "disaggregated", "replicas": replicas, "trainer_gpus": 1},
                "engine": {"max_seqs": 8, "max_batched_tokens": 64, "kv_tokens": 8192},
                "workload": {
                    "batch_groups": groups,
                    "group_size": 1 if groups == 1 else 4,
                    "prompt_tokens": 1,
                    "max_new_tokens": 200,
                    "lengths": lengths,
                },
                "policy": policy,
                "cost": {"linear": costs},
                "steps": steps,
            }
        )
    )


def simulated(given: Scenario) -> Run:
    result = run(given.world(), given.policy, given.plan, given.steps)
    assert result.ledger.balance == 0
    return result


def until(world: SimulatedCluster, kind: type[Event]) -> Any:
    """Waits for the first event of this kind."""
    while True:
        for event in world.wait():
            if isinstance(event, kind):
                return event


def test_a_step_that_takes_turns_has_every_way_once() -> None:
    first, second = simulated(scenario("sync", WAYS)).steps
    assert first.rollout_s == pytest.approx(10 * ITERATION_S)
    assert (first.train_s, first.sync_s) == (pytest.approx(UPDATE_S), pytest.approx(SYNC_S))
    assert first.step_s == pytest.approx(1.0 + 0.01 + UPDATE_S + 0.02 + SYNC_S)
    assert second.step_s == pytest.approx(first.step_s)


def test_each_is_slower_while_the_other_works() -> None:
    """Beside each other from 1.0 s on. The update, at half its pace, is done at 2.0 s, with seven
    iterations of 0.15 s begun; the other three are as fast as ever, and end at 2.35 s."""
    actors = {"iteration_beside": 1.5, "update_beside": 2.0}
    result = simulated(scenario("one_step_off", actors))
    updates = [phase for phase in result.phases if phase.kind == "train"]
    assert [phase.start_s for phase in updates] == pytest.approx([1.0, 2.35 + SYNC_S])
    assert [phase.seconds for phase in updates] == pytest.approx([2 * UPDATE_S, UPDATE_S])
    assert result.steps[1].rollout_end_s == pytest.approx(2.35)


def test_an_update_goes_on_at_full_pace_once_the_replica_is_done() -> None:
    """The replica has two tokens to sample, 0.3 s at 1.5 times; in that time the update does 0.15 s
    of its work."""
    actors = {"iteration_beside": 1.5, "update_beside": 2.0}
    result = simulated(scenario("one_step_off", actors, tokens=2))
    update = next(phase for phase in result.phases if phase.kind == "train")
    assert update.seconds == pytest.approx(0.3 + (UPDATE_S - 0.15))


def test_weights_come_in_while_a_replica_runs() -> None:
    """They are sent at 0.53 s and there at 0.58; the replica takes them in from 0.6 to 0.65, and is
    compared with nothing, as it is not idle."""
    world = scenario("pipeline_rl", WAYS, tokens=30).world()
    world.submit([Rollout(0, 0)])
    world.train(TrainBatch(0, ()), "dense")
    trained = until(world, Trained)
    assert (trained.phases[0].start_s, trained.phases[0].end_s) == pytest.approx((0.01, 0.51))
    assert world.now_s == pytest.approx(0.53)
    world.sync_weights()
    [sync] = until(world, Synced).phases
    assert (sync.start_s, sync.end_s) == pytest.approx((0.53, 0.65))
    segment = until(world, Ended).segment
    assert segment.end_s == pytest.approx(30 * ITERATION_S + 0.05)
    assert [part.tokens for part in segment.tokens_by_version] == [6, 24]


def test_a_step_that_is_opened_beside_an_update_begins_once_the_run_is_saved() -> None:
    opened = simulated(scenario("one_step_off", {"open_s": 0.3})).steps
    plain = simulated(scenario("one_step_off", {})).steps
    assert opened[1].rollout_end_s == pytest.approx(plain[1].rollout_end_s + 0.3)
    assert opened[0].train_s == plain[0].train_s  # which has begun already
    turns = [simulated(scenario("sync", actors)).steps for actors in ({"open_s": 0.3}, {})]
    assert turns[0][-1].end_s == turns[1][-1].end_s


def test_what_waits_for_a_run_to_be_saved_can_be_stopped() -> None:
    world = scenario("one_step_off", {"open_s": 0.3}).world()
    world.train(TrainBatch(0, ()), "dense")
    world.submit([Rollout(0, 0), Rollout(1, 0)])
    [segment] = world.abort([(0, 0)])
    assert (segment.ending, segment.tokens_by_version) == ("aborted", ())
    assert until(world, Ended).segment.start_s == pytest.approx(0.3)


def test_parts_of_an_update_are_told_of_at_once() -> None:
    """Only new weights have to be packed and sent."""
    result = simulated(scenario("streaming", WAYS, groups=3, sd=0.4, steps=1, per_rollout_s=0.01))
    [sync] = [phase for phase in result.phases if phase.kind == "sync"]
    parts = [phase for phase in result.phases if phase.track == "trainer"]
    assert len({phase.start_s for phase in parts}) == len(parts)
    assert sync.start_s == pytest.approx(parts[-1].end_s + WAYS["from_trainer_s"])


@pytest.mark.parametrize("policy", ["sync", "one_step_off"])
def test_costs_of_nothing_change_nothing(policy: str) -> None:
    """But where weights are sent while a replica iterates, which then no longer waits for them."""
    plain, apart = (
        simulated(scenario(policy, actors, replicas=2, groups=4, sd=0.5, steps=6))
        for actors in (None, {})
    )
    assert repr([*plain.segments.rows()]) == repr([*apart.segments.rows()])
    assert plain.phases == apart.phases


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("to_trainer_s", -0.1),
        ("load_s", "soon"),
        ("open_s", -1),
        ("iteration_beside", 0.9),
        ("update_beside", 1e9),
        ("cores", 2),
    ],
)
def test_bad_figures_name_themselves(name: str, bad: object) -> None:
    with refuses(f"cost.linear.actors.{name}"):
        read(ActorCosts, {name: bad}, "cost.linear.actors")


def test_colocated_actors_take_turns_as_ever() -> None:
    given = scenario("sync", WAYS)
    data = {**given.raw.data, "cluster": {"placement": "colocated", "replicas": 1}}
    result = simulated(build_scenario(RawScenario(data)))
    assert result.steps[0].step_s == pytest.approx(1.0 + UPDATE_S + SYNC_S)
