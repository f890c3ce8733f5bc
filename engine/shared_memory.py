"""Where files are in memory that all processes of a machine share."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

SHARED = Path("/dev/shm")


def root(room_bytes: float) -> Path:
    """A folder in shared memory, or the machine's temporary one where that has less room free."""
    try:
        free = shutil.disk_usage(SHARED).free
    except OSError:
        free = 0
    return SHARED if free > room_bytes else Path(tempfile.gettempdir())
