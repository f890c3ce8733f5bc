"""Logs that real trainers left, where they are at hand; they are not part of the repository."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("ROLLCAST_DATA", Path(__file__).parents[3] / "shared" / "data"))


def log(name: str) -> Path:
    """A log of the folder ``runs``. Skips the test where it is not there."""
    path = ROOT / "runs" / name
    if not path.exists():
        pytest.skip(f"there are no genuine logs at {ROOT / 'runs'} (set ROLLCAST_DATA)")
    return path
