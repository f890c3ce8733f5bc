"""Held-out prompts beside a run: the loop learns nothing of them, whatever else is under way."""

from typing import Any

import pytest
from running_actors import PLAN, STEPS, made, make

from rollcast.engine.evaluation import Evaluator
from rollcast.engine.in_process import in_process
from rollcast.engine.run_options import EvaluationOptions
from rollcast.engine.world import EngineWorld
from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.spans import Run
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import RecordedWorld
from rollcast.simulator.policies import parse_policy
from tests.actors.actor_fakes import FakeEngine, FakeTrainer
from tests.refusals import refuses
from tests.turns.oracle import CASES, TurnTask, rules
from tests.turns.virtual import TICKS, Inline, TimedEngine, TimedTrainer, VirtualClock

OPTIONS = EvaluationOptions(every=2, prompts=3, rollouts=2)


def evaluated(world: EngineWorld, policy: str, plan: StepPlan, evaluates: bool = True) -> Any:
    """A run with evaluations between its steps, and its record."""
    evaluator = Evaluator(OPTIONS, world.task)
    record = RecordedWorld([], world, world.shape, world.name)

    def between(loop: Loop) -> None:
        steps = len(loop.result.steps)
        if evaluates and evaluator.due(world.log, steps, STEPS):
            evaluator.evaluate(world, steps)

    loop = Loop(record, parse_policy(policy, seed=5), plan)
    try:
        between(loop)
        result = loop.run(STEPS, after_step=between)
        assert world.quiet
    finally:
        world.close()
    return result, record.entries


@pytest.mark.parametrize("policy", ["sync", "fully_async", "streaming(groups=3)"])
def test_it_is_beside_the_run(policy: str) -> None:
    home = make(iteration_s=2e-4)
    result, entries = evaluated(home.world, policy, PLAN)
    found = home.world.log.evaluations
    done = [one.steps_done for one in found]
    assert (done[0], done[-1]) == (0, 5)
    assert done == sorted({*done})
    assert len(done) >= 3
    assert all((one.prompts, one.rollouts, one.failed) == (3, 6, 0) for one in found)
    assert {0.0 < one.tokens <= 24 for one in found} == {True}
    segments = [segment for entry in entries for segment in entry.segments]
    assert min(segment.group for segment in segments) >= 0
    assert min(segment.shared.group for segment in segments) >= -1
    assert result.ledger.balance == 0
    assert all(key[0] >= 0 for key in home.world._rollouts.responses.tokens)
    if policy == "sync":  # whose rollouts depend on no time
        assert [one.version for one in found] == [0, 2, 4, 5]
        assert made(result) == made(evaluated(make().world, policy, PLAN, evaluates=False)[0])


def timed(policy: str, spec: dict[str, Any], failed: Any, evaluates: bool) -> tuple[Run, Any]:
    """Rollouts of several turns, on a clock of their own."""
    clock = VirtualClock()
    engine: Any = TimedEngine(FakeEngine(8), clock, 1 / TICKS)
    trainer: Any = TimedTrainer(FakeTrainer(), clock, 16 / TICKS)
    runner = Inline(clock)
    turns = rules(**spec)
    world = in_process(
        engine, trainer, TurnTask(), 3, turns=turns, runner=runner, timer=clock.timer
    )
    world.make_runner = lambda: Inline(clock)
    plan = StepPlan(Batch(4, 4), failed=failed)
    return evaluated(world, policy, plan, evaluates)[0], world.log


@pytest.mark.parametrize(("policy", "spec", "failed"), CASES[:5])
def test_it_leaves_a_run_of_turns_as_it_was(policy: str, spec: Any, failed: str) -> None:
    with_, log = timed(policy, spec, failed, True)
    without, other = timed(policy, spec, failed, False)
    assert repr([*with_.segments.rows()]) == repr([*without.segments.rows()])
    assert repr([*with_.calls.rows()]) == repr([*without.calls.rows()])
    assert [one.end_s for one in with_.steps] == [one.end_s for one in without.steps]
    assert len(log.iterations) == len(other.iterations)
    assert len(log.failures) == len(other.failures)
    assert [one.version for one in log.evaluations] == [0, 2, 4, 5]
    assert {one.rollouts for one in log.evaluations} == {6}


def test_without_held_out_prompts_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TurnTask, "held_out", lambda self, count: [])
    with refuses("engine.evaluation", "give more prompts"):
        Evaluator(OPTIONS, TurnTask())
