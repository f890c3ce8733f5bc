"""The reference itself, against arithmetic done by hand: who guards the guard."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.core.rollout import Rollout, Segment
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
    TrainGroup,
)
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.errors import RunError
from rollcast.simulator.testing.strategies import Scenario, run_scenario, scenarios
from rollcast.simulator.testing.tables import TableCost, TableWorkload
from tests.laws import examples
from tests.reference.cluster import ReferenceCluster


def cluster(
    lengths: tuple[int, ...],
    prompts: tuple[int, ...] = (8,),
    *,
    cost: TableCost | None = None,
    replicas: int = 1,
    colocated: bool = True,
    routing: str = "least_loaded",
    max_seqs: int = 8,
    budget: int = 64,
    blocks: int = 100,
    caching: bool = True,
) -> ReferenceCluster:
    """Blocks of 4 tokens, iterations of 1 s. Of two lengths, (0, 0) gets the first and (0, 1) and
    (1, 0) the second; of two prompts, even groups get the first."""
    return ReferenceCluster(
        ClusterShape(replicas, 1, 1, colocated),
        EngineSpec(max_seqs, budget, 4 * blocks, 4, caching),
        cost or TableCost(1.0),
        TableWorkload(prompts, lengths, (0.0,), 60),
        routing,
    )


def launch(world: ReferenceCluster, *keys: tuple[int, int]) -> list[Rollout]:
    rollouts = [Rollout(*key) for key in keys]
    world.submit(rollouts)
    return rollouts


def finish(world: ReferenceCluster) -> dict[tuple[int, int], Segment]:
    """The segments of everything in flight, by key, once it has finished."""
    done = {}
    while world.in_flight:
        for event in world.wait():
            assert isinstance(event, Ended)
            done[event.segment.key] = event.segment
    return done


def finished_keys(events: list[Event]) -> list[tuple[int, int]]:
    return [event.segment.key for event in events if isinstance(event, Ended)]


def works(world: ReferenceCluster) -> list[Iteration]:
    return [one.work for one in world.passes]


def test_the_last_token_of_a_prompt_is_prefilled_where_its_chunks_leave_one() -> None:
    cost = TableCost(1.0, per_prefill_token_s=1.0)
    world = cluster((1,), (9,), budget=4, max_seqs=4, caching=False, cost=cost)
    launch(world, (0, 0))
    done = finish(world)[0, 0]
    assert works(world)[2] == Iteration(1, 9, 1, 9, 1, 9)
    assert (done.prefill_tokens, done.end_s) == (9, 5.0 + 5.0 + 2.0)


def test_a_sibling_hits_the_prompt_in_the_same_pass() -> None:
    world = cluster((2,), (9,))
    launch(world, (0, 0), (0, 1))
    finish(world)
    first = world.passes[0]
    assert first.scheduled == (((0, 0), 9), ((0, 1), 1))
    assert first.work == Iteration(2, 18, 10, 45 + 9, 2, 18)
    assert first.free_blocks == 100 - 3 - 1  # two blocks shared, one private block each


def test_a_hit_leaves_one_token_to_compute() -> None:
    world = cluster((2,), (8,))
    launch(world, (0, 0), (0, 1))
    done = finish(world)
    assert world.passes[0].scheduled == (((0, 0), 8), ((0, 1), 4))
    assert world.passes[0].free_blocks == 100 - 2 - 1  # the second block is computed twice
    assert done[0, 1].prefill_tokens == 4


def test_without_caching_nothing_is_shared() -> None:
    world = cluster((2,), (9,), caching=False)
    launch(world, (0, 0), (0, 1))
    finish(world)
    assert world.passes[0].scheduled == (((0, 0), 9), ((0, 1), 9))
    assert world.passes[0].free_blocks == 100 - 3 - 3


def test_the_last_one_is_preempted_and_computes_its_tokens_again() -> None:
    """Four blocks of four: two rollouts of 6 + 4 need three each at the end. After the first pass
    (6 tokens each) both hold two; their third block is due with token 9, in the fourth pass."""
    world = cluster((4,), (6,), blocks=4, caching=False)
    launch(world, (0, 0), (0, 1))
    done = finish(world)
    assert [one.preempted for one in world.passes] == [(), (), (), ((0, 1),), ()]
    assert [dict(one.scheduled) for one in world.passes[2:]] == [
        {(0, 0): 1, (0, 1): 1},
        {(0, 0): 1},  # its fourth token
        {(0, 1): 9},  # 6 prompt tokens and the three it had sampled
    ]
    assert done[0, 0].end_s == 4.0
    assert done[0, 1].end_s == 5.0
    assert (done[0, 1].prefill_tokens, done[0, 1].recomputed_tokens) == (6 + 9, 9)
    assert (done[0, 1].preemptions, done[0, 0].preemptions) == (1, 0)


def test_no_overtaking_where_the_first_in_line_does_not_fit() -> None:
    world = cluster((9,), (9, 1), blocks=5, caching=False)
    launch(world, (0, 0), (2, 0), (1, 0))  # prompts 9, 9 and 1: 3 + 3 + 1 blocks of 5
    world.wait(0.5)
    assert world.passes[0].scheduled == (((0, 0), 9),)
    assert [segment.rollout.key for segment in world.replicas[0].waiting] == [(2, 0), (1, 0)]


def cached_blocks(world: ReferenceCluster) -> list[int]:
    """Of each group in order: free blocks that are cached."""
    blocks = [block.tokens for block in world.replicas[0].free if block.tokens is not None]
    groups = sorted(tokens[0][0] for tokens in blocks)  # type: ignore[index]
    return [groups.count(group) for group in sorted(set(groups))]


def test_blocks_without_contents_go_first_then_what_was_freed_first_from_its_end() -> None:
    """Prompts of 8 leave two blocks each in the cache; of six, one of 9 tokens takes three."""
    world = cluster((1,), (8, 9), blocks=6)
    for group in (0, 2):
        launch(world, (group, 0))
        finish(world)
    assert cached_blocks(world) == [2, 2]
    launch(world, (1, 0))  # the two without contents, and group 0's second block
    world.wait(2.5)
    assert cached_blocks(world) == [1, 2]
    finish(world)
    launch(world, (0, 1))  # a hit on what is left
    assert finish(world)[0, 1].prefill_tokens == 4
    launch(world, (2, 1))
    assert finish(world)[2, 1].prefill_tokens == 4


def test_a_free_hit_is_no_room() -> None:
    """Five blocks: group 1 runs with 3 (9 tokens) and the other two are group 0's, free. Its next
    rollout hits one of them and needs one more: both are there. One of 12 tokens needs three."""
    world = cluster((1, 4), (8, 9), blocks=5)
    launch(world, (0, 0))
    finish(world)
    launch(world, (1, 0))
    world.wait(1.5)
    launch(world, (0, 2))
    done = finish(world)
    assert (done[0, 2].start_s, done[0, 2].prefill_tokens) == (2.0, 4)
    world = cluster((1, 4), (12, 9), blocks=5)
    launch(world, (0, 0))
    finish(world)
    launch(world, (1, 0))  # takes group 0's last block beside the two without contents
    world.wait(1.5)
    launch(world, (0, 2))  # hits two, and there is no third
    done = finish(world)
    assert done[0, 2].start_s == done[1, 0].end_s == 5.0


def test_one_that_was_preempted_finds_what_is_left_of_its_blocks() -> None:
    """Five blocks for 8 + 6 tokens twice, of which only the first is shared: the sixth pass wants
    one more for each. Index 1 gives back two, of which index 0 takes the last; so of 13 tokens
    eight are found."""
    world = cluster((6,), (8,), blocks=5)
    launch(world, (0, 0), (0, 1))
    done = finish(world)
    assert world.passes[4].free_blocks == 0
    assert [(dict(one.scheduled), one.preempted) for one in world.passes[5:]] == [
        ({(0, 0): 1}, ((0, 1),)),
        ({(0, 1): 5}, ()),
    ]
    assert (done[0, 1].preemptions, done[0, 1].recomputed_tokens) == (1, 5)


def test_a_rollout_that_was_stopped_finds_its_own_blocks() -> None:
    world = cluster((12,), (6,))
    (rollout,) = launch(world, (0, 0))
    world.wait(5.0)
    rollout.add(world.abort()[0])
    assert rollout.new_tokens == 5  # 11 tokens, of which 10 are computed: two full blocks
    world.submit([rollout])
    assert finish(world)[0, 0].prefill_tokens == 11 - 8


def test_a_sync_empties_the_cache_and_a_resumed_rollout_prefills_its_tokens() -> None:
    cost = TableCost(1.0, sync_s=2.0, switch_to_rollout_s=0.5)
    world = cluster((5,), (8,), cost=cost)
    (rollout,) = launch(world, (0, 0))
    assert world.wait(2.0) == []
    [segment] = world.abort()
    assert (segment.new_tokens, segment.end_s, segment.finished) == (2, 2.0, False)
    assert segment.reward is None
    rollout.add(segment)
    world.sync_weights()
    phases = (Phase("sync", 2.0, 4.0), Phase("switch", 4.0, 4.5))
    assert world.wait() == [Synced(phases)]
    assert cached_blocks(world) == []
    world.submit([rollout])
    segment = finish(world)[0, 0]
    assert (segment.prefill_tokens, segment.start_s, segment.end_s) == (8 + 2, 4.5, 7.5)
    assert (segment.new_tokens, segment.recomputed_tokens) == (3, 0)


@pytest.mark.parametrize(("abort_s", "tokens", "end_s"), [(1.5, 2, 2.0), (2.0, 2, 2.0)])
def test_an_abort_takes_effect_at_a_boundary(abort_s: float, tokens: int, end_s: float) -> None:
    world = cluster((5,))
    launch(world, (0, 0))
    world.wait(abort_s)
    (rollout,) = world.abort()
    assert (rollout.new_tokens, rollout.end_s) == (tokens, end_s)
    assert world.abort() == []


def test_an_abort_in_the_last_iteration_finds_it_finished() -> None:
    world = cluster((2,))
    rollout, other = launch(world, (0, 0), (0, 1))
    world.wait(1.5)
    [segment] = world.abort([rollout.key])
    assert (segment.key, segment.finished, segment.new_tokens, segment.end_s) == (
        rollout.key,
        True,
        2,
        2.0,
    )
    assert finished_keys(world.wait()) == [other.key]
    with pytest.raises(RunError):
        world.wait()


def test_one_that_waits_leaves_at_once() -> None:
    world = cluster((5,), max_seqs=1)
    _, second = launch(world, (0, 0), (0, 1))
    world.wait(1.5)
    [segment] = world.abort([second.key])
    assert (segment.start_s, segment.end_s, segment.new_tokens, segment.replica) == (1.5, 1.5, 0, 0)


def test_routing() -> None:
    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (0, 2)]

    def places(routing: str) -> list[int]:
        world = cluster((5,), routing=routing, replicas=3)
        launch(world, *keys)
        return [world.in_flight[key].replica for key in keys]

    assert places("round_robin") == [0, 1, 2, 0, 1, 2]
    assert places("least_loaded") == [0, 1, 2, 0, 1, 2]
    assert places("group_affinity") == [0, 0, 1, 1, 2, 0]


def test_least_loaded_counts_those_about_to_leave() -> None:
    world = cluster((5,), replicas=2)
    first, _ = launch(world, (0, 0), (0, 1))
    world.wait(0.5)
    world.abort([first.key])
    launch(world, (1, 0), (1, 1), (1, 2))
    assert [world.in_flight[1, i].replica for i in range(3)] == [0, 1, 0]  # a tie, at one each


def test_an_update_on_shared_gpus_waits_for_the_replicas() -> None:
    phases = (("log_prob", 0.0, 0.0), ("train", 1.0, 0.25))
    cost = TableCost(1.0, phases=phases, switch_to_train_s=0.5)
    world = cluster((1, 9), (8,), cost=cost)
    short, _ = launch(world, (0, 0), (0, 1))
    [ended] = world.wait()
    assert isinstance(ended, Ended)
    short.add(ended.segment)
    world.wait(1.5)
    world.abort()
    world.train(TrainBatch(7, (TrainGroup(0, (short,), ()),)), "dense")
    train_s = 1.0 + 0.25 * 9
    spans = (Phase("switch", 2.0, 2.5), Phase("train", 2.5, 2.5 + train_s, 9))
    assert world.wait() == [Trained(7, spans)]


@given(scenarios())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_replicas_do_one_thing_at_a_time(scenario: Scenario) -> None:
    """Iterations of a replica do not overlap, and on shared GPUs no update overlaps any."""
    world = ReferenceCluster(
        scenario.shape, scenario.engine, scenario.cost, scenario.workload, scenario.routing
    )
    result = run_scenario(scenario, world)
    for replica in world.replicas:
        for before, after in zip(replica.passes, replica.passes[1:], strict=False):
            assert before.end <= after.start
    updates = [p for p in result.phases if p.kind not in ("rollout", "sync", "switch")]
    if scenario.shape.colocated:
        for one in world.passes:
            for update in updates:
                start_s, end_s = one.start / 2**80, one.end / 2**80
                assert end_s <= update.start_s or update.end_s <= start_s
    sampled = sum(result.segments["new_tokens"])
    assert sampled == result.ledger.generated_tokens
    finished = result.segments["finished"] == 1
    assert (result.segments["total_tokens"][finished] >= 1).all()
