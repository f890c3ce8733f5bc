"""Learning in the answers of simulate and compare: from a short run to accuracy over hours."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.learning.answer import (
    Progress,
    at,
    between,
    first_at,
    repeated,
    seconds_over,
)
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.data import prior, save
from rollcast.simulator.learning.signals import signals_of
from rollcast.simulator.results.steady import Steady
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies.compare import compare
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.learned import Times, add_learning, against, sooner
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from tests.conftest import Cli
from tests.learning.worlds import anywhere, written
from tests.refusals import ran, refused

shares = st.floats(0, 1)


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a law that says something of its small batches, synchronous."""
    return written(tmp_path_factory.mktemp("learning"))


# The arithmetic, against plain loops


def first_crossing(target: float, curve: Sequence[float]) -> float:
    for update, (before, after) in enumerate(pairwise(curve)):
        if after >= target:
            return update + (target - before) / (after - before)
    return math.inf


@given(st.lists(st.lists(shares, min_size=6, max_size=6), min_size=1, max_size=4), shares)
def test_the_target_is_reached_where_a_loop_says(rises: list[list[float]], part: float) -> None:
    curves = 0.1 + np.cumsum(rises, axis=1) / 6
    target = float(curves[:, 0].max()) + 0.01 + part
    found = first_at(target, curves)
    assert found.tolist() == pytest.approx([first_crossing(target, c) for c in curves.tolist()])


@given(
    st.lists(st.floats(-5, 5), min_size=2, max_size=6),
    st.lists(st.floats(0, 9), min_size=1, max_size=6),
)
def test_between_is_linear(values: list[float], places: list[float]) -> None:
    want = np.interp(places, range(len(values)), values)
    got = between(np.array([values]), np.array([places]))[0]
    assert got == pytest.approx(want)


@given(st.integers(0, 5), st.integers(1, 5), st.integers(1, 40), st.floats(0.1, 9))
def test_steady_updates_are_repeated(start: int, steady: int, updates: int, step_s: float) -> None:
    found = Steady(start, start + steady, step_s, 2.0 * start, 0.0, True)
    rows, row = [], 0
    for _ in range(updates):
        rows.append(row)
        row = start if row + 1 == start + steady else row + 1
    assert repeated(found, np.arange(updates)).tolist() == rows
    ends_s = np.arange(1, start + steady + 1) * 2.0
    clock, want = 0.0, [0.0]
    for update in range(updates):
        clock += 2.0 if update < start else step_s
        want.append(clock)
    assert seconds_over(ends_s, found, np.arange(updates + 1)) == pytest.approx(want)


def times(rises: list[float], step_s: float, factor: float, target: float) -> Times:
    """Of draws whose log-odds rise by so much an update."""
    z = np.outer(rises, np.arange(65.0)) - 1.0
    drawn = 1 / (1 + np.exp(-z))
    progress = Progress(drawn[0], drawn, step_s * np.arange(65.0), np.arange(65.0))
    learning = Learning(prior(), 0.27, target)
    return Times.of(progress, learning, np.full(len(rises), factor))


rates = st.lists(st.floats(0.01, 0.5), min_size=2, max_size=5)


@given(rates, st.floats(0.1, 10), st.floats(0.3, 0.9))
def test_hours_are_proportional_to_a_step(rises: list[float], by: float, target: float) -> None:
    base = times(rises, 60.0, 1.0, target)
    for scaled in (times(rises, 60.0 * by, 1.0, target), times(rises, 60.0, by, target)):
        assert scaled.hours == pytest.approx(by * base.hours)
        assert (scaled.updates == base.updates).all()
        if by < 0.99 and np.isfinite(base.hours).all():
            assert against(scaled, base)["sooner"] == 1.0
    told = against(times(rises, 60.0 * by, 1.0, target), base)
    if np.isfinite(base.hours).all():
        assert [told["speedup_low"], told["speedup_high"]] == pytest.approx([1 / by, 1 / by])


@given(rates, st.floats(1.001, 2.0), st.floats(0.3, 0.9), st.floats(0.0, 0.09))
def test_faster_draws_and_nearer_targets_come_sooner(
    rises: list[float], more: float, target: float, further: float
) -> None:
    base = times(rises, 60.0, 1.0, target)
    assert (times([more * r for r in rises], 60.0, 1.0, target).hours <= base.hours).all()
    assert (times(rises, 60.0, 1.0, target + further).hours >= base.hours).all()
    assert sooner(base.hours, base.hours) == 0.5


# Whole answers


def told(result: Result) -> dict[str, Any]:
    content: dict[str, Any] = result.summary["learning"]
    return content


