"""What tests do to processes that they start."""

from __future__ import annotations

import signal


def heed_signals() -> None:
    """A shell starts what it puts into the background with SIGINT ignored; its children too."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
