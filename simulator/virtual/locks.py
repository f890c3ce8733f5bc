"""Locks of virtual time. Conditions, events, semaphores and queues of the standard library are made
of them (`simulator.virtual.install`)."""

from __future__ import annotations

from collections import deque
from typing import Any, ClassVar

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.kernel import Actor, Kernel

_FOREIGN_POLL_S = 0.0005


class Lock:
    """`threading.Lock` on the clock of the run; beyond any run, one of real time."""

    kernel: ClassVar[Kernel | None] = None
    __slots__ = ("__weakref__", "_locked", "_waiting")

    def __init__(self) -> None:
        self._locked = False
        self._waiting: deque[Actor] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As `threading.Lock.acquire`; the timeout is in virtual seconds."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if not self._locked:
            self._locked = True
            return True
        if not blocking or timeout == 0:
            return False
        kernel = self.kernel
        if kernel is None or not kernel.mine():
            return self._acquire_abroad(timeout)
        until = None if timeout < 0 else kernel.after(timeout)
        actor = kernel.current
        if self._waiting is None:
            self._waiting = deque()
        while self._locked:
            self._waiting.append(actor)
            try:
                woken = kernel.block(until, "a lock, a condition or a queue")
            except BaseException:
                self._left(actor)
                raise
            if not woken and self._locked:
                self._left(actor)
                return False
        self._locked = True
        return True

    def _left(self, actor: Actor) -> None:
        if self._waiting is not None and actor in self._waiting:
            self._waiting.remove(actor)

    def _acquire_abroad(self, timeout: float) -> bool:
        """Of a thread that is not of the run, which cannot be handed the turn."""
        end = None if timeout < 0 else real.monotonic() + timeout
        while self._locked:
            if end is not None and real.monotonic() > end:
                return False
            real.sleep(_FOREIGN_POLL_S)
        self._locked = True
        return True

    def release(self) -> None:
        """As `threading.Lock.release`."""
        if not self._locked:
            raise RuntimeError("release unlocked lock")
        self._locked = False
        kernel = self.kernel
        if self._waiting and kernel is not None:
            while self._waiting:
                actor = self._waiting.popleft()
                if actor.blocked:
                    kernel.wake(actor)
                    break
        if kernel is not None and kernel.shuffles and kernel.mine():
            kernel.may_give_way()

    acquire_lock, release_lock = acquire, release

    def locked(self) -> bool:
        """Whether it is held."""
        return self._locked

    def _at_fork_reinit(self) -> None:
        self._locked = False

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._locked else 'unlocked'} virtual lock>"


class Handle:
    """What `threading` of Python 3.13 keeps of a thread that it started."""

    kernel: ClassVar[Kernel]

    def __init__(self) -> None:
        self.ident = 0
        self._done = False
        self._joining: list[Actor] = []

    def is_done(self) -> bool:
        """Whether the thread has ended."""
        return self._done

    def join(self, timeout: float | None = None) -> None:
        """Waits for the end of the thread."""
        kernel = self.kernel
        until = None if timeout is None or timeout < 0 else kernel.after(timeout)
        while not self._done:
            self._joining.append(kernel.current)
            if not kernel.block(until, "a thread's end"):
                return

    def _set_done(self) -> None:
        self._done = True
        for actor in self._joining:
            self.kernel.wake(actor)
        self._joining.clear()
