"""Lengths that react to accuracy: the simulated steps drift, and later updates take as long."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.learning.answer import Progress
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.data import prior
from rollcast.simulator.learning.law import LengthLaw
from rollcast.simulator.learning.lengths import lengths_of, mean_length, reacting
from rollcast.simulator.planner.planner import plan
from rollcast.simulator.studies.simulate import load, simulate
from tests.conftest import Cli
from tests.learning.worlds import LONGER, written
from tests.refusals import refused

FLAT = replace(
    LONGER,
    right_slope=0.0,
    wrong_slope=0.0,
    ratio=1.0,
    right_slope_error=0,
    wrong_slope_error=0,
    ratio_error=0,
)
inside = st.floats(0.05, 0.95)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("lengths"))


def slow_mean(law: LengthLaw, start: float, accuracy: float) -> float:
    rise = math.log(accuracy / (1 - accuracy)) - math.log(start / (1 - start))
    right, wrong = math.exp(law.right_slope * rise), law.ratio * math.exp(law.wrong_slope * rise)
    return (accuracy * right + (1 - accuracy) * wrong) / (start + (1 - start) * law.ratio)


@given(inside, inside, st.floats(-1, 1), st.floats(-1, 1), st.floats(0.2, 5))
def test_the_mean_is_that_of_right_and_wrong(
    start: float, accuracy: float, right: float, wrong: float, ratio: float
) -> None:
    law = replace(LONGER, right_slope=right, wrong_slope=wrong, ratio=ratio)
    found = mean_length(lengths_of(law), start, np.array([accuracy, start]))
    assert found.tolist() == pytest.approx([slow_mean(law, start, accuracy), 1.0])
    flat = lengths_of(replace(law, right_slope=0.0, wrong_slope=0.0))
    still = mean_length(flat, start, np.array([accuracy]))
    assert (still[0] - 1) * (1 - ratio) * (accuracy - start) >= -1e-12  # more of the right ones


def progress(rises: list[float]) -> Progress:
    drawn = 1 / (1 + np.exp(1.0 - np.outer(rises, np.arange(21.0))))
    return Progress(drawn[0], drawn, 60.0 * np.arange(21.0), np.arange(21.0))


@given(st.lists(st.floats(0.01, 0.3), min_size=2, max_size=4), st.floats(0, 1), st.integers(0, 3))
def test_seconds_follow_the_lengths(rises: list[float], power: float, first: int) -> None:
    base, start = progress(rises), 1 / (1 + math.e)
    sure = replace(LONGER, right_slope_error=0, wrong_slope_error=0, ratio_error=0)
    law = replace(prior(), lengths=sure)
    found = mean_length(lengths_of(sure), start, base.accuracy)
    made = reacting(base, Learning(law, start), 0, slice(first, first + 3), power, found)
    own = [slow_mean(LONGER, start, a) for a in base.accuracy.tolist()]
    usual = math.prod(own[first : first + 3]) ** (1 / 3)
    for curve, clocks in ((base.accuracy, made.seconds), (base.drawn[1], made.drawn_seconds[1])):
        lengths = [slow_mean(LONGER, start, a) for a in curve.tolist()]
        clock, want = 0.0, [0.0]
        for update, length in enumerate(lengths[:-1]):
            clock += 60.0 * (1.0 if update < first else (length / usual) ** power)
            want.append(clock)
        assert clocks.tolist() == pytest.approx(want)
    flat = replace(prior(), lengths=FLAT)
    ones = np.ones_like(base.accuracy)
    same = reacting(base, Learning(flat, start), 0, slice(first, first + 3), power, ones)
    assert same.seconds == pytest.approx(base.seconds)
    updates = np.array([3.5] * len(rises))
    assert same.drawn_hours_after(updates) == pytest.approx(base.drawn_hours_after(updates))
    grid, ones = np.linspace(0, 0.3, 5), np.ones(len(rises))
    for one, other in zip(same.at_hours(grid, ones), base.at_hours(grid, ones), strict=True):
        assert one == pytest.approx(other)


def test_answers_that_grow_take_longer(scenario: Path) -> None:
    still = simulate(load(scenario, "learning.file=longer.json", "steps=8"))
    grows = simulate(
        load(scenario, "learning.file=longer.json", "learning.lengths=true", "steps=8")
    )
    assert still.scenario.workload.draw(0, 4, version=7) == still.scenario.workload.draw(0, 4)
    before, after = (grows.scenario.workload.draw(0, 4, version=v).new_tokens for v in (0, 7))
    assert sum(after) > 1.05 * sum(before)
    one, other = (run.summary["learning"] for run in (still, grows))
    assert other["updates"] == pytest.approx(one["updates"], rel=1e-6)
    longest = slow_mean(LONGER, 0.3, 0.6)
    assert 1.05 < other["hours"] / one["hours"] < longest  # a step grows no faster than its lengths
    assert other["hours_low"] < other["hours"] < other["hours_high"]
    known = np.interp(other["hours"], other["curve"]["hours"], other["curve"]["accuracy"])
    assert known == pytest.approx(0.6, abs=0.01)


def test_a_plan_counts_the_growth(scenario: Path) -> None:
    settings = ("learning.file=longer.json", "learning.lengths=true")
    found = plan(load(scenario, *settings), {}, ["sync"], workers=1, intervals=False)
    [row] = found.rows
    alone = simulate(load(scenario, *settings, f"steps={row.measured.steps}"))
    assert row.run_cost.hours == pytest.approx(alone.summary["learning"]["hours"], rel=0.01)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "learning.lengths: needs a law that knows lengths, and "),
        (
            ("learning.file=longer.json", "workload.lengths={trace: lengths.csv}"),
            "learning.lengths: needs workload.lengths that drift",
        ),
        (("learning.lengths=maybe",), "learning.lengths: must be true or false"),
    ],
)
def test_lengths_that_cannot_react_are_refused(
    cli: Cli, scenario: Path, settings: tuple[str, ...], said: str
) -> None:
    asked = ("learning.lengths=true", *settings)
    flags = [word for text in asked for word in ("--set", text)]
    error = refused(cli("simulate", scenario, *flags))
    assert said in error
