"""The fast cluster and the plain reference must agree to the instant, whatever they are made to do.

Both implement the same rules apart from each other: the fast one jumps from event to event, the
reference computes every iteration. Times are compared as they are, not nearly.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape, Ended
from rollcast.simulator.testing.strategies import (
    Scenario,
    clusters,
    crowded,
    run_scenario,
    scenarios,
    with_turns,
)
from rollcast.simulator.testing.tables import TableCost, TableWorkload
from tests.commands import commands, pauses, submits
from tests.laws import examples
from tests.reference.cluster import ReferenceCluster
from tests.reference.driver import Abort, Command, Driver, Submit, Wait

thorough = settings(
    max_examples=examples(200),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def worlds(scenario: Scenario) -> tuple[SimulatedCluster, ReferenceCluster]:
    parts = (scenario.shape, scenario.engine, scenario.cost, scenario.workload, scenario.routing)
    environment = scenario.environment
    return SimulatedCluster(*parts, environment), ReferenceCluster(*parts, environment)


# Whole runs


def run_both(scenario: Scenario) -> tuple[Run, Run, ReferenceCluster]:
    fast, slow = worlds(scenario)
    return run_scenario(scenario, fast), run_scenario(scenario, slow), slow


def require_equal(fast: Run, slow: Run) -> None:
    assert fast.decisions == slow.decisions
    for column in fast.segments.columns:
        ours, theirs = fast.segments[column].tolist(), slow.segments[column].tolist()
        if column == "reward":
            ours, theirs = ([repr(value) for value in values] for values in (ours, theirs))
        assert ours == theirs, column
    assert [*fast.calls.rows()] == [*slow.calls.rows()]
    assert fast.phases == slow.phases
    assert (fast.start_s, fast.end_s, fast.ledger) == (slow.start_s, slow.end_s, slow.ledger)


@thorough
@given(scenarios())
def test_runs_agree(scenario: Scenario) -> None:
    fast, slow, _ = run_both(scenario)
    require_equal(fast, slow)


def scenario_of(
    plan: StepPlan,
    *,
    lengths: tuple[int, ...],
    prompts: tuple[int, ...] = (10,),
    replicas: int = 1,
    max_seqs: int = 4,
    max_batched_tokens: int = 8,
    kv_tokens: int = 4096,
    block_tokens: int = 4,
    caching: bool = True,
    colocated: bool = True,
    cost: TableCost | None = None,
    routing: str = "least_loaded",
    steps: int = 3,
) -> Scenario:
    cap = max(lengths)
    return Scenario(
        shape=ClusterShape(replicas, 1, 1, colocated),
        engine=EngineSpec(max_seqs, max_batched_tokens, kv_tokens, block_tokens, caching),
        cost=cost or TableCost(0.006, 2e-5, 2.2e-8, ((64, 1e-3, 1e-6),), 4e-6, sync_s=0.5),
        workload=TableWorkload(prompts, lengths, (0.0, 1.0, 1.0), cap),
        routing=routing,
        plans=(plan,),
        steps=steps,
    )


SYNCHRONOUS = StepPlan(batch=Batch(4, 3))


@pytest.mark.parametrize("caching", [True, False])
def test_a_full_pool_preempts_and_both_agree(caching: bool) -> None:
    lengths = (37, 5, 21, 40, 33)
    scenario = scenario_of(SYNCHRONOUS, lengths=lengths, kv_tokens=72, caching=caching)
    fast, slow, _ = run_both(scenario)
    require_equal(fast, slow)
    assert slow.ledger.preemptions > 10
    assert slow.segments["recomputed_tokens"].sum() > 0


def test_several_preemptions_in_one_pass_agree() -> None:
    """Twelve siblings hold one or two blocks each beside the shared prompt, and each wants one."""
    scenario = scenario_of(
        StepPlan(batch=Batch(1, 12)),
        lengths=(20, 11, 16),
        prompts=(9,),
        max_seqs=12,
        max_batched_tokens=64,
        kv_tokens=29,
        block_tokens=1,
    )
    fast, slow, cluster = run_both(scenario)
    require_equal(fast, slow)
    assert any(len(one.preempted) > 1 for one in cluster.passes)


def prefill_of(scenario: Scenario, *waves: tuple[tuple[int, int], ...]) -> dict[Any, int]:
    """Submits wave after wave, each when the one before has ended; prefilled tokens by rollout, on
    which both worlds must agree."""
    answers = []
    for world in worlds(scenario):
        prefilled: dict[Any, int] = {}
        for wave in waves:
            world.submit([Rollout(*key) for key in wave])
            while not prefilled.keys() >= set(wave):
                for event in world.wait():
                    assert isinstance(event, Ended)
                    prefilled[event.segment.key] = event.segment.prefill_tokens
        answers.append((prefilled, world.now_s))
    assert answers[0] == answers[1]
    return answers[1][0]


def test_of_those_that_finish_at_one_instant_the_first_admitted_is_forgotten_first() -> None:
    """Six blocks: groups 0 and 1 leave two cached ones each, and group 2 needs three."""
    scenario = scenario_of(
        SYNCHRONOUS, prompts=(8, 8, 12), lengths=(1,), kv_tokens=24, max_batched_tokens=64
    )
    prefilled = prefill_of(scenario, ((1, 0), (0, 0)), ((2, 0),), ((0, 1),), ((1, 1),))
    assert prefilled[0, 1] == 4, "a hit"
    prefilled = prefill_of(scenario, ((1, 0), (0, 0)), ((2, 0),), ((1, 1),), ((0, 1),))
    assert prefilled[1, 1] == 4, "a hit on the first of its blocks: it is the last to go"


def test_an_admission_evicts_before_the_next_one_looks() -> None:
    """Eight blocks: group 0 leaves two cached ones, then group 1 three. Group 2 takes five, and
    (0, 1) in the same pass finds nothing of its prompt."""
    scenario = scenario_of(
        SYNCHRONOUS, prompts=(8, 12, 20), lengths=(1,), kv_tokens=32, max_batched_tokens=64
    )
    prefilled = prefill_of(scenario, ((0, 0),), ((1, 0),), ((2, 0), (0, 1)))
    assert prefilled[0, 1] == 8


def test_groups_that_ask_the_same_share_their_prompt() -> None:
    scenario = scenario_of(SYNCHRONOUS, prompts=(9, 10), lengths=(3,), max_batched_tokens=64)
    answers = []
    for world in worlds(scenario):
        world.submit([Rollout(0, 0, prompt=2), Rollout(1, 0, prompt=2, visit=1), Rollout(4, 0)])
        segments = [event.segment for event in world.wait() if isinstance(event, Ended)]
        assert [segment.prefill_tokens for segment in segments] == [9, 1, 9]
        answers.append(segments)
    assert answers[0] == answers[1]


def test_siblings_that_are_resumed_share_what_their_responses_have_in_common() -> None:
    """Blocks of 4; a prompt of 6, and responses of which the first 11 tokens are the same. Stopped
    after 13 and resumed with new weights, the first one computes all 19 tokens and leaves, of the
    17 that are equal, 16 to each of the others."""
    scenario = scenario_of(SYNCHRONOUS, prompts=(6,), lengths=(20,), max_batched_tokens=64)
    workload = replace(scenario.workload, beginnings=("a" * 11, "a" * 11 + "b"))
    scenario = replace(scenario, workload=workload, cost=TableCost(1.0, sync_s=1.0))
    answers = []
    for world in worlds(scenario):
        rollouts = [Rollout(0, index) for index in range(3)]
        world.submit(rollouts)
        assert world.wait(12.5) == []
        for rollout, segment in zip(rollouts, world.abort(), strict=True):
            rollout.add(segment)
        world.sync_weights()
        world.wait()
        world.submit(rollouts)
        segments = [event.segment for event in world.wait() if isinstance(event, Ended)]
        assert [segment.prefill_tokens for segment in segments] == [19, 3, 3]
        answers.append(segments)
    assert answers[0] == answers[1]


def test_what_runs_leaves_what_it_decodes_to_a_sibling() -> None:
    """Blocks of 4, one prompt token and nine equal ones. Index 0 is stopped with all of these, and
    resumed with new weights once index 1 has two blocks of them."""
    scenario = scenario_of(SYNCHRONOUS, prompts=(1,), lengths=(14, 12), max_batched_tokens=64)
    workload = replace(scenario.workload, beginnings=("a" * 9,))
    scenario = replace(scenario, workload=workload, cost=TableCost(1.0))
    answers = []
    for world in worlds(scenario):
        stopped = Rollout(0, 0)
        world.submit([stopped])
        assert world.wait(8.5) == []
        stopped.add(world.abort()[0])
        assert stopped.new_tokens == 9
        world.sync_weights()
        world.wait()
        world.submit([Rollout(0, 1)])
        assert world.wait(world.now_s + 8.5) == []
        world.submit([stopped])
        events = [*world.wait(), *world.wait()]
        segments = {
            event.segment.key: event.segment for event in events if isinstance(event, Ended)
        }
        assert segments[0, 0].prefill_tokens == 1 + 9 - 8
        answers.append(segments)
    assert answers[0] == answers[1]


def test_an_abort_at_the_head_of_the_queue_lets_the_next_one_in() -> None:
    """Six blocks of 4: two rollouts decode on two each, (1, 0) needs three and (2, 0), behind it,
    one. Once (1, 0) has gone, (2, 0) is admitted at the next boundary, amid a possible jump."""
    scenario = scenario_of(
        SYNCHRONOUS,
        prompts=(4, 12, 1),
        lengths=(9,),
        kv_tokens=24,
        max_batched_tokens=64,
        caching=False,
        cost=TableCost(1.0),
    )
    answers = []
    for world in worlds(scenario):
        world.submit([Rollout(0, 0), Rollout(0, 1)])
        assert world.wait(1.5) == []
        large, small = Rollout(1, 0), Rollout(2, 0)
        world.submit([large, small])
        assert world.wait(2.5) == []
        [first] = world.abort([large.key])
        assert world.wait(3.5) == []
        [second] = world.abort([small.key])
        answers.append([first, second])
        assert (second.start_s, second.new_tokens) == (3.0, 1)
    assert answers[0] == answers[1]


def test_least_loaded_counts_those_about_to_leave() -> None:
    """(0, 0) leaves replica 0 with the iteration under way: until then both have one."""
    scenario = scenario_of(
        SYNCHRONOUS, lengths=(5,), replicas=2, max_batched_tokens=64, cost=TableCost(1.0)
    )
    for world in worlds(scenario):
        world.submit([Rollout(0, 0), Rollout(0, 1)])
        world.wait(0.5)
        world.abort([(0, 0)])
        world.submit([Rollout(1, index) for index in range(3)])
        places = {}
        while len(places) < 4:
            ended = [event.segment for event in world.wait() if isinstance(event, Ended)]
            places |= {segment.key: segment.replica for segment in ended}
        assert [places[1, index] for index in range(3)] == [0, 1, 0]


# Below the loop: the verbs in any order


def require_equal_answers(scenario: Scenario, orders: Sequence[Command]) -> None:
    fast, slow = worlds(scenario)
    ours, theirs = Driver(fast).obey(orders), Driver(slow).obey(orders)
    for one, other in zip(ours, theirs, strict=True):
        assert one == other


@thorough
@given(clusters(), submits, commands)
def test_any_order_of_verbs_agrees(
    scenario: Scenario, first: Submit, others: list[Command]
) -> None:
    require_equal_answers(scenario, [first, *others])


@thorough
@given(crowded(), submits, pauses)
def test_a_crowded_pool_agrees(scenario: Scenario, first: Submit, others: list[Command]) -> None:
    """Stopped and resumed in any order, without syncs, so that the cache is used and evicted."""
    require_equal_answers(scenario, [first, *others])


def test_one_that_has_left_is_placed_after_whatever_ends_at_that_instant() -> None:
    """Group 2 leaves replica 0 at the instant at which (0, 0) has left it."""
    cost = TableCost(0.006, per_prefill_context_token_s=0.001)
    scenario = replace(
        scenario_of(SYNCHRONOUS, lengths=(4, 4, 1, 4), prompts=(1,), replicas=4, max_seqs=3),
        shape=ClusterShape(4, 1, 1, colocated=False),
        engine=EngineSpec(3, 3, 5, 1, prefix_caching=False),
        cost=cost,
        routing="round_robin",
    )
    more = Submit(((0, 2),))
    again = Submit(((0, 2),), (0,), balanced=True)
    first = Submit(((0, 4), (2, 1)), balanced=True)
    require_equal_answers(scenario, [first, Abort(Wait(None), 1), more, more, again])


# Rollouts with turns


@settings(thorough, max_examples=examples(60))
@given(with_turns(scenarios()))
def test_runs_with_turns_agree(scenario: Scenario) -> None:
    fast, slow, _ = run_both(scenario)
    require_equal(fast, slow)


@thorough
@given(with_turns(clusters()), submits, commands)
def test_any_order_of_verbs_agrees_with_turns(
    scenario: Scenario, first: Submit, others: list[Command]
) -> None:
    require_equal_answers(scenario, [first, *others])


@thorough
@given(with_turns(crowded()), submits, pauses)
def test_a_crowded_pool_agrees_with_turns(
    scenario: Scenario, first: Submit, others: list[Command]
) -> None:
    require_equal_answers(scenario, [first, *others])
