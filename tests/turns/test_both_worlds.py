"""Rollouts of several turns in the real world, with an engine of no size, and in the simulated one:
the same course to the last segment and call, at the same times.

The real world runs on a clock on which every iteration takes equally long, and its environments say
how long they take: so it happens exactly when the simulated run does that replays it.
"""

from typing import Any

import numpy as np
import pytest

from rollcast.engine.in_process import in_process
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.rollout import ENDINGS
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.workload.recorded import RecordedWorkload
from tests.actors.actor_fakes import FakeEngine, FakeTrainer
from tests.running import run
from tests.scenarios import FREE
from tests.turns.oracle import CAP, CASES, MAX_CONTEXT, MAX_TURNS, MORE_CASES, TurnTask, rules
from tests.turns.virtual import TICKS, Inline, TimedEngine, TimedTrainer, VirtualClock

STEPS = 4
ITERATION_S = 1 / TICKS
TRAIN_S = 16 / TICKS
COST = LinearCost(**{**FREE, "iteration_s": ITERATION_S, "train_fixed_s": TRAIN_S})


def real_run(
    engine: Any,
    trainer: Any,
    policy: str,
    turns: Any,
    failed: Any,
    steps: int = STEPS,
    limit_s: float | None = None,
) -> Run:
    clock = VirtualClock()
    timed: Any = TimedEngine(engine, clock, ITERATION_S)
    trainer = TimedTrainer(trainer, clock, TRAIN_S)
    world = in_process(
        timed, trainer, TurnTask(), 3, turns=turns, runner=Inline(clock), timer=clock.timer
    )
    return run(
        world,
        parse_policy(policy, seed=5),
        StepPlan(Batch(4, 4), failed=failed),
        steps,
        trial_timeout_s=limit_s,
    )


def replay(
    engine: EngineSpec,
    real: Run,
    policy: str,
    turns: Any,
    failed: Any,
    steps: int = STEPS,
    limit_s: float | None = None,
) -> Run:
    recorded = RecordedWorkload(real.segments, CAP, calls=real.calls, environments=turns.spec)
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, engine, COST, recorded, environment=turns.spec)
    return run(
        world,
        parse_policy(policy, seed=5),
        StepPlan(Batch(4, 4), failed=failed),
        steps,
        trial_timeout_s=limit_s,
    )


@pytest.mark.parametrize(("policy", "spec", "failed"), [*CASES, *MORE_CASES])
def test_turns_take_the_same_course_in_both_worlds(
    policy: str, spec: dict[str, Any], failed: str
) -> None:
    turns = rules(**spec)
    real = real_run(FakeEngine(8), FakeTrainer(), policy, turns, failed)
    engine = EngineSpec(8, 4096, 65_536, block_tokens=16, prefix_caching=False)
    simulated = replay(engine, real, policy, turns, failed)
    require_same(real, simulated)
    for column in ("start_s", "end_s"):
        assert np.allclose(real.segments[column], simulated.segments[column], atol=1e-9, rtol=0), (
            column
        )
        assert np.allclose(real.calls[column], simulated.calls[column], atol=1e-9, rtol=0), column
    endings = {ENDINGS[number] for number in real.segments["ending"].tolist()}
    assert "stop" in endings
    assert endings & {"turn", "budget"}
    assert max(real.segments["turn"]) == MAX_TURNS - 1
    parts = ("prompt_tokens", "total_tokens", "observation_tokens")
    assert sum(real.segments[name] for name in parts).max() <= MAX_CONTEXT


@pytest.mark.parametrize(
    ("policy", "spec", "failed"),
    [
        ("sync", {}, "keep"),
        ("sync", {"slots": 5, "held": "rollout"}, "keep"),
        ("sync", {"slots": 3}, "restart"),
        ("april(over_sampling=2)", {"slots": 6, "on_suspend": "close"}, "keep"),
        ("token_budget(tokens=20, turns=2)", {"slots": 4}, "keep"),
    ],
)
def test_the_limit_on_a_trial_ends_the_same_rollouts_in_both_worlds(
    policy: str, spec: dict[str, Any], failed: str
) -> None:
    """At 90 ticks, in the model, in a call and in a queue for a slot; it earns nothing."""
    turns, limit_s = rules(**spec), 90 / TICKS
    real = real_run(FakeEngine(8), FakeTrainer(), policy, turns, failed, limit_s=limit_s)
    engine = EngineSpec(8, 4096, 65_536, block_tokens=16, prefix_caching=False)
    simulated = replay(engine, real, policy, turns, failed, limit_s=limit_s)
    require_same(real, simulated)
    late = real.segments["ending"] == ENDINGS.index("trial_timeout")
    assert 0 < late.sum() < real.segments["finished"].sum()
    assert (real.segments["reward"][late] == 0).all()
    kept = real.segments["outcome"][late] == 1
    assert not kept.any() if failed == "restart" else kept.any()


def require_same(real: Run, simulated: Run) -> None:
    """But for the times."""
    for column in ("step", "group", "index", "attempt", "turn", "kind", "ended"):
        assert real.calls[column].tolist() == simulated.calls[column].tolist(), column
    columns = (
        "step",
        "group",
        "index",
        "attempt",
        "turn",
        "observation_tokens",
        "version",
        "versions",
        "new_tokens",
        "ending",
        "finished",
        "replica",
        "prefill_tokens",
        "outcome",
        "trained_step",
    )
    for column in columns:
        assert real.segments[column].tolist() == simulated.segments[column].tolist(), column
    assert simulated.decisions == real.decisions
    assert real.ledger == simulated.ledger
    assert real.ledger.balance == 0
