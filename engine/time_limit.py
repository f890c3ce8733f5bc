"""A limit on the time that enclosed code may take."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from rollcast.engine.errors import EngineError


class time_limit:  # noqa: N801 - used as a statement: with time_limit(...)
    """Raise EngineError(message) in the enclosed code after ``seconds``; None sets no limit.

    Uses SIGALRM, so it acts in the main thread only, on systems that have that signal, and code
    that never returns to the Python interpreter is not interrupted. It encloses every iteration of
    an engine, so the handler is installed once and stays: setting it anew each time would cost as
    much as all other accounting. Does not nest.
    """

    __slots__ = ("_message", "_seconds")
    _handling = False
    _current = ""

    def __init__(self, seconds: float | None, message: str) -> None:
        in_main_thread = threading.current_thread() is threading.main_thread()
        acts = in_main_thread and hasattr(signal, "SIGALRM")
        self._seconds = seconds if acts else None
        self._message = message

    def __enter__(self) -> None:
        if self._seconds is not None:
            if not time_limit._handling:
                signal.signal(signal.SIGALRM, _on_alarm)
                time_limit._handling = True
            time_limit._current = self._message
            signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *error: object) -> None:
        if self._seconds is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)


def _on_alarm(signum: int, frame: FrameType | None) -> None:
    raise EngineError(time_limit._current)
