"""Long work that shows its progress and ends when a signal asks for it."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any


@contextmanager
def progress_bar(
    label: str,
    total: int | None,
    *,
    elapsed: bool = True,
    left: bool = False,
    text: str | None = None,
    transient: bool = True,
) -> Iterator[Callable[..., None] | None]:
    """Yields the bar's ``update(advance=1)``, ``update(completed=3, text="...")``, as of
    `rich.progress.Progress.update`; None without a terminal.

    label, text: before and after the bar. elapsed, left: whether to show the time so far and left.
    transient: whether the bar vanishes at its end.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = (
        [TextColumn("{task.description}", markup=False)] if label else []
    )
    columns += [BarColumn(), MofNCompleteColumn()]
    columns += [TimeElapsedColumn()] if elapsed else []
    columns += [TimeRemainingColumn()] if left else []
    columns += [] if text is None else [TextColumn("{task.fields[text]}", markup=False)]
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(label, total=total, text=text)

        def update(**changes: Any) -> None:
            bar.update(task, **changes)

        yield update


_STOPS = tuple(  # those that this system has
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


class Stopped(KeyboardInterrupt):
    """A signal asked the run to stop. Libraries in C let a KeyboardInterrupt pass."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_stop_asked: list[Stopped] = []


def keep_on(_: Any) -> None:
    """Raises `Stopped` again if a library swallowed it."""
    if _stop_asked:
        raise _stop_asked[0]


@contextmanager
def as_asked() -> Iterator[None]:
    """Raises `Stopped` in place of what a library made of it on its way: another error, an exit
    code, nothing."""
    try:
        yield
    finally:
        keep_on(None)


@contextmanager
def until_stopped() -> Iterator[None]:
    """For work that only a signal ends: being stopped is its success."""
    with suppress(Stopped):
        yield
    _stop_asked.clear()


@contextmanager
def stoppable() -> Iterator[None]:
    """Raises `Stopped` on the first signal that ends a process; ignores later ones."""
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
    """A progress bar on a terminal; call after each step."""
    with progress_bar(label or "steps", steps) as update:

        def advance(record: Any) -> None:
            keep_on(record)
            if update is not None:
                update(advance=1)

        yield advance


@contextmanager
def stages() -> Iterator[Any]:
    """Progress of work in stages; call with the stage, tasks done and all tasks."""
    with progress_bar("", None, left=True, text="") as update:

        def on_progress(what: str, done: int, of: int) -> None:
            keep_on(None)
            if update is not None:
                update(completed=done, total=of, text=what)

        yield on_progress
