"""A transport whose actors are threads of this process: quick to start, and killed by being
forgotten. What crosses is pickled, as between processes."""

from __future__ import annotations

import os
import pickle
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from rollcast.engine.actors.transport import ActorLostError, Lane, Need
from tests.small_ray import small_ray

FOLDERS = (Path(__file__).parents[2], Path(__file__).parent, Path(__file__).parents[1] / "engine")
"""What other processes have to find."""


class ThreadRef:
    def __init__(self, transport: ThreadTransport, changed: threading.Condition) -> None:
        self._transport = transport
        self.done = False
        self.value: bytes = b""
        self.error: BaseException | None = None
        self._changed = changed

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        with self._changed:
            if not self.done:
                self.done, self.error = True, error
                self.value = pickle.dumps(value)
                self._transport.largest = max(self._transport.largest, len(self.value))
                self._changed.notify_all()


class ThreadActor:
    def __init__(self, transport: ThreadTransport, kind: type, arguments: Sequence[Any]) -> None:
        self.lost = False
        self._transport = transport
        self._pending: set[ThreadRef] = set()
        self._lanes: dict[str, SimpleQueue[Any]] = {
            lane: SimpleQueue() for lane in ("work", "watch", "wire")
        }
        self.target = kind(*pickle.loads(pickle.dumps(tuple(arguments))))
        for lane in self._lanes.values():
            threading.Thread(target=self._serve, args=(lane,), daemon=True).start()

    def call(self, method: str, *arguments: Any, lane: Lane = "work", results: int = 1) -> Any:
        refs = [self._transport.ref() for _ in range(results)]
        if self.lost:
            for ref in refs:
                ref.settle(error=ActorLostError("killed"))
        else:
            self._pending |= set(refs)
            self._lanes[lane].put((method, arguments, refs))
        return refs if results > 1 else refs[0]

    def kill(self) -> None:
        self.lost = True
        for ref in list(self._pending):
            ref.settle(error=ActorLostError("killed"))
        inbox = getattr(self.target, "_inbox", None)
        if inbox is not None:
            from rollcast.engine.actors.messages import End

            inbox.put(End())

    def _serve(self, lane: SimpleQueue[Any]) -> None:
        while True:
            method, arguments, refs = lane.get()
            if self.lost:
                return
            try:
                given = [
                    self._transport.get(a) if isinstance(a, ThreadRef) else a for a in arguments
                ]
                crossing = pickle.dumps(given)
                self._transport.largest = max(self._transport.largest, len(crossing))
                given = pickle.loads(crossing)
                found = getattr(self.target, method)(*given)
                values = list(found) if len(refs) > 1 else [found]
                for ref, value in zip(refs, values, strict=True):
                    self._settle(ref, value=value)
            except BaseException as error:
                for ref in refs:
                    self._settle(ref, error=error)

    def _settle(self, ref: ThreadRef, **how: Any) -> None:
        self._pending.discard(ref)
        if self.lost:
            how = {"error": ActorLostError("killed")}
        ref.settle(**how)


class ThreadTransport:
    processes = True
    timer = staticmethod(time.perf_counter)

    def __init__(self) -> None:
        self.actors: list[tuple[str, ThreadActor]] = []
        self.largest = 0  # bytes that crossed at once
        self._changed = threading.Condition()

    def ref(self) -> ThreadRef:
        return ThreadRef(self, self._changed)

    def start(self, kind: type, arguments: Sequence[Any], need: Need, name: str) -> ThreadActor:
        actor = ThreadActor(self, kind, arguments)
        self.actors.append((name, actor))
        return actor

    def alive(self, name: str) -> list[ThreadActor]:
        return [actor for known, actor in self.actors if known.startswith(name) and not actor.lost]

    def wait(self, refs: Sequence[Any], timeout_s: float) -> list[Any]:
        deadline = time.perf_counter() + timeout_s
        with self._changed:
            while True:
                ready = [ref for ref in refs if ref.done]
                left_s = deadline - time.perf_counter()
                if ready or left_s <= 0:
                    return ready
                self._changed.wait(left_s)

    def get(self, ref: Any) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: ref.done)
        if ref.error is not None:
            raise ref.error
        return pickle.loads(ref.value)

    def put(self, value: Any) -> Any:
        ref = self.ref()
        ref.settle(value)
        return ref

    def kill(self, actor: Any) -> None:
        actor.kill()

    def close(self) -> None:
        for _, actor in self.actors:
            actor.kill()


class Lent:
    """A transport that outlives the worlds that are given it. keep: other worlds have actors on it,
    too, so only this one's are ended with it."""

    def __init__(self, transport: Any, keep: bool = False) -> None:
        self._transport = transport
        self._keep = keep
        self._started: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def start(self, *given: Any) -> Any:
        self._started.append(self._transport.start(*given))
        return self._started[-1]

    def close(self) -> None:
        if not self._keep:
            self._transport.end_actors()
            return
        for actor in self._started:
            self._transport.kill(actor)


@contextmanager
def ray_started(**options: Any) -> Iterator[Any]:
    """A Ray of this machine, whose processes find `FOLDERS`."""
    from rollcast.engine.actors.on_ray import RayTransport

    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        paths = [*map(str, FOLDERS), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        with small_ray():
            transport = RayTransport(**options)
        yield transport
        transport.close()
