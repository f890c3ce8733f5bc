"""`clock`: the way in. Puts a kernel under Python's clocks, locks, threads and event loops, and
takes it out again. `Watchdog` looks, in real time, whether the thread whose turn it is ever gives
way."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Literal

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.errors import LimitError, Stopped, UnseenError, VirtualError
from rollcast.simulator.virtual.install import Installation
from rollcast.simulator.virtual.kernel import Bounds, Kernel, Source
from rollcast.simulator.virtual.pace import Pace
from rollcast.simulator.virtual.report import of_thread

_active: list[Kernel] = []


class Clock:
    """The clock of a run.

    warnings: sentences about code that stops the clock's other users, each once.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.warnings: list[str] = []

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self.kernel.now_s

    @property
    def ticks(self) -> int:
        """The same in the simulator's ticks."""
        return self.kernel.now

    @property
    def events(self) -> int:
        """Hand-overs between threads, rounds of event loops and jumps of the clock so far."""
        return self.kernel.events

    @property
    def deaths(self) -> list[str]:
        """Tasks and threads that died of an exception which nobody has looked at."""
        return self.kernel.deaths()

    def waiting(self) -> str:
        """Who waits for what, and where: a line for each thread and task."""
        from rollcast.simulator.virtual.report import who_waits

        return who_waits(self.kernel)

    def call_at(self, seconds: float, call: Callable[[], None]) -> None:
        """Calls ``call``, which must not wait, at that virtual instant: for faults of a test."""
        from rollcast.simulator.costs.clock import to_ticks

        self.kernel.call_at(to_ticks(seconds), call)

    def attach(self, source: Source) -> None:
        """Has simulated engines make things happen too. Raises VirtualError for a second fleet."""
        if self.kernel.source is not None:
            raise VirtualError("this clock has engines already: one fleet a run")
        self.kernel.source = source

    def warn(self, sentence: str) -> None:
        """Notes a sentence, once."""
        if sentence not in self.warnings:
            self.warnings.append(sentence)


@contextmanager
def clock(
    seed: int = 0,
    *,
    virtual_s: float | None = None,
    real_s: float | None = None,
    events: int | None = None,
    blocked_s: float | None = 60.0,
    fresh: Collection[str] = (),
    unseen: Literal["raise", "keep"] = "raise",
    pace: Pace | None = None,
) -> Iterator[Clock]:
    """Virtual time for all that happens inside, in this thread and those that it starts.

    seed: of the order in which those run who are ready at once. 0 takes the order in which they
        became so. With others, threads also change places where they release a lock. The same seed
        gives the same run.
    virtual_s, real_s, events: bounds of the run, in virtual and real seconds, and in hand-overs,
        rounds of loops and jumps.
    blocked_s: real seconds after which a thread that gives way to nobody is stopped; None: never.
    fresh: packages that are imported anew, inside and afterwards, with whatever they keep globally.
    unseen: whether tasks and threads that died of an exception at which nobody looked end the run
        with an error, or are only kept in ``deaths``.

    pace: how the clock follows real time, for engines that are served to other processes; None: it
        jumps.

    Raises DeadlockError, LimitError, RefusedError, UnseenError and ExitedError, at the end of the
    block at the latest.
    """
    if _active:
        raise VirtualError("a virtual clock runs already in this process; they cannot be nested")
    kernel = Kernel(seed, Bounds(virtual_s, real_s, events), pace)
    this = Clock(kernel)
    _active.append(kernel)
    installation = Installation(this, fresh)
    watchdog = Watchdog(kernel, blocked_s)
    failure: BaseException | None = None
    try:
        installation.install()
        watchdog.start()
        yield this
    except Stopped as stopped:
        failure = kernel.verdict or stopped
        raise failure from None
    except BaseException as error:
        failure = error
        raise
    finally:
        watchdog.stop()
        deaths = kernel.deaths()
        for loop in kernel.loops:
            loop.abandon()
        kernel.stop_all()
        for loop in kernel.loops:
            loop.bury()
        installation.remove()
        kernel.closed = True
        _active.clear()
        if failure is None and kernel.verdict is not None:
            raise kernel.verdict
        if failure is None and deaths and unseen == "raise":
            raise UnseenError(
                "died of an exception at which nobody looked:\n  " + "\n  ".join(deaths)
            )


def current() -> Clock | None:
    """The clock of the run under way; None outside of one."""
    found: Clock | None = Installation.clock
    return found


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
