"""A replica in a process of its own: an engine that iterates by itself, and takes commands between
two iterations."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from engine.actors.machine import machine_name, pin, versions
from engine.actors.messages import (
    Abort,
    Aborted,
    Command,
    Connect,
    End,
    Failed,
    Iterated,
    Load,
    Loaded,
    Notice,
    Ready,
    Report,
    Sleep,
    Slept,
    Submit,
)
from engine.actors.weights import unpack
from engine.desk import Desk, request_name
from engine.edges import Engine, OnWire
from engine.errors import EngineError, sentence

MOST_TURNS = 4096
"""Iterations without news after which they are reported nevertheless."""


class ReplicaActor:
    """start: makes the engine, in the thread that will run it. cores: what that thread is pinned
    to, if any. Its process ends with the thread's engine in whatever state it is."""

    def __init__(self, start: Callable[[], Engine], cores: tuple[int, ...] = ()) -> None:
        self._inbox: SimpleQueue[Command] = SimpleQueue()
        self._outbox = _Outbox()
        self._since_s: float | None = None  # what it is doing now began
        self._cores = cores
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self._thread.start()

    def post(self, *commands: Command) -> None:
        """Has commands carried out before the next iteration."""
        for command in commands:
            self._inbox.put(command)

    def load(self, token: int, weights: object, version: int, sample: list[list[int]]) -> None:
        """`Load`, whose weights come as an argument of their own."""
        self.post(Load(token, weights, version, sample))

    def connect(self, where: object) -> None:
        """`Connect`, in the same way."""
        self.post(Connect(where))

    def poll(self, timeout_s: float) -> Report:
        """What happened since the last poll, as soon as there is news."""
        notices = self._outbox.take(timeout_s)
        since_s = self._since_s
        working_s = 0.0 if since_s is None else time.perf_counter() - since_s
        return Report(notices, working_s, time.process_time())

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
            message = str(error) if isinstance(error, EngineError) else sentence(error)
            self._outbox.put(Failed(message, theirs=True))
            return
        self._since_s = None
        limits, tolerance = engine.limits, engine.log_prob_tolerance
        self._outbox.put(Ready(limits, tolerance, machine_name(), versions()))
        try:
            self._serve(Desk(engine, time.perf_counter))
        except Exception as error:
            message = str(error) if isinstance(error, EngineError) else sentence(error)
            self._outbox.put(Failed(message))
        finally:
            engine.shutdown()
            self._outbox.wake()

    def _serve(self, desk: Desk) -> None:
        while True:
            for command in self._commands(block=not desk.busy):
                self._since_s = time.perf_counter()
                if isinstance(command, End):
                    return
                if not self._carry_out(desk, command):
                    return
            if desk.busy:
                self._since_s = time.perf_counter()
                turn, landed = desk.iterate()
                self._outbox.put(Iterated(turn, tuple(landed)), news=bool(landed))
            self._since_s = None

    def _commands(self, block: bool) -> Iterator[Command]:
        if block:
            yield self._inbox.get()
        while not self._inbox.empty():
            yield self._inbox.get()

    def _carry_out(self, desk: Desk, command: Command) -> bool:
        """Whether it may go on."""
        if isinstance(command, Submit):
            try:
                desk.wake()
                for order in command.orders:
                    desk.submit(order)
            except EngineError as error:
                self._outbox.put(Failed(str(error), theirs=True))
                return False
        elif isinstance(command, Abort):
            live = set(desk.engine.unfinished)
            keys = [key for key in command.keys if request_name(key) in live]
            self._outbox.put(Aborted(command.token, tuple(desk.abort(keys))))
        elif isinstance(command, Sleep):
            desk.sleep()
            self._outbox.put(Slept(command.token, time.perf_counter()))
        elif isinstance(command, Load):
            self._outbox.put(_load(desk, command))
        elif isinstance(command, Connect):
            desk.engine.connect(command.where)
        return True


def _load(desk: Desk, command: Load) -> Loaded:
    woke = desk.wake()
    start_s = time.perf_counter()
    weights = command.weights
    desk.load(weights if isinstance(weights, OnWire) else unpack(weights), command.version)
    loaded_s = time.perf_counter()
    found = None
    if command.sample and not desk.busy:
        found = desk.engine.log_probs(command.sample)
    return Loaded(command.token, woke, start_s, loaded_s, time.perf_counter(), found)


class _Outbox:
    """Notices on their way. Iterations without news wait for the next one with."""

    def __init__(self) -> None:
        self._notices: deque[Notice] = deque()
        self._news = threading.Event()

    def put(self, notice: Notice, news: bool = True) -> None:
        self._notices.append(notice)
        if news or len(self._notices) >= MOST_TURNS:
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
