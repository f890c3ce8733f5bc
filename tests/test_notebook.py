"""The notebooks run, from the committed measurements, and keep their pictures."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.calibration import kept

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = {
    "calibrate_and_confirm.ipynb": {
        "DRAWS = 20": "DRAWS = 1",
        "SEEDS = (0, 1, 2)": "SEEDS, NAMES = (0,), {name: name for name in ('sync', 'april')}",
        "for s in (3, 4, 5)": "for s in (3,)",
        ', RUNS / "april-again-0"]': "]",
        '("sync", "april", "pods")': '("pods",)',
        '("sync", "april", "all")': '("all",)',
        'RUNS.glob("*-*")': 'RUNS.glob("*-1")',
    },
    "learning.ipynb": {"draws=200": "draws=20", "for run in RUNS:": "for run in RUNS[::4]:"},
    "overlap.ipynb": {
        "DRAWS = 4": "DRAWS = 1",
        "not in SYNC)": "not in SYNC)[::4]",
        "(fitted, [*SYNC, *HELD]": "(fitted, [SYNC[0], *HELD]",
    },
}
"""What a test replaces in the code: fewer draws and runs."""


def cells(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / name).read_text("utf-8"))["cells"]
    return found


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_was_executed_in_order_and_pictures_are_kept(name: str) -> None:
    executed = [cell for cell in cells(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in executed] == list(range(1, len(executed) + 1))
    outputs = [output for cell in executed for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error"]
    pictures = [o for o in outputs if "image/png" in o.get("data", {})]
    assert len(pictures) >= 3


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_code_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer draws and runs."""
    import matplotlib

    matplotlib.use("agg")
    lines = []
    for cell in cells(name):
        if cell["cell_type"] == "code":
            lines += [line for line in cell["source"] if not line.startswith("%")] + ["\n"]
    source = "".join(lines)
    for written, tried in NOTEBOOKS[name].items():
        assert written in source
        source = source.replace(written, tried)
    space: dict[str, Any] = {"display": print}
    with kept.undrawn():
        exec(compile(source, name, "exec"), space)
    content = space["content"]
    assert content.get("ranking", content)["pairs"]
