"""The same policy objects on real vLLM and on the simulated cluster take the same decisions.

A tiny model is sampled and trained for real; then its lengths and rewards are replayed in the
simulator. The two decision logs, and what every rollout's segments made, must be identical: that
holds the loop, the policies and the replica's scheduler against the real thing at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from conftest import CONTEXT_TOKENS, VOCABULARY, build_tiny

from rollcast.engine.tasks.base import Prompt
from rollcast.engine.trainer import Trainer, TrainerConfig
from rollcast.engine.world import in_process
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.loop import run
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.spans import Run
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.world import ClusterShape

CAP = 40
STEPS = 5
COST = LinearCost(
    iteration_s=3e-3,
    per_rollout_s=6e-5,
    per_context_token_s=2e-7,
    per_prefill_token_s=3e-5,
    train_per_token_s=1e-4,
)
POLICIES = [
    "sync",
    "april(over_sampling=2)",
    "april(over_sampling=1.5, surplus=drop, mask_off_policy=true)",
    "sagc(candidates=[2, 4, 8], first=4)",
    "pods(keep=2)",
    "prefix_reuse",
    "dynamic_sampling",
    "partial_rollout",
    "tail_batching",
    "token_budget(tokens=12)",
    "sorted_rl",
    "seer(window=0.5)",
    "rhyme_rl",
    "colocate_async",
    "difficulty(easy=0.6, hard=0.3)",
    "april(over_sampling=2)+longest_first(predictor=probe)",
    "april(over_sampling=2)+sagc(candidates=[2, 4, 8], first=4)+pods(keep=2)+prefix_reuse",
]


@dataclass
class ParityTask:
    """Random prompts; a response is right if its tokens add up to an even number."""

    max_new_tokens: int = CAP

    def prompt(self, group: int, seed: int) -> Prompt:
        rng = Random(f"{seed} {group}")
        tokens = tuple(rng.randrange(2, VOCABULARY) for _ in range(rng.randrange(3, 30)))
        return Prompt(str(group), tokens)

    def reward(self, prompt: Prompt, response_text: str) -> float:
        return float(sum(map(int, response_text.split())) % 2 == 0)

    def held_out(self, count: int) -> list[Prompt]:
        return []

    def decode(self, token_ids: Any) -> str:
        return " ".join(map(str, token_ids))


@pytest.fixture(scope="module")
def shared_replica(make_replica: Callable[..., Any]) -> Any:
    return make_replica(max_seqs=8, max_batched_tokens=64, kv_tokens=4096, block_tokens=32)


def real_run(replica: Any, policy: str, steps: int = STEPS) -> Run:
    model = build_tiny(1)
    replica.load_weights(model.state_dict())
    replica.version = 0
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-3, seed=0))
    world = in_process(replica, trainer, ParityTask(), seed=3)
    return run(world, parse_policy(policy, seed=5), StepPlan(Batch(4, 4)), steps)


def replay(replica: Any, real: Run, policy: str, steps: int = STEPS) -> Run:
    spec = EngineSpec(8, 64, replica.kv_blocks * 32, block_tokens=32, prefix_caching=True)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, spec, COST, RecordedWorkload(real.segments, CAP))
    return run(world, parse_policy(policy, seed=5), StepPlan(Batch(4, 4)), steps)


@pytest.mark.parametrize("policy", POLICIES)
def test_real_and_simulated_decisions_are_identical(shared_replica: Any, policy: str) -> None:
    real = real_run(shared_replica, policy)
    simulated = replay(shared_replica, real, policy)
    assert simulated.decisions == real.decisions
    assert real.ledger.balance == simulated.ledger.balance == 0
    columns = ("step", "group", "index", "attempt", "version", "versions", "new_tokens", "finished")
    for column in (*columns, "outcome", "trained_step"):
        assert real.segments[column].tolist() == simulated.segments[column].tolist(), column
    # A response whose end token is its last possible one is whole; the replay sees only its length.
    assert (real.segments["truncated"] <= simulated.segments["truncated"]).all()
    assert len(set(real.segments["total_tokens"].tolist())) > 5
    assert max(real.segments["prompt_tokens"]) + CAP < CONTEXT_TOKENS
