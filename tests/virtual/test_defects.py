"""Defects of published control planes: red before their fix and green after it, where their clones
are here. ROLLCAST_CLONES names a folder with git clones called slime, areal, skyrl, ..."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "control_planes" / "defects.py"
CLONES = os.environ.get("ROLLCAST_CLONES")


@pytest.mark.skipif(CLONES is None, reason="no clones: set ROLLCAST_CLONES")
def test_each_is_red_before_its_fix_and_green_after_it() -> None:
    done = subprocess.run([sys.executable, SCRIPT, str(CLONES)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_not_here_is_skipped_by_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "slime-2238"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert f"slime-2238      skipped: no {tmp_path / 'slime'}" in done.stdout
