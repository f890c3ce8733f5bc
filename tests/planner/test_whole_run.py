"""What a stretch of a run says of the whole run."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.whole_run import (
    ASSUMED_STEPS,
    RunCost,
    quality_of,
    run_cost,
    work_of,
)
from rollcast.simulator.scenario.plan_section import RunSection
from rollcast.simulator.values import read


def the_bill(work: object, **more: float) -> RunCost:
    figures = {
        "step_s": 36.0,
        "startup_s": 180.0,
        "startup_steps": 3,
        "taken": 64.0,
        "used": 8.0,
        "trained": 32.0,
        "gpus": 16,
        "usd_per_gpu_hour": 2.0,
    }
    return run_cost(work, **{**figures, **more})  # type: ignore[arg-type]


def test_by_hand() -> None:
    steps = work_of(RunSection(steps=100), 64)
    made = the_bill(steps)
    assert made.updates == 100
    assert made.hours == pytest.approx((180 + 97 * 36) / 3600)
    assert made.gpu_hours == pytest.approx(16 * made.hours)
    assert made.usd == pytest.approx(32 * made.hours)
    assert made.value("hours") == made.hours
    assert made.value("gpu_hours") == made.gpu_hours
    assert made.value("usd") == made.usd
    assert made.value("balanced") == pytest.approx(made.hours * 32 * made.hours)


def test_each_measure_of_work() -> None:
    assert the_bill(work_of(RunSection(steps=100), 64), taken=32.0).updates == 200
    assert the_bill(work_of(RunSection(prompts=400, epochs=2), 64)).updates == 100
    assert the_bill(work_of(RunSection(trained_rollouts=3200), 64)).updates == 100
    assert work_of(None, 64).rollouts == 64 * ASSUMED_STEPS
    assert work_of(None, 64).assumed
    assert the_bill(work_of(RunSection(steps=1), 64), taken=0.0).updates == math.inf


def test_without_a_price() -> None:
    made = the_bill(work_of(None, 64), usd_per_gpu_hour=None)  # type: ignore[arg-type]
    assert made.usd is None
    assert made.cost == made.gpu_hours
    with pytest.raises(ScenarioError, match="price"):
        made.value("usd")


@given(st.floats(1, 3), st.floats(1, 1e4), st.floats(0, 1e4))
def test_quality_scales_the_updates_and_not_the_start(
    q: float, step_s: float, first: float
) -> None:
    work = work_of(RunSection(steps=10), 64)
    once, more = (the_bill(work, step_s=step_s, startup_s=first, quality=each) for each in (1.0, q))
    assert more.updates == pytest.approx(q * once.updates)
    assert once.hours * 3600 == pytest.approx(first + 7 * step_s)
    assert more.hours * 3600 == pytest.approx(first + (10 * q - 3) * step_s)


def test_a_run_that_ends_in_the_start_up() -> None:
    assert the_bill(work_of(RunSection(steps=2), 64)).hours == pytest.approx(120 / 3600)


def test_quality_of_a_chain() -> None:
    said = {"april": 1.1, "pods": 1.2, "mine": 1.5, "sagc(candidates=[4, 8])": 2.0}
    assert quality_of("april(over_sampling=2)+pods(keep=4)", said) == pytest.approx(1.32)
    assert quality_of("mine = april", said) == 1.5
    assert quality_of("sagc(candidates=[4, 8])", said) == 2.0
    assert quality_of("sync", said) == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "plan.run: give one of"),
        ({"steps": 3, "prompts": 4}, "steps and prompts"),
        ({"steps": 3, "epochs": 2}, "plan.run.epochs"),
        ({"steps": 0}, "plan.run.steps"),
        ({"prompts": 10, "epochs": 0}, "plan.run.epochs"),
        ({"stepz": 3}, "did you mean steps"),
    ],
)
def test_bad_runs(given: dict[str, int], said: str) -> None:
    with pytest.raises(ScenarioError, match=said):
        read(RunSection, given, "plan.run")
