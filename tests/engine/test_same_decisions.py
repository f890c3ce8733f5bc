"""The same policy objects on real engines and on the simulated cluster take the same decisions.

A tiny model is sampled and trained for real, under the laws that hold in every world; then its
lengths and rewards are replayed in the simulator. The two decision logs, and what every rollout's
segments made, must be identical: that holds the loop, the policies and the replica's scheduler
against the real thing at once.
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Oracle
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.conformance.arenas import BLOCK, BUDGET, COST, KV_TOKENS, MAX_SEQS, real
from tests.conformance.test_policies import CHAINS, PLAN, REGISTRY, STEPS, keeps_the_laws, plan_for
from tests.running import run

CAP = 20


def is_for_one_engine(policy: str) -> bool:
    """Whether it needs neither GPUs apart nor lengths that only a simulator knows."""
    chain = parse_policy(policy, seed=5)
    first = chain.plan(PLAN, chain.init())
    return not first.overlaps and first.dispatch.predictor != Oracle()


COMBINED = [
    *filter(is_for_one_engine, CHAINS),
    "april(over_sampling=2)+longest_first(predictor=probe)",
]


def is_part(policy: str) -> bool:
    """Whether one of the chains holds it."""
    name = policy.partition("(")[0]
    return any(name in re.split(r"\W+", chain) for chain in COMBINED)


POLICIES = [
    *COMBINED,
    *filter(is_for_one_engine, (name for name in REGISTRY.values() if not is_part(name))),
]


WITNESS = ("seer", "pods(keep=2)+prefix_reuse")
"""Parts of the chains that transformers' engine is held to as well."""

CASES = [("vllm", policy) for policy in POLICIES] + [
    ("transformers", policy)
    for policy in COMBINED
    if policy == "sync" or any(part in policy for part in WITNESS)
]


@pytest.fixture(scope="module")
def started(request: pytest.FixtureRequest, flat_path: Path) -> Callable[[str], Any]:
    """A replica of each engine."""
    sizes = {"max_seqs": MAX_SEQS, "max_batched_tokens": BUDGET, "kv_tokens": KV_TOKENS}

    @cache
    def start(engine: str) -> Any:
        if engine == "vllm":
            return request.getfixturevalue("make_replica")(flat_path, **sizes)
        from rollcast.engine.hf.replica import HfReplica
        from rollcast.engine.hf.start import HfOptions

        return HfReplica(flat_path, HfOptions(**sizes))

    return start


@pytest.mark.parametrize(("engine", "policy"), CASES)
def test_real_and_simulated_decisions_are_identical(
    started: Callable[[str], Any], engine: str, policy: str
) -> None:
    shared_replica = started(engine)
    chain = parse_policy(policy, seed=5)
    result = keeps_the_laws(real(shared_replica, CAP).monitor(), policy, chain)
    again = replay(result, policy, chain)
    assert again.decisions == result.decisions
    columns = ("step", "group", "index", "attempt", "version", "versions", "new_tokens", "finished")
    for column in (*columns, "outcome", "trained_step"):
        assert again.segments[column].tolist() == result.segments[column].tolist(), column
    # Exact but for the last token of a prefill: left over alone, the simulator decodes it.
    odd = result.segments["prefill_tokens"] - again.segments["prefill_tokens"]
    assert set(odd.tolist()) <= {0, 1}
    assert odd.mean() < 0.05
    for name in ("generated", "trained", "masked", "dropped", "carried"):
        key = f"{name}_tokens"
        assert getattr(again.ledger, key) == getattr(result.ledger, key), key
    assert again.ledger.preemptions == result.ledger.preemptions == 0
    # A response whose end token is its last possible one is whole; the replay sees only its length.
    assert (result.segments["truncated"] <= again.segments["truncated"]).all()
    assert len(set(result.segments["total_tokens"].tolist())) > 5


def replay(result: Run, policy: str, chain: Policy) -> Run:
    spec = EngineSpec(MAX_SEQS, BUDGET, KV_TOKENS, BLOCK, prefix_caching=True)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, spec, COST, RecordedWorkload(result.segments, CAP))
    return run(world, chain, plan_for(policy), STEPS)
