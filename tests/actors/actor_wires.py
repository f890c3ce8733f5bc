"""A wire between threads: it blocks on both sides until both are there, as NCCL does."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from actor_fakes import FakeEngine

from rollcast.engine.actors.handles import ByHandles, Fan
from rollcast.engine.actors.handles import Line as TrainerLine
from rollcast.engine.actors.wire import ByWire
from rollcast.engine.edges import OnWire


@dataclass
class Line:
    joined: threading.Event = field(default_factory=threading.Event)
    sent: threading.Event = field(default_factory=threading.Event)
    taken: threading.Event = field(default_factory=threading.Event)
    tensors: Any = None


LINES: dict[int, Line] = {}
_numbers = count()


class ThreadWire(ByWire):
    """But for what carries the tensors, the one that there is."""

    def __init__(self) -> None:
        super().__init__()
        self._infos: dict[int, int] = {}
        self._senders: dict[int, int] = {}

    def meet(self, replica: int, workers: int) -> dict[str, Any]:
        number = next(_numbers)
        LINES[number] = Line()
        self._infos[replica] = number
        return {"line": number}

    def join(self, replica: int) -> None:
        number = self._infos.pop(replica)
        LINES[number].joined.wait()
        self._senders[replica] = number

    def transmit(self, replica: int, tensors: Any) -> None:
        line = LINES[self._senders[replica]]
        line.tensors = tensors
        line.sent.set()
        line.taken.wait()
        line.taken.clear()


class WiredEngine(FakeEngine):
    """Takes its weights from the line that it is connected to."""

    def connect(self, where: Mapping[str, Any]) -> None:
        self._line = LINES[where["line"]]
        self._line.joined.set()

    def load_weights(
        self, weights: Any, version: int | None = None, *, keep_keys: bool = False
    ) -> None:
        if isinstance(weights, OnWire):
            line = self._line
            line.sent.wait()
            line.sent.clear()
            weights = line.tensors
            line.taken.set()
        super().load_weights(weights, version, keep_keys=keep_keys)


class ThreadHandles(ByHandles):
    """Buckets of one tensor, which is its own handle."""

    def transmit(self, fan: Fan, tensors: Mapping[str, Any]) -> None:
        PASSES.append(len(tensors))
        for named in tensors.items():
            fan.tell(named)


PASSES: list[int] = []


class HandledEngine(FakeEngine):
    """Takes its weights bucket by bucket."""

    def connect(self, where: Mapping[str, Any]) -> None:
        self._line = TrainerLine({**where, "host": "127.0.0.1"})

    def load_weights(
        self, weights: Any, version: int | None = None, *, keep_keys: bool = False
    ) -> None:
        if isinstance(weights, OnWire):
            taken = dict(self._line.buckets())
            assert tuple(taken) == weights.names
            weights = taken
        super().load_weights(weights, version, keep_keys=keep_keys)


@dataclass(frozen=True)
class StartHandled:
    iteration_s: float = 5e-4

    def __call__(self) -> HandledEngine:
        return HandledEngine(8, self.iteration_s)


@dataclass(frozen=True)
class StartWired:
    iteration_s: float = 5e-4

    def __call__(self) -> WiredEngine:
        return WiredEngine(8, self.iteration_s)
