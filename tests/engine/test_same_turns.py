"""Rollouts of several turns on real vLLM and on the simulated cluster, which replays them: the same
decisions, and the same segments and calls, prefilled tokens included.

As `tests.turns.test_both_worlds`, with a real engine, whose prefix cache is part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.trainer import Trainer, TrainerConfig
from rollcast.engine.world import in_process
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.loop import run
from rollcast.simulator.plan import Batch, StepPlan
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.spans import Run
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.world import ClusterShape
from tests.engine.conftest import CONTEXT_TOKENS, build_tiny
from tests.turns.oracle import CAP, CASES, FIRST_WORD, MAX_CONTEXT, MAX_TURNS, TurnTask, rules
from tests.turns.test_both_worlds import COST, ITERATION_S, TRAIN_S, require_same
from tests.turns.virtual import Inline, TimedEngine, TimedTrainer, VirtualClock

STEPS = 3


@pytest.fixture(scope="module")
def shared_replica(make_replica: Callable[..., Any]) -> Any:
    """Whose turns end soon: of its 96 tokens, 13 are end tokens."""
    replica = make_replica(max_seqs=8, max_batched_tokens=64, kv_tokens=2048)
    replica.stop_token_ids = list(range(1, FIRST_WORD))
    return replica


def real_run(replica: Any, policy: str, turns: Any, failed: Any) -> Run:
    model = build_tiny(1)
    replica.load_weights(model.state_dict())
    replica.version = 0
    clock = VirtualClock()
    config = TrainerConfig(learning_rate=1e-3, seed=0)
    trainer: Any = TimedTrainer(Trainer(model, config), clock, TRAIN_S)
    engine: Any = TimedEngine(replica, clock, ITERATION_S)
    world = in_process(
        engine, trainer, TurnTask(), 3, turns=turns, runner=Inline(clock), timer=clock.timer
    )
    return run(world, parse_policy(policy, seed=5), StepPlan(Batch(4, 4), failed=failed), STEPS)


def replay(replica: Any, real: Run, policy: str, turns: Any, failed: Any) -> Run:
    spec = EngineSpec(8, 64, replica.kv_blocks * 32, block_tokens=32, prefix_caching=True)
    recorded = RecordedWorkload(real.segments, CAP, calls=real.calls, environments=turns.spec)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, spec, COST, recorded, environment=turns.spec)
    return run(world, parse_policy(policy, seed=5), StepPlan(Batch(4, 4), failed=failed), STEPS)


@pytest.mark.parametrize(("policy", "spec", "failed"), CASES)
def test_turns_on_vllm_take_the_same_course_in_the_simulator(
    shared_replica: Any, policy: str, spec: dict[str, Any], failed: str
) -> None:
    turns = rules(**spec)
    real = real_run(shared_replica, policy, turns, failed)
    require_same(real, replay(shared_replica, real, policy, turns, failed))
    assert STEPS - 1 <= max(real.segments["turn"]) < MAX_TURNS  # a turn a step, at the least
    assert max(real.segments["prompt_tokens"]) + MAX_CONTEXT < CONTEXT_TOKENS
