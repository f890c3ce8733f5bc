"""Rollouts with turns: closed forms, ways to end, environments and judges, and what is booked."""

from dataclasses import replace
from typing import Any

import pytest

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import CALL_ENDS, ENDINGS, Ending
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.testing.listed import InTurns, ListedWorkload
from rollcast.simulator.testing.tables import TableCost, TableTurns, TableWorkload
from rollcast.simulator.workload.base import Workload
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec
from tests.running import run

ROOMY = EngineSpec(64, 4096, 1 << 20, 16)
FREE = TableCost(1e-6, phases=(("train", 0.0, 0.0),))  # iterations of a microsecond


def simulate(
    workload: Workload,
    *,
    environment: EnvironmentSpec = UNLIMITED,
    cost: TableCost = FREE,
    engine: EngineSpec = ROOMY,
    replicas: int = 1,
    routing: str = "session_affinity",
    batch: Batch | None = None,
    steps: int = 1,
    policy: str = "sync",
    failed: Any = "keep",
) -> Run:
    shape = ClusterShape(replicas, 1, 1, colocated=True)
    world = SimulatedCluster(shape, engine, cost, workload, routing, environment)
    plan = StepPlan(batch or Batch(4, 4), failed=failed)
    return run(world, parse_policy(policy), plan, steps)


def table(**turns: Any) -> TableWorkload:
    return TableWorkload((40,), (7, 12, 3), (0.0, 1.0), 12, turns=TableTurns(**turns))


# Closed forms


def test_an_environment_bound_run_takes_its_longest_trajectory() -> None:
    workload = table(counts=(5, 2, 9), seconds=(30.0, 100.0, 7.0), observations=(3,))
    found = simulate(workload)
    longest = max(
        sum(turn.environment_s for turn in trajectory.turns)
        for group in range(4)
        for trajectory in workload.draw(group, 4).trajectories or ()
    )
    assert found.makespan_s == pytest.approx(longest, rel=1e-5)


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_slots_over_the_mean_seconds_of_a_call_bound_throughput(slots: int) -> None:
    workload = InTurns(ListedWorkload(((40, 28, 16, 34),)), 4, 0, environment_s=10.0)
    found = simulate(workload, environment=EnvironmentSpec(slots=slots), batch=Batch(16, 4))
    calls = len(found.calls)
    assert found.makespan_s == pytest.approx(calls * 10.0 / slots, rel=0.1)
    assert found.makespan_s >= calls * 10.0 / slots
    assert summarise(found)["turns"]["environment"]["use"] == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("observed", [0, 48])
def test_with_cached_prefixes_turns_cost_what_one_rollout_does_and_the_observations(
    observed: int,
) -> None:
    """Blocks of one token, so that all is found again but a turn's last token; a prefilled token
    costs what a decoded one does, and every iteration takes one at a time."""
    engine = EngineSpec(1, 1, 4096, 1)
    cost = TableCost(1.0, phases=(("train", 0.0, 0.0),))
    whole = ListedWorkload(((30,),), prompt_tokens=(10,))
    turns = InTurns(whole, 6, observed, environment_s=0.0)
    one = simulate(whole, engine=engine, cost=cost, batch=Batch(1, 1))
    many = simulate(turns, engine=engine, cost=cost, batch=Batch(1, 1))
    assert many.makespan_s == one.makespan_s + 4 * observed
    assert many.ledger.reprefilled_tokens == 0


def test_without_prefix_caching_each_turn_prefills_its_whole_context() -> None:
    engine = replace(ROOMY, prefix_caching=False)
    workload = InTurns(ListedWorkload(((9,),), prompt_tokens=(10,)), 3, 5, environment_s=1.0)
    found = simulate(workload, engine=engine, batch=Batch(1, 1))
    assert found.ledger.prefill_tokens == 10 + (10 + 3 + 5) + (10 + 6 + 10)
    assert found.ledger.reprefilled_tokens == (18 - 6) + (26 - 6)


def test_affinity_finds_again_what_another_replica_does_not_have() -> None:
    workload = InTurns(ListedWorkload(((60, 44, 52, 36),), prompt_tokens=(64,)), 4, 16)
    runs = {
        routing: simulate(workload, replicas=4, routing=routing)
        for routing in ("session_affinity", "round_robin")
    }
    again = {routing: found.ledger.reprefilled_tokens for routing, found in runs.items()}
    assert again["session_affinity"] < 0.5 * again["round_robin"]


# Ways to end, and what is booked


def test_every_way_to_end_is_booked() -> None:
    endings: tuple[Ending, ...] = ("stop", "turns", "context", "timeout", "environment")
    found = simulate(table(counts=(3,), seconds=(2.0,), endings=endings), batch=Batch(8, 5))
    segments = found.segments
    done = segments["finished"] == 1
    booked = {ENDINGS[number] for number in segments["ending"][done].tolist()}
    assert booked == set(endings)
    assert found.ledger.balance == 0
    cut = {ENDINGS[n] for n in segments["ending"][done & (segments["truncated"] == 1)].tolist()}
    assert cut == {"turns", "context"}
    calls = {CALL_ENDS[number] for number in found.calls["ended"].tolist()}
    assert calls == {"answered", "timeout", "failed"}


