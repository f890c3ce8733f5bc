"""Rollouts of several turns on real vLLM and on the simulated cluster, which replays them: the same
decisions, and the same segments and calls, prefilled tokens included.

As `tests.turns.test_both_worlds`, with a real engine, whose prefix cache is part of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.options import TrainerConfig
from rollcast.engine.trainer.trainer import Trainer
from rollcast.simulator.cluster.replica import EngineSpec
from tests.engine.conftest import CONTEXT_TOKENS, build_flat
from tests.turns.oracle import CASES, FIRST_WORD, MAX_CONTEXT, MAX_TURNS, rules
from tests.turns.test_both_worlds import real_run, replay, require_same

STEPS = 2


@pytest.fixture(scope="module")
def shared_replica(make_replica: Callable[..., Any], flat_path: Path) -> Any:
    """Whose turns end soon: of its 96 tokens, 13 are end tokens."""
    replica = make_replica(flat_path, max_seqs=8, max_batched_tokens=64, kv_tokens=2048)
    replica.stop_token_ids = list(range(1, FIRST_WORD))
    return replica


@pytest.mark.parametrize(("policy", "spec", "failed"), CASES)
def test_turns_on_vllm_take_the_same_course_in_the_simulator(
    shared_replica: Any, policy: str, spec: dict[str, Any], failed: str
) -> None:
    turns, model = rules(**spec), build_flat()
    shared_replica.load_weights(model.state_dict())
    shared_replica.version = 0
    trainer = Trainer(model, TrainerConfig(learning_rate=1e-3, seed=0))
    real = real_run(shared_replica, trainer, policy, turns, failed, STEPS)
    engine = EngineSpec(8, 64, shared_replica.kv_blocks * 32, block_tokens=32, prefix_caching=True)
    require_same(real, replay(engine, real, policy, turns, failed, STEPS))
    assert STEPS - 1 <= max(real.segments["turn"]) < MAX_TURNS  # a turn a step, at the least
    assert max(real.segments["prompt_tokens"]) + MAX_CONTEXT < CONTEXT_TOKENS
