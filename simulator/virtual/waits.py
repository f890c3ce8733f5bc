"""Something that will have happened: awaited in an event loop, or waited for in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from rollcast.simulator.virtual.kernel import Actor, Kernel
from rollcast.simulator.virtual.loops import Loop, tell


class Outbox:
    """Futures of event loops that are to be told, those of a loop together."""

    def __init__(self) -> None:
        self._futures: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}

    def put(self, future: asyncio.Future[None]) -> None:
        """Has a future told at the next `flush`."""
        self._futures.setdefault(future.get_loop(), []).append(future)

    def flush(self) -> None:
        """Tells them."""
        if self._futures:
            told, self._futures = self._futures, {}
            for loop, futures in told.items():
                if isinstance(loop, Loop):
                    loop.tell(futures)
                elif not loop.is_closed():
                    loop.call_soon_threadsafe(tell, futures)


class Pending:
    """An event that one waits for by ``await pending`` or ``pending.wait()``. Both return what it
    was given, or raise."""

    __slots__ = ("_actors", "_futures", "_kernel", "_outbox", "done", "error", "value", "waits")

    def __init__(self, kernel: Kernel, outbox: Outbox, waits: str) -> None:
        self._kernel, self._outbox, self.waits = kernel, outbox, waits
        self._futures: list[asyncio.Future[None]] | tuple[()] = ()  # most are awaited once
        self._actors: list[Actor] | tuple[()] = ()
        self.done = False
        self.value: Any = None
        self.error: BaseException | None = None

    def set(self, value: Any = None, error: BaseException | None = None) -> None:
        """It has happened; whoever waits is told at the next flush of the outbox."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        for future in self._futures:
            self._outbox.put(future)
        for actor in self._actors:
            self._kernel.wake(actor)

    def result(self) -> Any:
        """What it was given."""
        if self.error is not None:
            raise self.error
        return self.value

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done:
            future = asyncio.get_running_loop().create_future()
            if self._futures:
                self._futures.append(future)
            else:
                self._futures = [future]
            yield from future
        if self.error is not None:
            raise self.error
        return self.value

    def wait(self) -> Any:
        """Waits in a thread."""
        while not self.done:
            self._actors = [*self._actors, self._kernel.current]
            self._kernel.block(None, self.waits)
        return self.result()
