"""Looks, in real time, whether the thread whose turn it is ever gives way."""

from __future__ import annotations

import ctypes
import sys

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.errors import LimitError
from rollcast.simulator.virtual.kernel import Kernel
from rollcast.simulator.virtual.report import of_thread

LOOKS_A_LIMIT = 8


class Watchdog:
    """A real thread. limit_s: real seconds without an event; None: looks at nothing."""

    def __init__(self, kernel: Kernel, limit_s: float | None) -> None:
        self._kernel, self._limit_s = kernel, limit_s
        self._stop = real.allocate_lock()
        self._stop.acquire()

    def start(self) -> None:
        """Begins to look."""
        if self._limit_s is not None:
            real.start_new_thread(self._run, ())

    def stop(self) -> None:
        """Looks no more."""
        self._stop.release()

    def _run(self) -> None:
        limit_s, kernel = self._limit_s, self._kernel
        assert limit_s is not None
        seen, since = -1, real.monotonic()
        while not self._stop.acquire(timeout=limit_s / LOOKS_A_LIMIT):
            now = real.monotonic()
            if kernel.events != seen:
                seen, since = kernel.events, now
            elif now - since > limit_s and not kernel.over:
                self._end(limit_s)
                return

    def _end(self, limit_s: float) -> None:
        kernel = self._kernel
        actor = kernel.current
        error = LimitError(
            f"at {kernel.now_s:g} s a thread has gone on for {limit_s:g} s of real time without "
            f"giving way: it computes, or blocks in a call that is not virtual"
            f"{of_thread(actor.ident)}"
        )
        kernel.verdict = kernel.verdict or error
        if actor is not kernel.main:
            kernel.main.error = error
            kernel.wake(kernel.main)
        # A thread can only be thrown a class, without arguments.
        said = {"__init__": lambda self: LimitError.__init__(self, str(error))}
        kind = type("LimitError", (LimitError,), said)
        ident, thrown = ctypes.c_ulong(actor.ident), ctypes.py_object(kind)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, thrown)
        print(f"rollcast: {error}", file=sys.stderr)
