"""Work done in a process beside this one, where the machine has a core for it."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

from rollcast.simulator.planner.workers import cores

T = TypeVar("T")


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Yields what waits for the result of ``work``, which goes on meanwhile in a forked process.
    Where that fails, ``work`` is done anew here, and raises here. Without a second core, or where
    processes cannot be forked, it is done when its result is asked for. What nobody asked for is
    stopped."""
    if cores() < 2 or "fork" not in multiprocessing.get_all_start_methods():
        yield work
        return
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_do, args=(work, there), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of BLAS, which are idle
        child.start()
    there.close()

    def result() -> T:
        try:
            results: list[T] = here.recv()
        except EOFError:  # killed, for its memory perhaps
            results = []
        return results[0] if results else work()

    try:
        yield result
    finally:
        here.close()
        child.kill()  # at once, whatever handlers it has from here
        child.join()


def _do(work: Callable[[], object], there: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process that waits
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        results = [work()]
    except Exception:  # raised where it is asked for: not every error can be sent
        results = []
    there.send(results)
