"""examples/own_task: what its README promises of prompts, reward and model, run as it stands but
for the model, which is a tiny one."""

import csv
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from run_homes import Home, lend

from rollcast.calibration.logs.formats.events import events
from rollcast.engine.config import build_run
from rollcast.engine.tasks.custom import FileTask
from rollcast.engine.tasks.tokenizer import build_tokenizer
from rollcast.simulator.results.schema import BOARD
from rollcast.simulator.scenario.file import override, read_scenario
from rollcast.simulator.studies.simulate import load, simulate

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_task"
STEPS = 2


@pytest.fixture(scope="module")
def model(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer that has a chat template, as any chat model's has."""
    folder = tmp_path_factory.mktemp("own") / "model"
    shutil.copytree(tiny_path, folder)
    tokenizer = build_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    tokenizer.save_pretrained(folder)
    return folder


def test_it_runs(
    model: Path, tmp_path: Path, tiny_model: Any, replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder: the reward function is found beside the scenario."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the run adds the scenario's folder
    home, out = Home(tmp_path, replica), tmp_path / "out"
    lend(home, tiny_model, monkeypatch)
    sizes = ("workload.max_new_tokens=24", "workload.batch_groups=2", f"steps={STEPS}")
    settings = [f"--set={one}" for one in (*sizes, f"engine.model={model}")]
    assert home.run(*settings, scenario=EXAMPLE / "own_task.yaml") == 0
    with (out / "rollouts.csv").open() as file:
        rewards = [float(row["reward"]) for row in csv.DictReader(file)]
    assert len(rewards) == STEPS * 2 * 4
    assert set(rewards) <= {0.0, 1.0}
    with (out / BOARD.name).open("rb") as file:
        told = [event.step for event in events(file) if event.tag == "reward/accuracy"]
    assert told == list(range(STEPS))


def test_the_scenario_is_sound_as_it_stands() -> None:
    spec = build_run(read_scenario(EXAMPLE / "own_task.yaml"))
    assert spec.model == "Qwen/Qwen3-0.6B"
    assert spec.in_process
    result = simulate(load(EXAMPLE / "own_task.yaml", "steps=1"))
    assert result.run.ledger.balance == 0


def test_prompts_are_as_the_readme_says(model: Path) -> None:
    spec = build_run(override(read_scenario(EXAMPLE / "own_task.yaml"), [f"engine.model={model}"]))
    assert spec.task.prompts is not None
    task = FileTask(
        spec.task.prompts, spec.task.reward, model, max_new_tokens=8, chat=True, folder=EXAMPLE
    )
    rows = [json.loads(line) for line in (EXAMPLE / "prompts.jsonl").read_text().splitlines()]
    assert all(set(row) == {"prompt", "answer"} for row in rows)
    held_out = {prompt.text for prompt in task.held_out(len(rows))}
    trained = [task.prompt(group, 0).text for group in range(len(rows) - len(held_out))]
    assert sorted([*trained, *held_out]) == sorted(row["prompt"] for row in rows)
    assert 0.04 < len(held_out) / len(rows) < 0.25
    asked = task.prompt(0, 0)
    assert task.decode(asked.token_ids).startswith("<user>What is ")
    assert float(task.reward(asked, f"perhaps 7, no, {asked.answer}")) == 1.0
    assert float(task.reward(asked, f"{asked.answer}, or {asked.answer + 1}")) == 0.0


def test_the_function_of_the_readme_is_the_one_that_runs() -> None:
    text = (EXAMPLE / "README.md").read_text("utf-8")
    (signature,) = re.findall(r"^def (\w+)\((.*)\) -> float", text, re.MULTILINE)
    function = runpy.run_path(str(EXAMPLE / "sum_rewards.py"))[signature[0]]
    names = [part.split(":")[0].strip() for part in signature[1].split(",")]
    assert list(function.__code__.co_varnames[: function.__code__.co_argcount]) == names
    assert function("", "no number", 3) == 0.0