def test_a_rollout_whose_environment_fails_is_started_again_where_it_is_to_be() -> None:
    workload = table(counts=(2,), seconds=(1.0,), endings=("stop", "environment", "timeout"))
    kept = simulate(workload)
    again = simulate(workload, failed="restart")
    assert (kept.segments["attempt"] == 0).all()
    failed = {ENDINGS.index("environment"), ENDINGS.index("timeout")}
    dropped = again.segments["new_tokens"][again.segments["outcome"] == 2].sum()
    assert dropped == again.ledger.dropped_tokens > 0
    trained = again.segments["outcome"] == 1
    assert not failed & set(again.segments["ending"][trained].tolist())
    assert again.steps[0].trained_rollouts == 16


def test_the_trainer_computes_what_was_observed_and_trains_on_what_was_sampled() -> None:
    cost = TableCost(1e-3, phases=(("train", 0.0, 1.0),))
    workload = InTurns(ListedWorkload(((9, 9),), prompt_tokens=(10,)), 3, 5)
    found = simulate(workload, cost=cost, batch=Batch(1, 2))
    [update] = [phase for phase in found.phases if phase.kind == "train"]
    assert update.tokens == 2 * (10 + 9 + 2 * 5)
    assert found.ledger.trained_tokens == 2 * 9


def test_judges_take_their_time_and_have_their_slots() -> None:
    workload = InTurns(ListedWorkload(((5, 6, 7, 8),)), 100, judged_s=10.0)
    found = simulate(workload, environment=EnvironmentSpec(reward_slots=4), batch=Batch(4, 4))
    assert found.makespan_s == pytest.approx(4 * 10.0, rel=1e-4)
    figures = summarise(found)["turns"]
    assert figures["reward"] == {
        "calls": 16,
        "timeout": 0,
        "failed": 0,
        "closed": 0,
        "busy_slots_mean": pytest.approx(4.0, rel=1e-4),
        "use": pytest.approx(1.0, rel=1e-4),
    }
    assert figures["turns_mean"] == 1.0


def test_gpus_that_wait_for_environments_are_idle_for_a_cause_of_their_own() -> None:
    workload = InTurns(ListedWorkload(((8,),)), 4, environment_s=50.0)
    summary = summarise(simulate(workload, cost=TableCost(1.0, phases=(("train", 8.0, 0.0),))))
    causes = summary["bubble_by_cause"]
    assert causes["environment"] * summary["makespan_s"] == pytest.approx(50.0)
    assert summary["bubble_fraction"] == pytest.approx(causes["environment"])
    split = summary["turns"]
    assert (split["environment_s"], split["environment_queue_s"]) == (50.0, 0.0)


def test_a_run_without_turns_says_nothing_of_them() -> None:
    summary = summarise(simulate(ListedWorkload(((8, 3),))))
    assert "turns" not in summary
    assert "environment" not in summary["bubble_by_cause"]


# Held, kept and closed


def test_a_slot_held_for_the_whole_rollout_bounds_how_many_are_under_way() -> None:
    cost = TableCost(1.0, phases=(("train", 0.0, 0.0),))
    workload = InTurns(ListedWorkload(((12,),)), 4, environment_s=3.0)
    spec = EnvironmentSpec(slots=2, held="rollout")
    found = simulate(workload, environment=spec, cost=cost, batch=Batch(2, 4))
    segments = found.segments
    key = segments["group"] * 4 + segments["index"]
    begun = [float(segments["start_s"][key == each].min()) for each in range(8)]
    done = [float(segments["end_s"][key == each].max()) for each in range(8)]
    for instant in begun:
        under_way = [a <= instant < b for a, b in zip(begun, done, strict=True)]
        assert sum(under_way) <= 2
    assert found.makespan_s == 4 * (12 + 2 * 3)


def test_a_turn_budget_puts_rollouts_off_to_the_next_step() -> None:
    workload = InTurns(ListedWorkload(((40, 8, 24, 16),)), 4)
    policy = "token_budget(tokens=1000, turns=2, over_sampling=4)"
    found = simulate(workload, policy=policy, batch=Batch(2, 4), steps=4)
    budget = ENDINGS.index("budget")
    assert (found.segments["ending"] == budget).any()
    had: dict[tuple[int, int], int] = {}
    columns = (found.segments[name].tolist() for name in ("group", "index", "ending", "finished"))
    for group, index, ending, finished in zip(*columns, strict=True):
        had[group, index] = had.get((group, index), 0) + 1
        assert had[group, index] <= 2
        if ending == budget or finished:
            had[group, index] = 0
