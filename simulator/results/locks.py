"""Advisory locks of files; the system frees them when their holder ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rollcast.simulator.errors import RollcastError

try:
    import fcntl
except ImportError:  # a system without such locks: nothing is locked there
    fcntl = None  # type: ignore[assignment]

_LONGEST = 200


def lock_path(path: Path) -> Path:
    """The lock file of ``path``, beside it."""
    return path.with_name(f".{path.name.lstrip('.')[:_LONGEST]}.lock")


@contextmanager
def locked(path: Path, busy: RollcastError) -> Iterator[None]:
    """Holds the lock of ``path`` during the enclosed code.

    Raises ``busy`` if another process holds it, OSError if it cannot be written. Does nothing on
    file systems without locks.
    """
    file = lock_path(path)
    while True:
        handle = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
        try:
            if not _lock(handle):
                raise busy
            if _is(file, handle):
                yield
                return
        finally:  # also where a signal comes while it is locked
            if _is(file, handle) and _lock(handle):
                with suppress(OSError):
                    file.unlink()  # before it is let go: who waits for this file sees it gone
            os.close(handle)


def _lock(handle: int) -> bool:
    """Whether this process has the lock."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # of a file system without locks
        return True
    return True


def _is(file: Path, handle: int) -> bool:
    """Whether the opened file is still there."""
    try:
        return os.path.samestat(os.stat(file), os.fstat(handle))
    except FileNotFoundError:
        return False
