"""Every policy, and chains of them, in every world: the same laws."""

from __future__ import annotations

import re

import pytest

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.loop import run
from rollcast.simulator.plan import Batch, Prompts, StepPlan
from rollcast.simulator.policies import POLICIES, parse_policy
from rollcast.simulator.policy import Policy
from rollcast.simulator.spans import Run
from rollcast.simulator.testing import conserves, never_on_two_replicas, try_on
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.world import ClusterShape
from tests.conformance.arenas import (
    BLOCK,
    BUDGET,
    COST,
    ENGINE,
    MAX_SEQS,
    NEEDS_VLLM,
    OVERLAPPING,
    SIMULATED,
    Build,
)

STEPS = 4
PLAN = StepPlan(Batch(4, 4))
AGAIN = StepPlan(Batch(4, 4), prompts=Prompts(dataset=10))
"""The prompts come again, as some policies need."""
AGAIN_FOR = {"difficulty", "history", "rhyme_rl"}
PARAMETERS = {
    "april": "april(over_sampling=2)",
    "difficulty": "difficulty(easy=0.6, hard=0.3)",
    "pods": "pods(keep=2)",
    "sagc": "sagc(candidates=[2, 4, 8], first=4)",
    "token_budget": "token_budget(tokens=12)",
}
REGISTRY = {kind: PARAMETERS.get(name, name) for name, kind in [*POLICIES.items()][::-1]}
CHAINS = [
    "sync",
    "april(over_sampling=1.5, surplus=drop, mask_off_policy=true)",
    "april(over_sampling=2)+dynamic_sampling",
    "partial_rollout+pods(keep=2)+prefix_reuse",
    "fully_async(max_staleness=1, in_flight=2)+dynamic_sampling+pods(keep=2)",
    "sagc(candidates=[2, 4, 8], first=4)+tail_batching",
    "april(over_sampling=2)+sagc(candidates=[2, 4, 8], first=4)+pods(keep=2)+prefix_reuse",
    "april(over_sampling=2)+longest_first(predictor=history)",
    "seer(window=0.5)+difficulty(easy=0.6)",
    "sorted_rl(mode=partial)+dynamic_sampling",
    "sagc(candidates=[2, 4, 8], first=4)+sorted_rl(load=2.5)",
    "token_budget(tokens=12, mask_off_policy=true)+dynamic_sampling+pods(keep=2)",
    "colocate_async(max_staleness=1, exceeded=wait)+prefix_reuse",
    "colocate_async(max_staleness=0)+dynamic_sampling",
    "one_step_off(steps=3)+seer",
    "pipeline_rl(in_flight=0.5, queue=null)+dynamic_sampling+pods(keep=2)",
    "fully_async(max_staleness=1.5)",
    "fully_async(max_staleness=1, in_flight=3, exceeded=drop)",
    "fully_async(max_staleness=1, in_flight=3, exceeded=restart)",
    "fully_async(max_staleness=1, in_flight=3, exceeded=capacity)",
    "fully_async(max_staleness=3, sync_every=2)",
    "streaming(groups=3)+april(over_sampling=2)+prefix_reuse",
]


ON_THE_ENGINE = {
    "sync",
    "april(over_sampling=2)",
    "partial_rollout+pods(keep=2)+prefix_reuse",
    "seer(window=0.5)+difficulty(easy=0.6)",
    "sagc(candidates=[2, 4, 8], first=4)+tail_batching",
    "sagc(candidates=[2, 4, 8], first=4)+sorted_rl(load=2.5)",
    "token_budget(tokens=12, mask_off_policy=true)+dynamic_sampling+pods(keep=2)",
    "colocate_async(max_staleness=1, exceeded=wait)+prefix_reuse",
}
"""Each way in which a policy asks something of a replica, once: an engine takes seconds for it."""
EVERYWHERE = [*REGISTRY.values(), *CHAINS]


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        pytest.param(ENGINE, policy, marks=NEEDS_VLLM) if kind == ENGINE else (kind, policy)
        for kind in (SIMULATED, OVERLAPPING, ENGINE)
        for policy in EVERYWHERE
        if kind != ENGINE or policy in ON_THE_ENGINE
    ],
)
def test_the_laws_hold(build: Build, kind: str, policy: str) -> None:
    chain = parse_policy(policy, seed=5)
    first = chain.plan(PLAN, chain.init())
    if first.overlaps and kind != OVERLAPPING:
        pytest.skip("trains while it samples, which needs GPUs apart")
    plan = AGAIN if AGAIN_FOR & set(re.findall(r"\w+", policy)) else PLAN
    monitor = build(kind).monitor()
    size = {"batch_groups": PLAN.batch.groups, "group_size": PLAN.batch.group_size}
    trial = try_on(monitor, chain, **size, prompts=plan.prompts.dataset, steps=STEPS)
    result = trial.run
    assert monitor.idle
    assert monitor.submitted.total() == monitor.ended == len(result.segments)
    assert STEPS == len(result.steps) == len(result.decisions)
    assert monitor.version == STEPS // first.sync_every * first.sync_every
    conserves(trial)
    never_on_two_replicas(trial)
    check_books(result)
    if first.unfinished == "resume" and first.interrupt != "never":
        assert monitor.aborted > 0 or first.budget_tokens
        assert monitor.resumed > 0 or first.staleness.max_versions == 0
    if kind == ENGINE:
        check_replay(result, chain, plan)


def check_books(result: Run) -> None:
    """The work of the engine, beside the tokens that it sampled (`conserves`)."""
    ledger = result.ledger
    assert ledger.trained_tokens > 0
    assert sum(record.generated_tokens for record in result.steps) == ledger.generated_tokens
    assert result.segments["prefill_tokens"].sum() == ledger.prefill_tokens
    assert result.segments["preemptions"].sum() == ledger.preemptions
    again = result.segments["resumed"].astype(bool)
    assert ledger.reprefilled_tokens >= result.segments["prefill_tokens"][again].sum()


def check_replay(result: Run, policy: Policy, plan: StepPlan) -> None:
    """The simulator, given a real run's lengths and rewards, does what the engine did."""
    longest = max(result.segments["total_tokens"].tolist())
    spec = EngineSpec(MAX_SEQS, BUDGET, 4096, BLOCK, prefix_caching=True)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, spec, COST, RecordedWorkload(result.segments, longest + 1))
    again = run(world, policy, plan, STEPS)
    assert again.decisions == result.decisions
    for column in ("step", "group", "index", "attempt", "new_tokens", "outcome", "trained_step"):
        assert again.segments[column].tolist() == result.segments[column].tolist(), column
    # Exact but for the last token of a prefill: left over alone, the simulator decodes it.
    odd = result.segments["prefill_tokens"] - again.segments["prefill_tokens"]
    assert set(odd.tolist()) <= {0, 1}
    assert odd.mean() < 0.05
    for name in ("generated", "trained", "masked", "dropped", "carried"):
        key = f"{name}_tokens"
        assert getattr(again.ledger, key) == getattr(result.ledger, key), key
    assert again.ledger.preemptions == result.ledger.preemptions == 0
