"""An engine of a real run is chosen by its name; another one is a module and a line."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.engines import ENGINES, EngineStart
from rollcast.engine.start import channel, start_replica
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import parse_scenario
from tests.refusals import refuses

SCENARIO = """\
cluster: {placement: colocated, replicas: 1}
engine: {name: abacus, max_seqs: 8, block_tokens: 32, kv_tokens: 4096, task: {name: collatz}}
workload: {batch_groups: 2, group_size: 2, max_new_tokens: 24}
"""


def spec(text: str = SCENARIO) -> RunSpec:
    return build_run(parse_scenario(text, name="scenario.yaml"))


def test_another_engine_is_a_module_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EngineStart] = []
    checked: list[Any] = []
    module = SimpleNamespace(
        prepare=lambda local_files: None,
        runs_on=lambda kind: kind == "cpu",
        check=lambda section, cluster: checked.append(section),
        start=asked.append,
        wire=lambda: "beads",
    )
    monkeypatch.setitem(sys.modules, "abacus.adapter", module)  # type: ignore[arg-type]
    monkeypatch.setitem(ENGINES, "abacus", "abacus.adapter")
    started = spec()
    assert [section.max_seqs for section in checked] == [8]
    start_replica(started, Path("model"))
    assert [(one.model, one.section, one.seed) for one in asked] == [
        (Path("model"), started.engine, started.seed)
    ]
    assert channel(started) is None


def test_an_engine_that_there_is_not() -> None:
    with pytest.raises(ScenarioError, match="no engine of a real run; known: vllm, transformers"):
        spec()


def test_an_engine_says_what_it_does_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollcast.engine.vllm.environment.vllm_version", lambda: ("0.32.0", True))
    text = SCENARIO.replace("name: abacus, ", "").replace("block_tokens: 32", "block_tokens: 8")
    with refuses("engine.block_tokens", "vLLM on a CPU needs a multiple of 32"):
        spec(text)
