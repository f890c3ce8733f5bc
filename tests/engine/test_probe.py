"""``rollcast probe`` with the real trainer."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (engine/engine-cpu.lock)")

from running import set_up
from typer.testing import CliRunner

from engine import probe
from engine.probe import shapes


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "BATCH_TOKENS", (300, 600))


def test_shapes_fill_their_budgets_and_fit_the_context() -> None:
    found = shapes(own_prompt_tokens=6, context_tokens=600, longest=200)
    assert {shape.prompt_tokens for shape in found} == {6, 128}
    assert {shape.shared_prefix for shape in found} == {False, True}
    dense = [shape for shape in found if not shape.shared_prefix]
    assert 2 * len(dense) == len(found) == len(set(found))
    for shape in dense:
        tokens = shape.groups * shape.group_size * (shape.prompt_tokens + shape.response_tokens)
        assert 2_000 < tokens < 14_000


def test_a_probe_calibrates(
    tmp_path: Path, tiny_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import typer

    from calibration.probes import read_probe
    from engine.cli import register

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

    run: Any = SimpleNamespace(
        path=tmp_path, provenance=content["provenance"], scenario={"engine": content["engine"]}
    )
    read = read_probe(tmp_path / "probe.json", run)
    assert len(read) == len(rows)
    assert read.shared.sum() == len(rows) / 2
    assert (read.train_s > 0).all()
