"""A transport within one process: one replica and a trainer, which work while the driver waits.

Each call of `LocalTransport.wait` carries out what was asked of an actor, or runs one iteration of
the engine. So the loop learns of every iteration before the next one, and a run is deterministic.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from rollcast.engine.actors.machine import machine_name, versions
from rollcast.engine.actors.messages import Command, End, Load, Notice, Ready, Report
from rollcast.engine.actors.replica import ReplicaActor, carry_out
from rollcast.engine.actors.transport import Lane, Need
from rollcast.engine.edges import Engine
from rollcast.engine.frontend import EngineFrontend


class LocalTransport:
    """timer: the run's clock, in seconds from any moment on."""

    processes = False

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.timer = timer

    def start(self, kind: type, arguments: Sequence[Any], need: Need, name: str) -> _LocalActor:
        """An object of class ``kind``; a replica's has no thread."""
        if kind is ReplicaActor:
            kind = _LocalReplica
        return _LocalActor(kind(*arguments, timer=self.timer))

    def wait(self, refs: Sequence[_LocalRef], timeout_s: float) -> list[_LocalRef]:
        """The references that are done after the actors' work; without any, polls are answered."""
        for ref in refs:
            ref.actor.catch_up()
        ready = [ref for ref in refs if ref.done]
        if not ready:
            for ref in refs:
                ref.bring()
        return [ref for ref in refs if ref.done]

    def get(self, ref: _LocalRef) -> Any:
        """Its value. Raises what the method raised."""
        ref.bring()
        if ref.error is not None:
            raise ref.error
        return ref.value

    def put(self, value: Any) -> _LocalRef:
        """The value itself."""
        ref = _LocalRef(_NOBODY)
        ref.done, ref.value = True, value
        return ref

    def kill(self, actor: Any) -> None:
        """Does nothing: such an actor is not lost."""

    def close(self) -> None:
        """Does nothing."""


class _LocalRef:
    """The result of a call."""

    __slots__ = ("actor", "done", "error", "job", "value")

    def __init__(self, actor: _LocalActor) -> None:
        self.actor = actor
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None
        self.job: Callable[[], None] | None = None  # of a call beside ``work``

    def bring(self) -> None:
        """Carries out its call, after earlier calls of ``work``."""
        self.actor.catch_up()
        if not self.done and self.job is not None:
            self.job()


class _LocalActor:
    """Carries out calls of ``work`` in their order, all others when asked for."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._work: deque[Callable[[], None]] = deque()

    def call(self, method: str, *arguments: Any, lane: Lane = "work", results: int = 1) -> Any:
        refs = [_LocalRef(self) for _ in range(results)]

        def carry_out() -> None:
            try:
                given = [_value(argument) for argument in arguments]
                value = getattr(self._target, method)(*given)
                for ref, part in zip(refs, value if results > 1 else [value], strict=True):
                    ref.value = part
            except Exception as error:
                for ref in refs:
                    ref.error = error
            for ref in refs:
                ref.done = True

        if lane != "work":
            refs[0].job = carry_out
        else:
            self._work.append(carry_out)
        return refs if results > 1 else refs[0]

    def catch_up(self) -> None:
        """Carries out the calls of ``work``."""
        while self._work:
            self._work.popleft()()


_NOBODY = _LocalActor(None)


def _value(argument: Any) -> Any:
    if not isinstance(argument, _LocalRef):
        return argument
    argument.bring()
    if argument.error is not None:
        raise argument.error
    return argument.value


class _LocalReplica:
    """An `engine.actors.replica.ReplicaActor` that works when polled. A failing engine is not
    replaced: the poll raises its error."""

    def __init__(
        self, start: Callable[[], Engine], cores: tuple[int, ...], timer: Callable[[], float]
    ) -> None:
        self._frontend = EngineFrontend(start(), timer)
        self._timer = timer
        self._inbox: deque[Command] = deque()
        engine = self._frontend.engine
        ready = Ready(engine.limits, engine.log_prob_tolerance, machine_name(), versions())
        self._notices: list[Notice] = [ready]

    def post(self, *commands: Command) -> None:
        self._inbox.extend(commands)

    def load(self, token: int, weights: object, version: int, sample: list[list[int]]) -> None:
        self.post(Load(token, weights, version, sample))

    def poll(self, timeout_s: float) -> Report:
        """Carries out the commands; without any, one iteration."""
        notices, self._notices = self._notices, []
        while self._inbox:
            notices += carry_out(self._frontend, self._inbox.popleft(), self._timer)
        if not notices and self._frontend.busy:
            notices.append(self._frontend.iterate())
        return Report(tuple(notices), 0.0)

    def finish(self, timeout_s: float) -> None:
        if any(isinstance(command, End) for command in self._inbox):
            self._frontend.engine.shutdown()
