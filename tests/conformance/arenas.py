"""The worlds under test, small and of one size, so that the same laws can be held against each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.world import ClusterShape, World
from rollcast.simulator.testing import Monitor
from rollcast.simulator.testing.tables import TableCost, TableWorkload

if TYPE_CHECKING:
    from rollcast.engine.responses import Tokens
    from rollcast.engine.vllm.replica import VllmReplica

MAX_SEQS, BUDGET, BLOCK = 8, 64, 32
KV_TOKENS = 4096
PROMPTS = (5, 70, 33, 12, 64, 27)
"""Prompt tokens by group: less than a block, whole blocks, and more than the budget holds."""
LENGTHS = (40, 3, 17, 29, 1, 40, 8, 22, 35, 11, 6)
FIRST_TOKEN, VOCABULARY = 2, 96

COST = TableCost(
    iteration_s=3e-3,
    per_rollout_s=6e-5,
    per_context_token_s=2e-7,
    per_prefill_token_s=3e-5,
    phases=(("forward", 0.01, 1e-5), ("backward", 0.02, 2e-5)),
    sync_s=0.02,
)

SIMULATED, OVERLAPPING, ENGINE = "simulated", "simulated, three replicas apart", "engine"
HAVE_VLLM = importlib.util.find_spec("vllm") is not None
NEEDS_VLLM = pytest.mark.skipif(not HAVE_VLLM, reason="vLLM is not installed (engine-cpu.lock)")
WORLDS = [SIMULATED, OVERLAPPING, pytest.param(ENGINE, marks=NEEDS_VLLM)]


@dataclass
class Arena:
    """A fresh world. tokens: what a rollout is made of, where the world keeps that. block_tokens:
    of the prefix cache, None where there is none."""

    world: World
    cap: int
    block_tokens: int | None = BLOCK
    tokens: Callable[[Rollout], Tokens] | None = None

    def monitor(self) -> Monitor:
        return Monitor(self.world, self.cap, self.block_tokens, self.tokens)


Build = Callable[..., Arena]
"""``build(kind, cap=40)`` makes an arena."""


@dataclass
class EvenTask:
    """Random prompts; a response is right if its tokens add up to an even number."""

    max_new_tokens: int

    def prompt(self, group: int, seed: int) -> Any:
        from rollcast.engine.tasks.base import Prompt

        rng = Random(f"{seed} {group}")
        count = PROMPTS[group % len(PROMPTS)]
        tokens = tuple(rng.randrange(FIRST_TOKEN, VOCABULARY) for _ in range(count))
        return Prompt(str(group), tokens)

    def reward(self, prompt: Any, response_text: str) -> float:
        return float(sum(map(int, response_text.split())) % 2 == 0)

    def decode(self, token_ids: Any) -> str:
        return " ".join(map(str, token_ids))


def simulated(kind: str, cap: int) -> Arena:
    lengths = tuple(min(length, cap) for length in LENGTHS)
    workload = TableWorkload(PROMPTS, lengths, (0.0, 1.0, 1.0, 0.0, 1.0), cap)
    engine = EngineSpec(MAX_SEQS, BUDGET, KV_TOKENS, BLOCK, prefix_caching=True)
    apart = kind == OVERLAPPING
    shape = ClusterShape(3 if apart else 1, 1, 1, colocated=not apart)
    return Arena(SimulatedCluster(shape, engine, COST, workload), cap)


def real(replica: VllmReplica, cap: int, caching: bool = True) -> Arena:
    """The engine, idle, with a tiny random model's weights and an empty cache."""
    from rollcast.engine.in_process import in_process
    from rollcast.engine.options import TrainerConfig
    from rollcast.engine.trainer.trainer import Trainer
    from tests.engine.conftest import build_flat

    if replica.unfinished:
        replica.abort()
    model = build_flat()
    replica.load_weights(model.state_dict())
    replica.version = 0
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-3, seed=0))
    world = in_process(replica, trainer, EvenTask(cap), seed=3)
    return Arena(world, cap, BLOCK if caching else None, world.tokens)
