"""Folders of a running process. Where it is killed, the next one removes them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

_LOCK = "driver.lock"


class OwnFolder:
    """A new folder, and a file in it that stays locked while this process lives. Folders of the
    same prefix in ``parent`` whose processes have ended are removed first. Raises OSError."""

    def __init__(self, parent: Path, prefix: str) -> None:
        for path in parent.glob(f"{prefix}*/{_LOCK}"):
            with suppress(OSError), path.open("rb") as lock:  # locked, or another user's
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        draft = self.path / f"{_LOCK}.new"
        self._lock = draft.open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        draft.rename(self.path / _LOCK)  # never seen unlocked

    def close(self) -> None:
        """Removes it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()
