"""Calls of environments beside the engine, each in a thread: they wait more than they compute."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Protocol

Job = Callable[[], Any]


class Runner(Protocol):
    """Runs jobs beside the caller."""

    def timer(self) -> float:
        """The clock of jobs, seconds."""
        ...

    def start(self, ticket: Hashable, job: Job) -> None:
        """Starts a job, which raises nothing."""
        ...

    def ended(self) -> list[tuple[Any, Any]]:
        """(ticket, result) of the jobs that ended since the last call."""
        ...

    def wait(self, seconds: float) -> None:
        """Returns once a job has ended, or after ``seconds``."""
        ...


class Threads:
    """Reused threads, one a job. One whose job never ends does not keep the process alive."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Hashable, Job]] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._seen: list[tuple[Any, Any]] = []
        self._lock = threading.Lock()
        self._idle = 0

    def timer(self) -> float:
        """The wall clock."""
        return time.perf_counter()

    def start(self, ticket: Hashable, job: Job) -> None:
        """Gives it to an idle thread, or a new one."""
        with self._lock:
            idle = self._idle > 0
            self._idle -= idle
        self._jobs.put((ticket, job))
        if not idle:
            threading.Thread(target=self._serve, name="environment", daemon=True).start()

    def ended(self) -> list[tuple[Any, Any]]:
        """See `Runner`."""
        ended, self._seen = self._seen, []
        while True:
            try:
                ended.append(self._done.get_nowait())
            except queue.Empty:
                return ended

    def wait(self, seconds: float) -> None:
        """See `Runner`; a second at most, so that signals are handled."""
        if seconds <= 0 or self._seen:
            return
        try:
            self._seen.append(self._done.get(timeout=min(seconds, 1.0)))
        except queue.Empty:
            return

    def _serve(self) -> None:
        while True:
            ticket, job = self._jobs.get()
            result = job()
            with self._lock:
                self._idle += 1
            self._done.put((ticket, result))
