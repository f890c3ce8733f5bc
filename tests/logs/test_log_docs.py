"""docs/importing.md says what is so."""

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from rollcast.calibration.logs.columns import TABLES
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.logs.readers import readers
from tests.logs import written

TEXT = (Path(__file__).parents[2] / "docs" / "importing.md").read_text("utf-8")


def test_the_page_names_every_stack_and_no_column_that_there_is_not() -> None:
    told = re.findall(r"^\| `(\w+)` \| .* \| L\d", TEXT, re.MULTILINE)
    assert sorted(told) == sorted(reader.name for reader in readers())
    names = {column.name for table in TABLES for column in table.columns}
    meant = re.findall(r"`(\w+_(?:s|tokens|share|inside|unsure|generation))`", TEXT)
    assert set(meant) <= names | {"outside_step_s"}


def test_the_recipe_for_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    truth = written.run()
    rows = [
        {
            "_step": t.step,
            "time/total": t.step_s,
            "time/rollout": t.generation_s,
            "time/update": t.update_s,
            "tokens/mean": t.mean,
            "tokens/max": max(t.flat),
            "tokens/cut": t.cut,
            "loss": 1.0,
        }
        for t in truth
    ]
    fake = ModuleType("wandb")
    run = SimpleNamespace(scan_history=lambda: [*rows, {"_step": 9, "eval": 1.0}])
    fake.Api = lambda: SimpleNamespace(run=lambda name: run)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.chdir(tmp_path)
    [code] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len(code.strip().splitlines()) <= 10
    exec(compile(code, "importing.md", "exec"), {})
    log = read_log([tmp_path / "steps.csv"])
    assert (log.stack, log.level) == ("table", 1)
    assert log.steps["step_s"].tolist() == [t.step_s for t in truth]
    assert log.steps["truncated_share"].tolist() == [t.cut for t in truth]
