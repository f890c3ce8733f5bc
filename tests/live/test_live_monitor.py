"""From a log so far to progress, the end, and what changed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.calibration.live import monitor
from rollcast.calibration.live.monitor import late, state
from rollcast.calibration.logs.gather import read_log
from tests.laws import examples
from tests.live import growing
from tests.logs import genuine, written


def test_progress_and_end(tmp_path: Path) -> None:
    log = growing.log_of(tmp_path, growing.lines(20))
    assert state(log).left is None  # nobody says how many steps
    found = state(log, 50)
    assert (found.done, found.planned, found.step, found.finished) == (20, 50, 20, False)
    assert found.step_s == pytest.approx(15, rel=0.1)
    assert found.left.low < 30 * 15 < found.left.high
    assert found.left.seconds == pytest.approx(30 * 15, rel=0.1)
    assert not found.warnings
    done = state(log, 20)
    assert done.finished
    assert done.left == monitor.Left(0, 0, 0)


def test_the_settings_say_how_many_steps(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("".join(growing.lines(6)))
    config = written.VERL_CONFIG + "\n"
    (tmp_path / "console.log").write_text(config)
    assert state(read_log([tmp_path])).planned is None
    (tmp_path / "console.log").write_text(
        config.replace("'trainer': {", "'trainer': {'total_training_steps': 40, ", 1)
    )
    assert state(read_log([tmp_path])).planned == 40


def test_steps_from_zero_are_counted(tmp_path: Path) -> None:
    log = growing.log_of(tmp_path, growing.lines(10, first=0))
    assert (state(log, 10).done, state(log, 10).finished) == (10, True)


def test_a_slow_engine_is_told_by_its_phase(tmp_path: Path) -> None:
    written_lines = growing.lines(40, generation=lambda step: 1.5 if step >= 25 else 1.0)
    log = growing.log_of(tmp_path, written_lines)
    [warned] = state(log, 60).warnings
    assert (warned.column, warned.key, warned.since) == ("generation_s", "timing_s/gen", 25)
    assert warned.noticed in (27, 28)
    assert warned.ratio == pytest.approx(1.5, rel=0.1)
    assert "generation (timing_s/gen) takes 1." in warned.text
    before = replace(log, steps=log.steps[log.steps["step"] < 25])
    assert not state(before, 60).warnings
    # the end is forecast at the new level
    left = state(log, 60).left
    assert left.seconds == pytest.approx(20 * 20, rel=0.12)


def test_longer_responses_are_told_and_blamed_on_no_phase(tmp_path: Path) -> None:
    log = growing.log_of(tmp_path, growing.lines(50, tokens=lambda step: 1.6 if step > 30 else 1.0))
    [warned] = state(log).warnings
    assert (warned.column, warned.since) == ("mean_new_tokens", 31)
    assert "responses (response_length/mean) are 1.6" in warned.text


def test_runs_without_change_seldom_warn(tmp_path: Path) -> None:
    told = 0
    for seed in range(16):
        log = growing.log_of(tmp_path, growing.lines(60, seed))
        told += bool(state(log).warnings)
    assert told <= 2  # 16 x 5 % and a standard deviation and a half


def test_a_step_that_does_not_come_is_told(tmp_path: Path) -> None:
    found = state(growing.log_of(tmp_path, growing.lines(10)), 20)
    assert late(found, 2 * found.longest_s) is None
    assert "no step for 60 s" in str(late(found, 60.0))


@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10**6), seen=st.integers(3, 60), coming=st.integers(1, 200))
def test_forecasts_are_intervals(seed: int, seen: int, coming: int) -> None:
    rng = np.random.default_rng(seed)
    found = monitor.left(10 * rng.lognormal(0, 0.2, seen), coming)
    assert 0 < found.low <= found.seconds <= found.high < np.inf


def test_most_ends_lie_inside_their_interval() -> None:
    """Of runs whose level wanders by a hundredth a step, forecast from their first third."""
    inside, runs = 0, 150
    for seed in range(runs):
        rng = np.random.default_rng(seed)
        level = np.exp(np.cumsum(0.01 * rng.standard_normal(90)))
        seconds = 10 * level * rng.lognormal(0, 0.15, 90)
        found = monitor.left(seconds[:30], 60)
        inside += found.low <= seconds[30:].sum() <= found.high
    assert 0.8 * runs <= inside < runs


def test_too_few_steps_are_not_forecast() -> None:
    assert monitor.left(np.array([1.0, 2.0]), 10) is None


def test_genuine_runs_raise_no_alarm_and_end_as_forecast() -> None:
    inside, count = 0, 0
    for name in (
        "trl_grpo_cpu/vllm_g8",
        "trl_grpo_cpu/vllm_groups16",
        "trl_grpo_cpu/vllm_cap96",
        "trl_grpo_cpu/hf_g8",
        "verl_files/legacy_v0",
        "verl_files/sync_g8",
    ):
        log = read_log([genuine.log(name)])
        steps = log.steps
        assert state(log).finished, name
        half = replace(log, steps=steps.iloc[: len(steps) // 2])
        found = state(half, len(steps))
        assert not found.warnings, name
        took = float(steps["logged_s"].iloc[-1] - steps["logged_s"].iloc[len(steps) // 2 - 1])
        inside += found.left.low <= took <= found.left.high
        count += 1
    assert inside >= count - 1
