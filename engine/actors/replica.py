"""A replica in a process of its own: an engine that iterates by itself and takes commands between
two iterations."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from rollcast.engine.actors.machine import machine_name, pin, versions
from rollcast.engine.actors.messages import (
    Abort,
    Aborted,
    Command,
    Connect,
    End,
    Failed,
    Load,
    Loaded,
    Notice,
    Ready,
    Report,
    Sleep,
    Slept,
    Submit,
)
from rollcast.engine.actors.weights import unpack
from rollcast.engine.edges import Engine, OnWire
from rollcast.engine.errors import EngineError, sentence
from rollcast.engine.frontend import EngineFrontend

LOAD_S = 1800.0
"""That weights may take to come, and to be loaded, before a replica's silence counts."""

MOST_ITERATIONS = 4096
"""Iterations without news after which they are reported nevertheless."""


class ReplicaActor:
    """start: makes the engine, in its own thread. cores: that thread is pinned to them, if any."""

    def __init__(self, start: Callable[[], Engine], cores: tuple[int, ...] = ()) -> None:
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._outbox = _Outbox()
        self._since_s: float | None = None  # what it is doing now began
        self._patience_s = 0.0  # that may take so long without being counted
        self._cores = cores
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self._thread.start()

    def post(self, *commands: Command) -> None:
        """Queues commands, carried out before the next iteration."""
        for command in commands:
            self._inbox.put(command)

    def load(self, token: int, weights: object, version: int, sample: list[list[int]]) -> None:
        """`Load`, with its weights as an argument."""
        self.post(Load(token, weights, version, sample))

    def connect(self, where: object) -> None:
        """`Connect`, in the same way."""
        self.post(Connect(where))

    def poll(self, timeout_s: float) -> Report:
        """The notices since the last poll, as soon as there are any."""
        notices = self._outbox.take(timeout_s)
        since_s = self._since_s
        working_s = 0.0 if since_s is None else time.perf_counter() - since_s
        working_s = max(0.0, working_s - self._patience_s)
        return Report(notices, working_s)

    def finish(self, timeout_s: float) -> None:
        """Returns once the engine has ended, or after ``timeout_s``."""
        self._thread.join(timeout_s)

    def clock(self) -> float:
        """This process's clock, seconds."""
        return time.perf_counter()

    def _run(self, start: Callable[[], Engine]) -> None:
        self._since_s = time.perf_counter()
        try:
            if self._cores:
                pin(self._cores)
            engine = start()
        except Exception as error:
            self._outbox.put(Failed(sentence(error), theirs=True))
            return
        self._since_s = None
        limits, tolerance = engine.limits, engine.log_prob_tolerance
        self._outbox.put(Ready(limits, tolerance, machine_name(), versions()))
        try:
            self._serve(EngineFrontend(engine, time.perf_counter))
        except Exception as error:
            self._outbox.put(Failed(sentence(error)))
        finally:
            engine.shutdown()
            self._outbox.wake()

    def _serve(self, frontend: EngineFrontend) -> None:
        while True:
            for command in self._commands(block=not frontend.busy):
                self._since_s = time.perf_counter()
                self._patience_s = LOAD_S if isinstance(command, Load | Connect) else 0.0
                if isinstance(command, End):
                    return
                try:
                    notices = carry_out(frontend, command, time.perf_counter)
                except EngineError as error:
                    if not isinstance(command, Submit):
                        raise
                    self._outbox.put(Failed(str(error), theirs=True))
                    return
                for notice in notices:
                    self._outbox.put(notice)
            if frontend.busy:
                self._since_s, self._patience_s = time.perf_counter(), 0.0
                iterated = frontend.iterate()
                self._outbox.put(iterated, news=bool(iterated.finished))
            self._since_s = None

    def _commands(self, block: bool) -> Iterator[Command]:
        if block:
            yield self._inbox.get()
        while not self._inbox.empty():
            yield self._inbox.get()


def carry_out(
    frontend: EngineFrontend, command: Command, clock: Callable[[], float]
) -> list[Notice]:
    """Carries out a command between two iterations; returns its answer, after the iteration that
    the engine had begun already. clock: seconds. Raises EngineError."""
    if isinstance(command, Submit):
        frontend.wake()
        for order in command.orders:
            frontend.submit(order)
        return []
    iterated = frontend.settle()
    notices: list[Notice] = [] if iterated is None else [iterated]
    if isinstance(command, Abort):
        notices.append(Aborted(command.token, tuple(frontend.abort(command.keys))))
    elif isinstance(command, Sleep):
        frontend.sleep()
        notices.append(Slept(command.token, clock()))
    elif isinstance(command, Load):
        notices.append(_load(frontend, command, clock))
    elif isinstance(command, Connect):
        frontend.engine.connect(command.where)
    return notices


def _load(frontend: EngineFrontend, command: Load, clock: Callable[[], float]) -> Loaded:
    woke = frontend.wake(weights_come=True)
    start_s = clock()
    weights = command.weights
    frontend.load(weights if isinstance(weights, OnWire) else unpack(weights), command.version)
    loaded_s = clock()
    log_probs = None
    if command.sample and not frontend.busy:
        log_probs = frontend.engine.log_probs(command.sample)
    return Loaded(command.token, woke, start_s, loaded_s, clock(), log_probs)


class _Outbox:
    """Notices on their way. Iterations without finished rollouts wait for the next notice."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque()
        self._news = threading.Event()

    def put(self, notice: Notice, news: bool = True) -> None:
        self._notices.append(notice)
        if news or len(self._notices) >= MOST_ITERATIONS:
            self._news.set()

    def wake(self) -> None:
        self._news.set()

    def take(self, timeout_s: float) -> tuple[Notice, ...]:
        self._news.wait(timeout_s)
        self._news.clear()
        taken = []
        while self._notices:
            taken.append(self._notices.popleft())
        return tuple(taken)
