"""``rollcast check`` of a scenario: what the simulator says, and its keys as changes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollcast.simulator.check.of_scenario import of_scenario
from rollcast.simulator.cli.app import main
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import build_scenario
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("quick_intervals")

ROOT = Path(__file__).parents[2]
TEXT = """\
model: qwen3-8b
gpu: h100-sxm
cluster: {placement: colocated, replicas: 8}
engine: {max_seqs: 64}
workload:
  batch_groups: 4
  group_size: 8
  prompt_tokens: 256
  max_new_tokens: 4096
  lengths: {mean_tokens: 900}
plan: {run: {steps: 300}}
steps: 2
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*words: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return int(done.value.code or 0), said.out, said.err

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(TEXT, "utf-8")
    return file


def test_it_says_what_the_scenario_says(call: Call, path: Path) -> None:
    code, out, _ = call("check", path, "--no-changes", "--json")
    said = json.loads(out)
    ledger = build_scenario(parse_scenario(TEXT)).ledger
    assert (code, said["fits"], said["stack"]) == (0, True, None)
    assert said["phases"] == ledger.plain()["phases"]
    simulated = json.loads(call("simulate", path, "--json")[1])
    assert said["step_s"]["median"] == pytest.approx(simulated["step_s"])
    assert said["steps"] == 300
    assert said["hours"] == pytest.approx(simulated["step_s"] * 300 / 3600)
    for seven in (("--steps", 7), ("--run", "steps=7")):
        assert json.loads(call("check", path, "--no-changes", "--json", *seven)[1])["steps"] == 7
    assert "give steps=500 here" in call("check", path, "--run", "prompts=40")[2]
    assert said["scenario"] == parse_scenario(TEXT).data


def test_a_change_is_on_one_line() -> None:
    lines = of_scenario(parse_scenario(TEXT)).lines({"policy": ["april", "sagc"], "seed": None})
    assert lines == ["--set policy=[april, sagc]", "--set seed=null"]


def test_its_changes_are_keys_that_make_it_fit(call: Call, path: Path, tmp_path: Path) -> None:
    small = ("--set", "gpu=a100-40gb", "--set", "cluster.replicas=4")
    code, out, _ = call("check", path, *small, "--json", "--out", tmp_path / "checked")
    said = json.loads(out)
    assert (code, said["fits"]) == (3, False)
    assert said["changes"]
    for change in said["changes"][:2]:
        words = [word for line in change["lines"] for word in line.split(" ", 1)]
        assert words[::2] == ["--set"] * len(change["lines"])
        _, out, _ = call("check", path, *small, *words, "--no-changes", "--json")
        changed = json.loads(out)
        assert changed["fits"]
        assert changed["fits_probability"] == change["fits_probability"]
        assert round(changed["peak"]["bytes"]) == change["peak_bytes"]
    kept = tmp_path / "checked" / "scenario.yaml"
    assert "mine.yaml, line 4" in kept.read_text("utf-8")
    again = json.loads(call("check", kept, "--no-changes", "--json")[1])
    assert again["phases"] == said["phases"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "h100-sxm"], "--gpu: is of a launch; in a scenario"),
        (["--mean-tokens", "9"], "--mean-tokens: is of a launch"),
        (["--set", "workload.lenths=3"], "did you mean lengths"),
    ],
)
def test_what_it_cannot_answer(call: Call, path: Path, words: list[str], message: str) -> None:
    error = refused(call("check", path, *words))
    assert message in error


def test_costs_without_memory_are_told(call: Call) -> None:
    code, _, error = call("check", ROOT / "examples" / "engine.yaml")
    assert (code, error.count("\n")) == (2, 1)
    assert "cost: counts no memory; one of model and gpu" in error


def test_a_key_that_is_wrong_is_named_with_its_line(call: Call, path: Path) -> None:
    path.write_text(TEXT.replace("replicas: 8", "replicas: none"), "utf-8")
    code, _, error = call("check", path)
    assert (code, "mine.yaml, line 3" in error) == (2, True)


def test_modules_that_a_file_names_are_not_imported(call: Call, path: Path) -> None:
    path.write_text(TEXT + "policy: [{'mine:Odd': {}}]\n", "utf-8")
    code, _, error = call("check", path)
    assert (code, "add --trust-modules" in error) == (2, True)


def test_the_scenario_of_the_page_on_gpus_fits(call: Call, path: Path) -> None:
    page = (ROOT / "docs" / "gpus.md").read_text("utf-8")
    scenarios = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (scenario,) = [text for text in scenarios if "device: cuda" in text]
    workload: dict[str, Any] = {"batch_groups": 8, "group_size": 8, "max_new_tokens": 4096}
    workload["prompt_tokens"] = 256
    workload["lengths"] = {"mean_tokens": 1200}
    path.write_text(f"{scenario}workload: {json.dumps(workload)}\nsteps: 1\n", "utf-8")
    code, out, error = call("check", path, "--no-changes", "--json")
    assert code == 0, error
    assert json.loads(out)["fits"]
