"""Who simulates: this process, or worker processes on its cores.

A worker is a process that reads tasks from a pipe and writes results back, until the pipe ends. One
that dies takes nothing with it but the task at hand, which another gets; a task whose workers die
`MOST_TRIES` times is said to have failed. Results come back in the order of the tasks, whoever did
them, so that the same question has the same answer on any number of workers.
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

Work = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Died:
    """The workers that had a task died of it, each time. problem: a sentence for the user."""

    problem: str


class Workers(Protocol):
    """Does tasks; a context manager."""

    @property
    def count(self) -> int:
        """How many are done at once."""
        ...

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """(number, result) of each task, as they are done."""
        ...

    def __enter__(self) -> Workers:
        """Ready for tasks."""
        ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """All workers end."""
        ...


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # a system without affinities
        return os.cpu_count() or 1


class InProcess:
    """One worker: the process itself."""

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
    """``count`` worker processes, forked when they are first needed, and again where one dies."""

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
        process.start()
        theirs.close()
        return _Worker(process, ours)

    def results(self, tasks: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """As they are done."""
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
        """Puts a new worker in the place of one that died; its exit code."""
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
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
    """Workers on this machine: as many as there are cores where ``count`` is None, none beside this
    process for 1."""
    wanted = cores() if count is None else count
    return InProcess(work) if wanted <= 1 else Processes(work, wanted)
