"""Workers: this process, or worker processes that read tasks from pipes.

The task of a worker that dies is repeated, up to `MOST_TRIES` times. Results do not depend on the
number of workers.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol

MOST_TRIES = 3
MOST_WORKERS = 1_024  # processes of this machine
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Work = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Died:
    """All workers of a task died. problem: a sentence for the user."""

    problem: str


class Workers(Protocol):
    """Does tasks; a context manager."""

    @property
    def count(self) -> int:
        """Tasks done at once."""

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number, result) of each task, in order of completion."""

    def __enter__(self) -> Workers:
        """Starts the workers."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Ends the workers."""


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # a system without affinities
        return os.cpu_count() or 1


class InProcess:
    """This process as the only worker."""

    count = 1

    def __init__(self, work: Work) -> None:
        self._work = work

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """In order."""
        for number, task in enumerate(tasks):
            yield number, self._work(task)

    def __enter__(self) -> InProcess:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: int | None = None


class Processes:
    """``count`` worker processes, replaced if they die."""

    def __init__(self, work: Work, count: int) -> None:
        self.count = count
        self._work = work
        self._context = multiprocessing.get_context(
            "fork" if "fork" in multiprocessing.get_all_start_methods() else None
        )
        self._workers: list[_Worker] = []

    def __enter__(self) -> Processes:
        self._workers = [self._started() for _ in range(self.count)]
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.pipe.close()
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()
            worker.process.close()
        self._workers = []

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        others = [worker.pipe for worker in self._workers]
        process = self._context.Process(
            target=_serve, args=(self._work, theirs, [ours, *others]), daemon=True
        )
        # one that is stopped before it has handlers of its own would run those of this process
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()
        return _Worker(process, ours)

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number, result) as tasks complete. Raises errors of the work."""
        waiting, tries = deque(range(len(tasks))), [0] * len(tasks)
        left = len(tasks)
        while left:
            for worker in self._workers:
                if worker.task is None and waiting:
                    worker.task = waiting.popleft()
                    tries[worker.task] += 1
                    with suppress(BrokenPipeError, ConnectionResetError):
                        worker.pipe.send(tasks[worker.task])
            busy = {
                worker.pipe: place
                for place, worker in enumerate(self._workers)
                if worker.task is not None
            }
            for pipe in wait(list(busy)):
                place = busy[pipe]  # type: ignore[index]
                worker = self._workers[place]
                number = worker.task
                assert number is not None
                try:
                    result = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    code = self._replaced(place)
                    if tries[number] < MOST_TRIES:
                        waiting.appendleft(number)
                        continue
                    result = Died(f"its worker died {tries[number]} times ({_ended(code)})")
                worker.task = None
                left -= 1
                if isinstance(result, _Raised):
                    raise result.error
                yield number, result

    def _replaced(self, place: int) -> int | None:
        """Replaces a dead worker; returns its exit code."""
        dead = self._workers[place]
        dead.pipe.close()
        dead.process.join()
        code = dead.process.exitcode
        dead.process.close()
        self._workers[place] = self._started()
        return code


def _ended(code: int | None) -> str:
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"by {signal.Signals(-code).name}"
    return f"with exit code {code}"


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


def _serve(work: Work, pipe: Connection, others: Sequence[Connection]) -> None:
    """A worker's life."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    for other in others:  # ends of pipes that only the parent may hold
        with suppress(OSError):
            other.close()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            try:
                result: Any = work(task)
            except Exception as error:
                result = _Raised(error)
            pipe.send(result)


def local(work: Work, count: int | None = None) -> Workers:
    """Workers on this machine; by default one per core. One is this process."""
    wanted = cores() if count is None else count
    return InProcess(work) if wanted <= 1 else Processes(work, wanted)
