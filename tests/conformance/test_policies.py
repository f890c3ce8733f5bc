"""Every policy, and chains of them, in the simulated worlds: the same laws. The real engine is held
to them in `tests.engine.test_same_decisions`."""

import re

import pytest

from rollcast.simulator.core.plan import Batch, Prompts, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import Run
from rollcast.simulator.policies import POLICIES, parse_policy
from rollcast.simulator.testing import Monitor, conserves, never_on_two_replicas, try_on
from tests.conformance.arenas import OVERLAPPING, SIMULATED, Build

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


EVERY = [*REGISTRY.values(), *CHAINS]


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("kind", [SIMULATED, OVERLAPPING])
def test_the_laws_hold(build: Build, kind: str, policy: str) -> None:
    chain = parse_policy(policy, seed=5)
    if chain.plan(PLAN, chain.init()).overlaps and kind != OVERLAPPING:
        pytest.skip("trains while it samples, which needs GPUs apart")
    keeps_the_laws(build(kind).monitor(), policy, chain)


def plan_for(policy: str) -> StepPlan:
    return AGAIN if AGAIN_FOR & set(re.findall(r"\w+", policy)) else PLAN


def keeps_the_laws(monitor: Monitor, policy: str, chain: Policy) -> Run:
    first = chain.plan(PLAN, chain.init())
    size = {"batch_groups": PLAN.batch.groups, "group_size": PLAN.batch.group_size}
    prompts = plan_for(policy).prompts.dataset
    trial = try_on(monitor, chain, **size, prompts=prompts, steps=STEPS)
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
    return result


def check_books(result: Run) -> None:
    """The work of the engine, beside the tokens that it sampled (`conserves`)."""
    ledger = result.ledger
    assert ledger.trained_tokens > 0
    assert sum(record.generated_tokens for record in result.steps) == ledger.generated_tokens
    assert result.segments["prefill_tokens"].sum() == ledger.prefill_tokens
    assert result.segments["preemptions"].sum() == ledger.preemptions
    again = result.segments["resumed"].astype(bool)
    assert ledger.reprefilled_tokens >= result.segments["prefill_tokens"][again].sum()
