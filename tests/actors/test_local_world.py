"""The world of one process: the same as that of actors, but that nothing overlaps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from actor_fakes import FakeEngine, FakeTask, FakeTrainer, Trouble
from running_actors import PLAN

from rollcast.engine.errors import EngineError
from rollcast.engine.in_process import in_process
from rollcast.engine.log import EngineLog
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import WorldState
from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.world import Ended, TrainBatch
from rollcast.simulator.errors import RunError
from rollcast.simulator.policies import parse_policy
from tests.running import run


def world(
    engine: Trouble | None = None, trainer: Trouble | None = None, **options: Any
) -> EngineWorld:
    return in_process(
        FakeEngine(8, 0.0, engine), FakeTrainer(0.0, trainer), FakeTask(), 3, **options
    )


def test_the_clock_leaves_interruptions_and_the_speed_probe_out() -> None:
    clock = SimpleNamespace(now_s=50.0)
    ours = world(timer=lambda: clock.now_s)
    ours.load_state(WorldState(7.0, 0, 0, {}, {}), EngineLog())
    clock.now_s += 2.0
    with ours.clock_stopped():
        clock.now_s += 100.0
    clock.now_s += 1.0
    assert ours.now_s == 10.0


def test_the_loop_hears_of_each_iteration_before_the_next() -> None:
    ours = world()
    rollouts = [Rollout(0, index) for index in range(8)]
    ours.submit(rollouts)
    in_flight = {rollout.key for rollout in rollouts}
    while in_flight:
        events = ours.wait()
        ended = [event.segment for event in events if isinstance(event, Ended)]
        done = ours.log.iterations["start_s"][-1]
        assert all(segment.end_s >= done for segment in ended)
        assert len(ours.log.iterations) == max(segment.new_tokens for segment in ended)
        in_flight -= {segment.key for segment in ended}


def test_an_engine_that_fails_ends_the_run(tmp_path: Path) -> None:
    """There is no other process to go on in."""
    ours = world(engine=Trouble(tmp_path / "struck", 20))
    with pytest.raises(EngineError, match="on fire"):
        run(ours, parse_policy("sync"), PLAN, 2)
    assert not ours.log.faults
    ours.close()


def test_an_update_that_fails_names_its_step(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="the update of step 1 failed: RuntimeError: out of memory"):
        run(world(trainer=Trouble(tmp_path / "struck", 2)), parse_policy("sync"), PLAN, 3)


def test_closing_carries_out_nothing_that_was_asked_before() -> None:
    trainer = FakeTrainer()
    ours = in_process(FakeEngine(), trainer, FakeTask(), 3)
    ours.train(TrainBatch(0, ()), "dense")
    ours.close()
    assert not ours.log.updates
    assert trainer._steps == 0


def test_there_is_no_sync_before_the_first_update() -> None:
    with pytest.raises(RunError, match="before the first update"):
        world().sync_weights()


def test_a_run_is_saved_between_two_steps_alone() -> None:
    ours = world()
    ours.submit([Rollout(0, 0)])
    with pytest.raises(RunError, match="between two steps"):
        ours.state()
    ours.abort()
    assert ours.state().updates == 0
