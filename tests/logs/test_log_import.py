"""``rollcast import``: what it prints and writes, and that it writes whole or not at all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rollcast.calibration.logs.draft import draft, lengths_table
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.launches.parts import Part, given, missing, replaced, to_yaml
from rollcast.simulator.studies.simulate import load
from tests.logs import written
from tests.running import exit_code


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    written.verl_file(folder / "run.jsonl", written.run())
    (folder / "console.log").write_text(written.VERL_CONFIG + "\n")
    return folder


def test_a_run_becomes_a_scenario(
    verl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    assert exit_code("import", verl, "--out", out, "--gpu", "h100-sxm") == 0
    said = capsys.readouterr()
    assert "L1: metrics of each step" in said.out
    assert "trainer.rollout_data_dir" in said.out  # how the next level is had
    assert "could not read" in said.out
    assert f"wrote {out}/" in said.err
    names = ["fitted.json", "import.json", "report.html", "scenario.yaml", "steps.csv"]
    assert sorted(p.name for p in out.iterdir()) == names
    text = (out / "scenario.yaml").read_text()
    for line in text.splitlines():
        assert line.endswith(":") or "#" in line, line  # every value says where it is from
    assert "batch_groups: 4  # data.train_batch_size in" in text
    assert "console.log, line 9" in text
    scenario = load(out / "scenario.yaml")
    raw = scenario.raw.data
    assert raw["model"] == "qwen3-8b"
    assert raw["cluster"] == {
        "tensor_parallel": 2,
        "replicas": 4,
        "placement": "colocated",
        "trainer_gpus": 8,
    }
    assert raw["workload"]["group_size"] == 2
    assert raw["workload"]["max_new_tokens"] == 200
    assert raw["policy"] == []
    content = json.loads((out / "import.json").read_text())
    assert content["schema"] == "rollcast-log/1"
    assert content["settings"]["workload.group_size"]["theirs"] == "actor_rollout_ref.rollout.n"
    assert content["settings"]["workload.group_size"]["line"] == 5


def test_the_scenario_of_dumped_tokens_runs(tmp_path: Path) -> None:
    written.nemo_dump(tmp_path / "log", written.run())
    out = tmp_path / "mine"
    given = ("--gpu", "h100-sxm", "--model", "qwen3-0.6b", "--no-advise")
    assert exit_code("import", tmp_path / "log", "--out", out, *given) == 0
    assert (out / "lengths.csv").exists()
    assert exit_code("simulate", out / "scenario.yaml", "--set", "steps=3") == 0


def test_as_json(verl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("import", verl, "--json", "--no-advise") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["stack"], content["level"], content["unread"]) == ("verl", 1, 0)
    assert all(f["lines"] == f["used"] + f["other"] + f["unread"] for f in content["files"])


def test_what_is_refused_leaves_nothing(
    verl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "other.log"
    bad.write_text("nothing of a trainer\n")
    assert exit_code("import", bad, "--out", tmp_path / "mine") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: LOG: {bad}, line 1: the file ends without a single step")
    assert said.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.log", "run"]
    assert exit_code("import", verl, "--stack", "nemo") == 2
    assert "no stack is called 'nemo'" in capsys.readouterr().err
    assert exit_code("import") == 2
    capsys.readouterr()
    for option, said in (("--model", "did you mean"), ("--gpu", "presets gpus lists")):
        assert exit_code("import", verl, option, "qwn3", "--out", tmp_path / "mine") == 2
        assert re.match(rf"error: {option}: .*({said})", capsys.readouterr().err)
        assert not (tmp_path / "mine").exists()


def test_a_folder_is_replaced_only_if_it_is_an_import(
    verl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine"
    assert exit_code("import", verl, "--out", out, "--no-advise") == 0
    assert exit_code("import", verl, "--out", out) == 2
    assert "holds another import; add --force" in capsys.readouterr().err
    assert exit_code("import", verl, "--out", out, "--force", "--no-advise") == 0
    (out / "notes.txt").write_text("mine")
    assert exit_code("import", verl, "--out", out, "--force") == 2
    assert "holds files that no import wrote" in capsys.readouterr().err
    assert (out / "notes.txt").read_text() == "mine"
    assert exit_code("import", verl, "--out", verl, "--force") == 2
    assert (verl / "run.jsonl").exists()


def test_a_full_disk_leaves_what_stood_there(
    verl: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rollcast.calibration.logs import write

    out = tmp_path / "mine"
    assert exit_code("import", verl, "--out", out, "--no-advise") == 0
    before = (out / "steps.csv").read_bytes()

    def full(path: Path, value: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "write_json", full)
    assert exit_code("import", verl, "--out", out, "--force", "--no-advise") == 2
    assert (out / "steps.csv").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "run"]


def test_the_command_line_starts_without_any_of_it() -> None:
    code = (
        "import sys; from rollcast.calibration.cli import register; import typer; "
        "register(typer.Typer()); print(sorted(m for m in sys.modules if "
        "m.startswith(('rollcast.calibration.logs', 'pandas', 'yaml', 'torch'))))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ)
    )
    assert found.stdout.strip() == "[]", found.stderr


# The draft


@pytest.mark.parametrize(
    ("path", "preset"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("/models/Qwen2.5-7B-Instruct/", "qwen2.5-7b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),  # of its shape
        ("deepseek-ai/DeepSeek-R1-Distill-Yi-9B", None),  # another model altogether
        ("Qwen/Qwen3-8", None),
        ("/checkpoints/mine", None),
    ],
)
def test_models_by_the_last_part_of_their_path(
    tmp_path: Path, path: str, preset: str | None
) -> None:
    written.verl_file(tmp_path / "a.jsonl", written.run())
    (tmp_path / "overrides.yaml").write_text(
        f"- actor_rollout_ref.model.path={path}\n- trainer.nnodes=1\n- trainer.n_gpus_per_node=8\n"
    )
    parts = draft(read_log([tmp_path]))
    [model] = [part for part in parts if part.key == "model"]
    assert model.value == preset
    assert ("model" in [part.key for part in missing(parts)]) == (preset is None)


@pytest.mark.parametrize("strange", ["auto", "-1", "0", "1.5", "true", "[8]", "{a: 1}", "1e400"])
def test_settings_that_no_scenario_can_hold_are_left_out(tmp_path: Path, strange: str) -> None:
    written.verl_file(tmp_path / "a.jsonl", written.run())
    rollout = "actor_rollout_ref: {rollout: {n: X, tensor_model_parallel_size: X, max_num_seqs: X, "
    (tmp_path / "config.yaml").write_text(
        (
            rollout + "enable_prefix_caching: X}}\ndata: {train_batch_size: X, "
            "max_response_length: X}\ntrainer: {nnodes: X, n_gpus_per_node: X}\n"
        ).replace("X", strange)
    )
    parts = draft(read_log([tmp_path]), given("qwen3-0.6b", "h100-sxm"))
    (tmp_path / "scenario.yaml").write_text(to_yaml(parts))
    load(tmp_path / "scenario.yaml")


def test_parts_are_replaced_by_what_is_fitted(verl: Path) -> None:
    parts = draft(read_log([verl]), given(gpu="h100-sxm"))
    fitted = Part("workload.lengths", {"file": "fitted.json"}, "fitted")
    cost = Part("cost.file", "fitted.json", "fitted")
    changed = replaced(parts, (fitted, cost))
    data = yaml.safe_load(to_yaml(changed))
    assert data["workload"]["lengths"] == {"file": "fitted.json"}
    assert data["cost"] == {"file": "fitted.json"}
    assert [p for p in parts if not p.key.startswith("workload.lengths")] == [
        p for p in changed if p not in (fitted, cost)
    ]


def test_a_comment_cannot_become_a_key() -> None:
    parts = (Part("name", "a: b # c\nd", "said in\nevil: 1"), Part("steps", 3, "x\u2028y: 2"))
    assert yaml.safe_load(to_yaml(parts)) == {"name": "a: b # c\nd", "steps": 3}


def test_only_whole_groups_become_a_trace(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "group": g, "index": i, "new_tokens": 10 + i, "prompt_tokens": 4}
        for g in range(4)
        for i in range(3 if g else 2)
    ]
    table = lengths_table(read_log([written.lines(tmp_path / "a.jsonl", rows)]))
    assert table["group"].nunique() == 3
    assert set(table.columns) == {"group", "index", "prompt_tokens", "new_tokens"}
    rows[0]["new_tokens"] = None  # type: ignore[assignment]
    assert lengths_table(read_log([written.lines(tmp_path / "b.jsonl", rows)])) is None


def test_dumps_alone_do_not_say_that_anything_overlapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(written.nemo_dump(tmp_path / "mine", written.run()))
    log = read_log([Path()])
    assert log.name == "mine"
    assert not log.overlapped
    parts = {part.key: part.value for part in draft(log)}
    assert parts["policy"] == []
    assert parts["cluster.placement"] == "colocated"