def test_a_run_says_when_it_reaches_its_target(cli: Cli, scenario: Path) -> None:
    out = ran(cli("simulate", scenario, "--json"))
    one = json.loads(out)
    learned = one["learning"]
    for name in ("updates", "hours", "gpu_hours"):
        assert learned[f"{name}_low"] < learned[name] < learned[f"{name}_high"]
    assert learned["hours"] == pytest.approx(learned["updates"] * one["step_s"] / 3600, rel=0.2)
    assert learned["gpu_hours"] == pytest.approx(one["gpus"] * learned["hours"])
    assert "usd" not in learned  # no GPU, no price
    curve = learned["curve"]
    assert curve["accuracy"][0] == pytest.approx(0.3)
    at_target = np.interp(learned["hours"], curve["hours"], curve["accuracy"])
    assert at_target == pytest.approx(0.6, abs=0.01)
    assert all(
        low <= own <= high
        for low, own, high in zip(curve["low"], curve["accuracy"], curve["high"], strict=True)
    )
    shown = cli("simulate", scenario, "--draws", 0)[1]
    assert "to target" in shown
    assert "Accuracy from 0.3 to 0.6 follows" in shown


def test_the_point_is_the_law_on_repeated_updates(scenario: Path) -> None:
    result = simulate(from_raw(parse_scenario(scenario.read_text(), folder=scenario.parent)))
    signals = signals_of(result.run)
    updates = 64
    rows = np.arange(updates) % len(signals)
    curve = result.scenario.learning.law.best(at(signals, rows), 0.3)  # type: ignore[union-attr]
    own = first_crossing(0.6, curve.tolist())
    assert told(result)["updates"] == pytest.approx(own, rel=5e-3)
    assert told(result)["hours"] == pytest.approx(own * result.summary["step_s"] / 3600, rel=5e-3)


def test_a_policy_like_the_first_is_as_soon(scenario: Path) -> None:
    base = from_raw(parse_scenario(scenario.read_text(), folder=scenario.parent))
    policies = ("one = sync", "two = sync", "pods(keep=2)")
    one, two, pods = compare([base.with_policy(name) for name in policies]).values()
    assert "sooner" not in told(one)
    assert told(two)["sooner"] == 0.5
    assert [told(two)[f"speedup{end}"] for end in ("_low", "", "_high")] == [1.0, 1.0, 1.0]
    assert told(pods)["updates"] > told(one)["updates"]
    # the same draws serve both sides: the ratio is known better than either
    wide = told(one)["hours_high"] / told(one)["hours_low"]
    assert told(pods)["speedup_high"] / told(pods)["speedup_low"] < 0.6 * wide


def test_draws_of_the_step_meet_those_of_the_law(scenario: Path) -> None:
    result = simulate(from_raw(parse_scenario(scenario.read_text(), folder=scenario.parent)))
    alone = told(result)
    add_learning({"sync": result}, {"sync": np.array([10.0])})
    slower = told(result)
    assert slower["hours"] == alone["hours"]  # at the run's own step time
    assert slower["hours_high"] == pytest.approx(10 * alone["hours_high"])
    assert slower["hours_low"] == min(10 * alone["hours_low"], alone["hours"])
    add_learning({"sync": result}, {"sync": np.array([100.0])})
    assert told(result)["hours_low"] == alone["hours"]  # an interval holds its figure
    assert [told(result)[f"updates{end}"] for end in ("_low", "_high")] == [
        alone[f"updates{end}"] for end in ("_low", "_high")
    ]


def test_without_a_target_there_is_an_accuracy(cli: Cli, scenario: Path) -> None:
    asked = (scenario, "--set", "learning.target=null", "--draws", 0)
    learned = json.loads(cli("simulate", *asked, "--json")[1])["learning"]
    after = learned["after"]
    assert after["updates"] == 200
    assert 0.3 < after["low"] < after["accuracy"] < after["high"] <= 1
    assert "hours" not in learned
    said = f"{after['accuracy']:.2f} after "
    assert said in cli("simulate", *asked)[1]
    assert said in cli("compare", *asked, "--policy", "sync", "--policy", "one = sync")[1]


def test_ends_may_be_infinite() -> None:
    assert ends([1.0, *[math.inf] * 99]).tolist() == [math.inf, math.inf]
    assert ends([*[1.0] * 90, *[math.inf] * 10]).tolist() == [1.0, math.inf]


