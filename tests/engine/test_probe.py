"""``rollcast probe`` with the real trainer."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from run_homes import set_up
from typer.testing import CliRunner

from rollcast.engine import probe
from rollcast.engine.probe import bursts


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BATCH_TOKENS", (300, 600))
    monkeypatch.setattr(probe, "ENGINE_ROLLOUTS", (1, 6))


def test_a_probe_calibrates(
    tmp_path: Path, tiny_path: Path, replica: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    from rollcast.calibration.fits.machine_speed import MachineSpeed
    from rollcast.calibration.fits.probes import read_probe
    from rollcast.engine.cli import register

    # One engine at a time can end in a process: the session's own must go on.
    monkeypatch.setattr(probe, "start_replica", lambda spec, path: replica)
    monkeypatch.setattr(replica, "shutdown", lambda: None)
    set_up(tmp_path, tiny_path)
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    register(app)
    done = CliRunner().invoke(app, ["probe", "scenario.yaml", "-o", "probe.json"])
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "probe.json").read_text())
    rows = content["updates"]
    assert {row["layout"] for row in rows} == {"dense", "shared_prefix"}
    for row in rows:
        assert row["total_s"] > 0
        assert row["rollouts"] == sum(len(responses) for _, responses in row["groups"])
        fed = 0
        for prompt, responses in row["groups"]:
            shared = row["layout"] == "shared_prefix" and prompt > 1
            # a response is fed without its last token, a shared prompt without its own
            copies = [n + prompt - 1 for n in responses]
            fed += prompt - 1 + sum(responses) if shared else sum(copies)
        assert row["computed_tokens"] == fed

    seen = {(row["rollouts"], row["prompt_tokens"]) for row in content["bursts"]}
    assert len(content["bursts"]) == probe.ENGINE_REPEATS * len(seen)
    for row in content["bursts"]:
        done = row["iterations"]
        assert sum(done["prefill_tokens"]) == row["rollouts"] * row["prompt_tokens"]
        assert sum(done["prefill_rollouts"]) >= row["rollouts"]
        decoded = sum(done["rollouts"]) - sum(done["prefill_rollouts"])
        assert decoded == row["rollouts"] * (probe.ENGINE_NEW_TOKENS - 1)

    scenario = {"engine": content["engine"]}
    run: Any = SimpleNamespace(
        path=tmp_path,
        provenance=content["provenance"],
        scenario=scenario,
        section=lambda *names: scenario.get(names[0]) or {},
    )
    read = read_probe(tmp_path / "probe.json", run, MachineSpeed(1.0, 1.0))
    assert len(read.updates) == len(rows)
    assert read.updates["shared"].sum() == len(rows) / 2
    assert (read.updates["train_s"] > 0).all()
    assert read.iterations.steps == len(content["bursts"])
    asked = sum(row["pulse"]["short_s"] > 0 for row in content["bursts"])
    assert asked == len(content["bursts"])


def test_bursts_fit_the_context_the_engine_and_its_kv_pool() -> None:
    found = bursts(own_prompt_tokens=6, longest_tokens=120, max_seqs=32, kv_tokens=800)
    assert {burst.prompt_tokens for burst in found} == {6, 8, 32, 96}
    assert {burst.rollouts for burst in found} == {1, 4, 16, 32}
    for burst in found:
        tokens = burst.rollouts * (burst.prompt_tokens + probe.ENGINE_NEW_TOKENS)
        assert burst.rollouts == 1 or tokens <= 800
    assert len(set(found)) == len(found)
