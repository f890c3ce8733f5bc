"""Defects of published control planes: red before their fix and green after it, where their clones
are here. ROLLCAST_CLONES names a folder with git clones called slime, areal, skyrl, ..."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.virtual.test_pytest_plugin import run_pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "control_planes" / "defects.py"
CLONES = os.environ.get("ROLLCAST_CLONES")


@pytest.mark.skipif(CLONES is None, reason="no clones: set ROLLCAST_CLONES")
def test_each_is_red_before_its_fix_and_green_after_it() -> None:
    done = subprocess.run([sys.executable, SCRIPT, str(CLONES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(CLONES is None, reason="no clones: set ROLLCAST_CLONES")
def test_a_defect_of_slime_is_minimised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    from defects import extract  # type: ignore[import-not-found]

    extract(Path(str(CLONES)) / "slime", "fb393e59c", ("slime",), tmp_path / "slime")
    monkeypatch.setenv("ROLLCAST_CHECKOUTS", str(tmp_path))
    options = ["--rollcast", "--rollcast-out", str(tmp_path / "out"), "-k", "arrives"]
    said = run_pytest(tmp_path, str(SCRIPT.with_name("test_slime.py")), *options)
    assert "1 step of 1 group of 1 rollout; answers of 1 token; requests arrive after 0 s" in said
    assert "3 of 8 units are lost" in said
    [folder] = (tmp_path / "out").iterdir()
    kept = {path.name for path in folder.iterdir()}
    assert kept == {"journal.txt", "smallest.txt", "timeline.png", "trace.json.gz"}


@pytest.mark.parametrize(
    ("given", "said"), [([], "clones"), (["/tmp", "slime-1"], "slime-1 is none of slime-2238, ")]
)
def test_what_is_not_understood_is_told(given: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, SCRIPT, *given], capture_output=True, text=True)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_checkout_that_does_not_run_is_neither_red_nor_green(tmp_path: Path) -> None:
    for commit in ("2238", "1.16.0"):
        (tmp_path / f"trl-{commit}" / "trl").mkdir(parents=True)
    (tmp_path / "trl").mkdir()
    (tmp_path / "trl-f2cd57710").mkdir()
    done = subprocess.run([sys.executable, SCRIPT, tmp_path, "trl-5650"], capture_output=True)
    assert done.returncode == 1
    assert b"f2cd57710  broken" in done.stdout


def test_what_is_not_here_is_skipped_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "slime-2238"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"slime-2238      skipped: no {tmp_path / 'slime'}" in done.stdout