def test_a_comparison_shows_it(cli: Cli, scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = ran(cli("compare", scenario, "--policy", "pods(keep=2)", "--out", out))
    assert "to accuracy 0.6" in shown
    assert (out / "learning.png").stat().st_size > 5000
    page = (out / "report.html").read_text("utf-8")
    assert "Accuracy over time" in page
    assert "reaches accuracy 0.6 after" in page
    rows = json.loads((out / "comparison.json").read_text())
    assert 0 <= rows[1]["learning"]["sooner"] <= 1
    assert "learning_hours_low" in (out / "comparison.csv").read_text().split("\n")[0]
    assert (out / "sync" / "learning.png").exists() is False  # as timeline.png, of one run alone


def test_a_target_that_no_run_reached_has_no_hours(
    cli: Cli, scenario: Path, tmp_path: Path
) -> None:
    save(anywhere(prior(), reached=0.5), tmp_path / "low.json")
    settings = ("--set", f"learning.file={tmp_path / 'low.json'}", "--draws", 0)
    learned = json.loads(cli("simulate", scenario, *settings, "--json")[1])["learning"]
    assert learned["hours"] is learned["hours_low"] is None
    assert 0.5 < learned["reached"] <= 1
    assert "0.6 is not reached in what was measured (up to 0.5);" in learned["note"]
    shown = " ".join(cli("simulate", scenario, *settings)[1].split())
    assert "of the draws would" in shown


def test_a_law_that_abstains_says_why(cli: Cli, scenario: Path, tmp_path: Path) -> None:
    narrow = replace(prior(), domain=replace(anywhere(prior()).domain, group_size=(64, 128)))
    save(narrow, tmp_path / "narrow.json")
    settings = ("--set", f"learning.file={tmp_path / 'narrow.json'}")
    out = ran(cli("simulate", scenario, *settings, "--json"))
    summary = json.loads(out)
    assert "hours" not in summary["learning"]
    assert "groups of 4" in summary["learning"]["abstains"]
    assert summary["step_s"] > 0
    shown = ran(cli("compare", scenario, *settings, "--policy", "pods(keep=2)"))
    assert shown.count("it says nothing here") == 1


def test_the_course_of_the_learning_rate_counts(cli: Cli, scenario: Path) -> None:
    def answer(**trainer: Any) -> tuple[int, str, str]:
        asked = f"engine.trainer={json.dumps(trainer)}"
        return cli("simulate", scenario, "--set", asked, "--draws", 0, "--json")

    plain, warm, falls = (
        json.loads(answer(**trainer)[1])["learning"]
        for trainer in ({}, {"warmup_updates": 9}, {"schedule": "linear", "schedule_updates": 400})
    )
    assert plain["updates"] + 3 < warm["updates"] < plain["updates"] + 5
    assert falls["updates"] > plain["updates"]
    assert falls["reached"] < plain["reached"]
    said = json.loads(answer(schedule="cosine")[1])["learning"]["abstains"]
    assert "give engine.trainer.schedule_updates" in said
    code, out, error = answer(warmup_updates="few")
    assert (code, out) == (2, "")
    assert "engine.trainer.warmup_updates: must be a whole number" in error


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{prior: true, accuracy: 0.3, target: 1.2}", "learning.target: must be a number above 0"),
        ("{prior: true, accuracy: 0.3, target: most}", "learning.target: must be a number above 0"),
        ("{prior: true, accuracy: 0.3, target: 0.2}", "learning.target: is 0.2, and the accuracy"),
        ("{prior: true, target: 0.5}", "learning.target: is 0.5, and the accuracy at the start is"),
        ("{prior: true, goal: 0.5}", "learning.goal: unknown key"),
        ("{prior: true, file: law.json}", "learning: must have exactly one of"),
        ("{accuracy: 0.3}", "learning: must have exactly one of"),
        ("{file: scenario.yaml, accuracy: 0.3}", "learning.file: scenario.yaml"),
        ("{file: none.json, accuracy: 0.3}", "learning.file: "),
        ("posterior", "learning: must be prior"),
        ("[prior]", "learning: must be a name or a mapping"),
    ],
)
def test_bad_input_is_a_sentence(cli: Cli, scenario: Path, section: str, said: str) -> None:
    error = refused(cli("simulate", scenario, "--set", f"learning={section}"))
    assert said in error


def test_the_start_is_the_success_rate_of_the_rewards(cli: Cli, scenario: Path) -> None:
    section = "--set", "learning={prior: true, target: 0.7}"
    summary = json.loads(cli("simulate", scenario, *section, "--draws", 0, "--json")[1])
    assert summary["learning"]["accuracy"] == 0.5
    error = refused(cli("simulate", scenario, *section, "--set", "workload.rewards=null"))
    assert "learning.accuracy: missing" in error
