"""Capacity planning: grids of settings, what pays, and what cannot be run."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cli import app as cli
from simulator.errors import ScenarioError
from simulator.policies import APRIL
from simulator.scenario.file import override, parse_scenario
from simulator.studies.capacity import (
    Choice,
    _marked,
    by_cause,
    combinations,
    explore,
    parse_vary,
    plan,
    ranked,
)
from simulator.studies.simulate import from_raw, simulate

SCENARIO = """
model: qwen3-8b
gpu: h100-sxm
cluster: {placement: colocated, replicas: 8, tensor_parallel: 1, trainer_gpus: 8}
workload:
  batch_groups: 8
  group_size: 4
  prompt_tokens: 64
  max_new_tokens: 512
  lengths: {family: lognormal, median_tokens: 100, between_sd: 0.5, within_sd: 0.4}
steps: 2
"""


def test_every_combination_is_what_simulate_says() -> None:
    raw = parse_scenario(SCENARIO)
    both = "cluster.replicas=cluster.trainer_gpus"
    vary = parse_vary([f"{both}=4,8"])
    found = explore(raw, vary, ["sync", "april"])
    assert [(c.settings[both], c.policy) for c in found] == [
        (4, "sync"), (4, "april"), (8, "sync"), (8, "april")
    ]  # fmt: skip
    for choice in found:
        gpus = choice.settings[both]
        settings = [f"cluster.replicas={gpus}", f"cluster.trainer_gpus={gpus}"]
        scenario = from_raw(override(raw, settings))
        summary = simulate(scenario.with_policy(choice.policy)).summary
        assert choice.figures["step_s"] == summary["step_s"]
        assert choice.figures["gpus"] == gpus
        assert choice.figures["gpu_s_per_step"] == pytest.approx(gpus * summary["makespan_s"] / 2)


def test_a_plan_from_python_is_the_grid_best_first() -> None:
    raw = parse_scenario(SCENARIO)
    vary = {"workload.group_size": [4, 10**7]}
    choices = plan(from_raw(raw), vary, ["sync", APRIL()], by="gpu_s")
    explored = explore(raw, vary, ["sync", "april"])
    assert choices == ranked(explored, "gpu_s")
    assert [choice.policy for choice in choices if choice.problem] == ["sync", "april"]
    [own] = plan(from_raw(raw).with_policy("mine: april"), {"workload.group_size": [4]})
    assert (own.policy, own.figures) == ("april", explored[1].figures)


def test_values_are_yaml() -> None:
    assert parse_vary(["a.b=1,2.5", "gpu=h100-sxm,{preset: b200, usd_per_hour: 3}"]) == {
        "a.b": [1, 2.5],
        "gpu": ["h100-sxm", {"preset": "b200", "usd_per_hour": 3}],
    }


def test_what_cannot_be_run_says_why() -> None:
    raw = parse_scenario(SCENARIO)
    found = explore(raw, {"cluster.tensor_parallel": [1, 3]}, ["sync"])
    works, fails = found
    assert works.figures
    assert not fails.figures
    assert "tensor_parallel" in fails.problem
    assert works.best
    assert not fails.best
    assert ranked(found[::-1], "step_s") == [works, fails]
    with pytest.raises(ScenarioError, match="clustr"):
        explore(raw, {"clustr.replicas": [1, 2]}, ["sync"])


def test_choices_that_cannot_be_run_are_grouped_by_cause() -> None:
    def choice(model: str, gpus: int, policy: str, problem: str) -> Choice:
        return Choice({"model": model, "cluster.replicas": gpus}, policy, {}, problem)

    full = "the trainer is out of memory: {} needs {} GB (april.yaml, line 9)"
    choices = [
        choice("a-8b", 1, "sync", full.format("a-8b", "1,093.5")),
        choice("a-8b", 2, "sync", "cluster.replicas: 2 is odd"),
        Choice({}, "sync", {"step_s": 1.0}),
        choice("b-70b", 1, "april", full.format("b-70b", "94")),
        choice("b-70b", 2, "april", full.format("b-70b", "93")),
    ]
    alike = by_cause(choices)
    assert alike == [[choices[0], choices[3], choices[4]], [choices[1]]]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front_holds_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    choices = [Choice({}, "", {"step_s": a, "gpu_s_per_step": b}) for a, b in points]
    marked = {
        (c.figures["step_s"], c.figures["gpu_s_per_step"]) for c in _marked(choices) if c.best
    }
    for a, b in points:
        beaten = any((c <= a and d < b) or (c < a and d <= b) for c, d in points)
        assert ((a, b) in marked) is not beaten


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["replicas"], "key=value"),
        (["=3"], "key=value"),
        (["a==3"], "key=value"),
        (["a="], "no values"),
        (["a=[1"], "not a list"),
        (["a=1", "a=2"], "given twice"),
    ],
)
def test_bad_grids(texts: list[str], said: str) -> None:
    with pytest.raises(ScenarioError, match=said) as error:
        parse_vary(texts)
    assert error.value.field == "--vary"


def test_too_many_choices() -> None:
    assert combinations({"a": [1, 2], "b": [1, 2, 3]}, ["sync", "april"]) == 12
    with pytest.raises(ScenarioError, match="too many"):
        combinations({"a": list(range(200)), "b": list(range(200))}, ["sync"])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["plan", *arguments])
    said = capsys.readouterr()
    return int(stopped.value.code or 0), said.out, said.err


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    return tmp_path / "s.yaml"


def test_the_command(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = (str(path), "--vary", "cluster.tensor_parallel=1,2,3", "--policy", "april",
                 "--by", "usd", "--out", str(out))  # fmt: skip
    code, said, _ = run(capsys, *arguments)
    assert code == 0
    assert "cannot be run: " in said
    assert said.count("cannot be run: ") == 1
    assert "cluster.tensor_parallel=3: april" in said
    heading = next(line for line in said.splitlines() if "bubble" in line)
    at = heading.index("best")
    stars = {line.index("*") - at for line in said.splitlines() if "*" in line and "\u2502" in line}
    assert stars <= set(range(4))
    assert stars
    rows: list[dict[str, Any]] = json.loads((out / "plan.json").read_text())
    assert [row["usd_per_step"] for row in rows][:2] == sorted(r["usd_per_step"] for r in rows[:2])
    assert rows[2]["problem"]
    with (out / "plan.csv").open() as file:
        assert [row["policy"] for row in csv.DictReader(file)] == ["april"] * 3
    code, _, problem = run(capsys, *arguments)
    assert (code, "--force" in problem) == (2, True)
    assert run(capsys, *arguments, "--force")[0] == 0


def test_a_plan_without_a_grid_is_one_choice(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, _ = run(capsys, str(path), "--json")
    assert code == 0
    [row] = json.loads(said)
    assert row["policy"] == "sync"


def test_a_wrong_aim_is_told_before_the_work(
    path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a choice was simulated")

    monkeypatch.setattr("simulator.studies.capacity.explore", never)
    assert "--by" in run(capsys, str(path), "--by", "speed")[2]


def test_what_a_user_gets_wrong(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("--by", "speed"), "--by"),
        (("--vary", "nothing"), "--vary"),
        (("--vary", "policy=sync,april"), "with a --policy of its own"),
        (("--vary", "stepz=1,2"), "(from --vary stepz)"),
        (("--vary", "steps.x=1"), "which has no keys below it"),
        (("--policy", "aprill"), "april"),
    ):
        code, _, problem = run(capsys, str(path), *arguments)
        assert code == 2
        assert said in problem
        assert problem.count("\n") == 1
