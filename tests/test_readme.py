"""The examples in the README do what it says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from simulator.policies import POLICIES
from simulator.scenario.file import parse_scenario
from simulator.studies.simulate import from_raw, simulate

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def test_the_python_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["sync", "april", "april+pods(keep=4)"]
    seconds = [float(line.split()[1]) for line in lines]
    assert seconds[0] > seconds[1] > seconds[2] > 0


def test_the_policy_of_ones_own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("py")
    (tmp_path / "my_policies.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (text,) = blocks("yaml")
    raw = parse_scenario(text)
    (chain,) = re.findall(r"'(my_policies:.*?)'", TEXT)
    scenario = from_raw(raw, "steps=1").with_policy(chain)
    assert scenario.policy_name == chain
    assert scenario.warnings == ()
    assert simulate(scenario).run.steps[0].launched_groups == 40
    (entry,) = re.findall(r"`- (my_policies:.*?)`", TEXT)
    assert from_raw(raw, f"policy=[{entry}]").policy_name == chain.partition("+")[0]
    del sys.modules["my_policies"]


def test_the_scenario_runs() -> None:
    (text,) = blocks("yaml")
    result = simulate(from_raw(parse_scenario(text), "steps=1", "workload.group_size=16"))
    assert result.summary["policy"] == "april"
    assert result.run.steps[0].trained_rollouts == 32 * 16


def test_every_policy_is_listed() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE))
    assert named == set(POLICIES) - {"dapo_filter"}


def test_what_it_links_to_exists() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert targets
    assert all((ROOT / target).exists() for target in targets)
