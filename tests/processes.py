"""Processes that tests start."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence


def started(argv: Sequence[str]) -> subprocess.Popen[str]:
    """One whose output is read, and that signals end."""
    return subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_signals,
    )


def _heed_signals() -> None:
    """A shell starts what it puts into the background with SIGINT ignored; its children too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
