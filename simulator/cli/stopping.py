"""Long work that shows its progress and ends when a signal asks for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOPS = tuple(  # those that this system has
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Stopped(BaseException):
    """A signal asked the run to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_stop_asked: list[Stopped] = []


def keep_on(_: Any) -> None:
    """Stops where a signal asked for it and its exception got lost: one that is raised in a
    callback of the interpreter, or below a bare ``except`` of some library, is swallowed."""
    if _stop_asked:
        raise _stop_asked[0]


@contextmanager
def stoppable() -> Iterator[None]:
    """Turns the signals that end a process into `Stopped`, so that what is half-written goes; a
    second one does not interrupt that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        for caught in _STOPS:
            signal.signal(caught, signal.SIG_IGN)
        _stop_asked.append(Stopped(number))
        raise _stop_asked[0]

    before = {number: signal.getsignal(number) for number in _STOPS}
    try:
        for caught in _STOPS:
            if before[caught] is not signal.SIG_IGN:  # under nohup, a hangup stays ignored
                signal.signal(caught, stop)
        yield
    finally:
        _stop_asked.clear()
        for caught, handler in before.items():
            signal.signal(caught, handler)


@contextmanager
def progress(label: str, steps: int) -> Iterator[Any]:
    """A progress bar on a terminal, nothing in a pipe; to be called after each step."""
    from rollcast.simulator.cli.progress import progress_bar

    with progress_bar(label or "steps", steps) as update:

        def advance(record: Any) -> None:
            keep_on(record)
            if update is not None:
                update(advance=1)

        yield advance


@contextmanager
def stages() -> Iterator[Any]:
    """Progress of work in stages: on a terminal, with the time left; nothing in a pipe. To be
    called with the stage, what of it is done, and of how many."""
    from rollcast.simulator.cli.progress import progress_bar

    with progress_bar("", None, left=True, text="") as update:

        def on_progress(what: str, done: int, of: int) -> None:
            keep_on(None)
            if update is not None:
                update(completed=done, total=of, said=what)

        yield on_progress
