"""Ray's actors and tasks on threads of this process, so that they share a run's virtual clock.

``with ray_in_threads(): ...`` puts a module ``ray`` in the place of the installed one: ``init``,
``remote`` of classes and functions with ``options``, ``get``, ``put``, ``wait``, ``kill``,
``get_actor``, and ``await`` of references. An actor is a thread with an event loop: its methods
start in the order of their calls, plain ones run one at a time, async ones beside one another
(docs.ray.io, "AsyncIO / Concurrency for Actors"). Arguments and results are handed over, not
copied. Any other name of ``ray`` is refused.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.report import caller

_NAMES = ("ray", "ray.actor", "ray.exceptions")


class RayError(Exception):
    """`ray.exceptions.RayError`."""


class RayActorError(RayError):
    """`ray.exceptions.RayActorError`: the actor was killed."""


class GetTimeoutError(RayError, TimeoutError):
    """`ray.exceptions.GetTimeoutError`."""


class ObjectRef:
    """`ray.ObjectRef`: what a call will return; awaitable in any event loop."""

    def __init__(self, future: concurrent.futures.Future[Any]) -> None:
        self._future = future

    def future(self) -> concurrent.futures.Future[Any]:
        """As a future of threads."""
        return self._future

    def __await__(self) -> Generator[Any, None, Any]:
        # a waiter that is cancelled leaves the call alone, as with Ray
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


class _Actor:
    """A thread with an event loop, and the object that lives there."""

    def __init__(self, made_of: Callable[[], Any]) -> None:
        self._loop = asyncio.new_event_loop()
        self._ended: str | None = None
        self._object: Any = None
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._begun = self._submit(self._make(made_of))

    async def _make(self, made_of: Callable[[], Any]) -> None:
        self._object = made_of()

    def call(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> ObjectRef:
        """Calls a method. Raises nothing: the reference does."""
        return ObjectRef(self._submit(self._answer(name, args, options)))

    async def _answer(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        try:
            return await self._called(name, args, options)
        except asyncio.CancelledError:
            if self._ended is None:
                raise
            raise RayActorError(self._ended) from None

    async def _called(self, name: str, args: Sequence[Any], options: dict[str, Any]) -> Any:
        await asyncio.wrap_future(self._begun)  # an actor that could not be made fails its calls
        args = [await _value(one) for one in args]
        options = {key: await _value(one) for key, one in options.items()}
        answer = getattr(self._object, name)(*args, **options)
        return await answer if inspect.isawaitable(answer) else answer

    def _submit(self, work: Any) -> concurrent.futures.Future[Any]:
        if self._ended is not None:
            work.close()
            lost: concurrent.futures.Future[Any] = concurrent.futures.Future()
            lost.set_exception(RayActorError(self._ended))
            return lost
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def kill(self) -> None:
        """Its calls end with an error, and so do later ones."""
        self._ended = "The actor was killed with ray.kill"
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop)

    async def _stop(self) -> None:
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._loop.stop()


async def _value(argument: Any) -> Any:
    """Of a reference, what it refers to."""
    return await argument if isinstance(argument, ObjectRef) else argument


class _Method:
    """A method of an actor's handle."""

    def __init__(self, actor: _Actor, name: str) -> None:
        self._actor, self._name = actor, name

    def options(self, **_: Any) -> _Method:
        """Itself: options say where and how often, which threads have no use for."""
        return self

    def remote(self, *args: Any, **options: Any) -> ObjectRef:
        """Calls it."""
        return self._actor.call(self._name, args, options)


class ActorHandle:
    """`ray.actor.ActorHandle`: methods with ``remote``."""

    def __init__(self, actor: _Actor, of: type) -> None:
        self._ray_actor, self._ray_class = actor, of

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("__") or not hasattr(self._ray_class, name):
            raise AttributeError(f"{self._ray_class.__name__} has no method {name}")
        return _Method(self._ray_actor, name)


class _Remote:
    """What ``ray.remote`` makes of a class or a function."""

    def __init__(self, ray: _Ray, of: Any, name: str | None = None) -> None:
        self._ray, self._of, self._name = ray, of, name
        self.__doc__, self.__name__ = of.__doc__, of.__name__

    def options(self, name: str | None = None, **_: Any) -> _Remote:
        """Under a name, by which ``get_actor`` finds it; other options say where it runs."""
        return _Remote(self._ray, self._of, name)

    def remote(self, *args: Any, **options: Any) -> Any:
        """An actor's handle, or a reference to what a function returns."""
        if inspect.isclass(self._of):
            handle = ActorHandle(_Actor(lambda: self._of(*args, **options)), self._of)
            if self._name is not None:
                self._ray.named[self._name] = handle
            return handle
        task: concurrent.futures.Future[Any] = concurrent.futures.Future()
        work = threading.Thread(target=self._run, args=(task, args, options), daemon=True)
        work.start()
        return ObjectRef(task)

    def _run(
        self, task: concurrent.futures.Future[Any], args: Sequence[Any], options: dict[str, Any]
    ) -> None:
        try:
            task.set_result(self._of(*map(_blocking, args), **options))
        except Exception as error:
            task.set_exception(error)


def _blocking(argument: Any) -> Any:
    return argument.future().result() if isinstance(argument, ObjectRef) else argument


class _Ray(types.ModuleType):
    """The module."""

    def __init__(self) -> None:
        super().__init__("ray")
        self.__path__: list[str] = []
        self.named: dict[str, ActorHandle] = {}
        self.ObjectRef = ObjectRef
        self.actor = types.ModuleType("ray.actor")
        self.actor.__dict__.update(ActorHandle=ActorHandle)
        self.exceptions = types.ModuleType("ray.exceptions")
        self.exceptions.__dict__.update(
            {kind.__name__: kind for kind in (RayError, RayActorError, GetTimeoutError)}
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RefusedError(
            f"ray.{name} is not modelled; actors, tasks, get, put, wait, kill and get_actor are; "
            f"at {caller()}"
        )

    @staticmethod
    def init(*_: Any, **__: Any) -> None:
        """Nothing: threads need no cluster."""

    shutdown = init

    @staticmethod
    def is_initialized() -> bool:
        """Always."""
        return True

    def remote(self, *of: Any, **_: Any) -> Any:
        """A decorator of classes and functions, with options or without."""
        return _Remote(self, of[0]) if of else self.remote

    @staticmethod
    def put(value: Any) -> ObjectRef:
        """A reference to a value."""
        held: concurrent.futures.Future[Any] = concurrent.futures.Future()
        held.set_result(value)
        return ObjectRef(held)

    @staticmethod
    def get(refs: ObjectRef | Sequence[ObjectRef], *, timeout: float | None = None) -> Any:
        """Waits, and returns the value or values. Raises GetTimeoutError."""
        many = [refs] if isinstance(refs, ObjectRef) else list(refs)
        _, late = concurrent.futures.wait([ref.future() for ref in many], timeout)
        if late:
            raise GetTimeoutError(f"{len(late)} of {len(many)} calls took over {timeout} s")
        values = [ref.future().result() for ref in many]
        return values[0] if isinstance(refs, ObjectRef) else values

    @staticmethod
    def wait(
        refs: Sequence[ObjectRef], *, num_returns: int = 1, timeout: float | None = None, **_: Any
    ) -> tuple[list[ObjectRef], list[ObjectRef]]:
        """(at most ``num_returns`` that are done, the others), each in the order given."""
        enough, left = threading.Event(), [num_returns]

        def count(_: object) -> None:
            left[0] -= 1
            if left[0] <= 0:
                enough.set()

        for ref in refs:
            ref.future().add_done_callback(count)
        enough.wait(timeout)
        done = [ref for ref in refs if ref.future().done()][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    @staticmethod
    def kill(handle: ActorHandle, **_: Any) -> None:
        """Ends an actor."""
        handle._ray_actor.kill()

    def get_actor(self, name: str, **_: Any) -> ActorHandle:
        """The actor of a name. Raises ValueError for none."""
        if name not in self.named:
            raise ValueError(f"there is no actor named {name}")
        return self.named[name]


@contextmanager
def ray_in_threads() -> Iterator[types.ModuleType]:
    """Puts the module in the place of ``ray``; code that is imported within sees it."""
    ray = _Ray()
    was = {name: sys.modules.pop(name) for name in _NAMES if name in sys.modules}
    sys.modules.update(dict(zip(_NAMES, (ray, ray.actor, ray.exceptions), strict=True)))
    try:
        yield ray
    finally:
        for name in _NAMES:
            sys.modules.pop(name, None)
        sys.modules.update(was)
