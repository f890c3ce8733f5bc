"""What code that uses `aiohttp.ClientSession` needs of it, answered without a socket."""

from __future__ import annotations

import asyncio
import json as json_module
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response, body_of
from rollcast.simulator.virtual.http.routes import FIRST_PORT, engine_at, handle


class Content:
    """The body of a response as it comes."""

    def __init__(self, response: Response) -> None:
        self._response = response

    async def iter_any(self) -> AsyncIterator[bytes]:
        """Pieces of it."""
        if self._response.stream is None:
            yield self._response.content
        else:
            async for part in self._response.stream:
                yield part

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Pieces of at most ``size`` bytes."""
        async for part in self.iter_any():
            for start in range(0, len(part), size):
                yield part[start : start + size]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self.iter_any():
            for line in part.splitlines(keepends=True):
                yield line


class Answered:
    """A response of the session."""

    def __init__(self, response: Response, url: str) -> None:
        self._response, self.url = response, url
        self.status = response.status
        self.reason = "OK" if response.status < 400 else "Error"
        self.ok = response.status < 400
        self.headers = {"content-type": response.content_type}
        self.content_type = response.content_type.partition(";")[0]
        self.content = Content(response)
        self._read: bytes | None = None

    async def read(self) -> bytes:
        """The whole body."""
        if self._read is None:
            self._read = b"".join([part async for part in self.content.iter_any()])
        return self._read

    async def text(self, *_: Any, **__: Any) -> str:
        """The whole body as text."""
        return (await self.read()).decode()

    async def json(self, *_: Any, **__: Any) -> Any:
        """The whole body as JSON."""
        if self._response.stream is None and self.content_type == "application/json":
            return self._response.body
        return json_module.loads(await self.read() or b"null")

    def raise_for_status(self) -> None:
        """Raises aiohttp's error for a status of 400 and above."""
        if not self.ok:
            import aiohttp

            info: Any = type("Info", (), {"real_url": self.url, "method": "", "headers": {}})()
            said = self._response.content.decode()
            raise aiohttp.ClientResponseError(info, (), status=self.status, message=said)

    async def close(self) -> None:
        """Leaves; what is streamed is aborted."""
        if self._response.stream is not None:
            await self._response.stream.aclose()  # type: ignore[attr-defined]

    def release(self) -> None:
        """Gives the connection back."""


class _Asking:
    """``await session.post(...)`` and ``async with session.post(...)``."""

    def __init__(self, ask: Callable[[], Awaitable[Answered]]) -> None:
        self._ask = ask
        self._got: Answered | None = None

    def __await__(self) -> Generator[Any, None, Answered]:
        return self._ask().__await__()

    async def __aenter__(self) -> Answered:
        self._got = await self._ask()
        return self._got

    async def __aexit__(self, *_: Any) -> None:
        if self._got is not None:
            await self._got.close()


class Session:
    """Stands for an `aiohttp.ClientSession` to the engines of a fleet. The engine is told by the
    port of the address, from ``first_port`` on; any other address is a router in front of all."""

    def __init__(self, fleet: Fleet, first_port: int = FIRST_PORT, **options: Any) -> None:
        self._fleet, self._first_port = fleet, first_port
        self._base = str(options.get("base_url") or "")
        self._timeout = options.get("timeout")
        self.closed = False

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes it."""
        self.closed = True

    def get(self, url: Any, **options: Any) -> _Asking:
        """As `request`."""
        return self.request("GET", url, **options)

    def post(self, url: Any, **options: Any) -> _Asking:
        """As `request`."""
        return self.request("POST", url, **options)

    def request(
        self,
        method: str,
        url: Any,
        *,
        json: Any = None,
        data: Any = None,
        params: Mapping[str, Any] | None = None,
        timeout: Any = None,
        **_: Any,
    ) -> _Asking:
        """A request; cancelling it, or its timeout (virtual seconds), aborts it at the engine."""

        async def ask() -> Answered:
            limit = timeout if timeout is not None else self._timeout
            seconds = getattr(limit, "total", limit)
            async with asyncio.timeout(seconds):
                return await self._answer(method, f"{self._base}{url}", json, data, params)

        return _Asking(ask)

    async def _answer(
        self, method: str, url: str, json: Any, data: Any, params: Mapping[str, Any] | None
    ) -> Answered:
        parts = urlsplit(url)
        replica = engine_at(self._fleet, parts.port, self._first_port)
        if replica is not None and self._fleet.engines[replica].dead:
            import aiohttp

            raise aiohttp.ServerDisconnectedError(f"replica {replica} is dead")
        query = {**dict(parse_qsl(parts.query)), **{k: str(v) for k, v in (params or {}).items()}}
        try:
            if json is None and data is not None:
                json = body_of(data if isinstance(data, bytes) else str(data).encode())
            asked = Request(method, parts.path, query, json or {})
        except BadRequestError as error:
            return Answered(Response({"error": {"message": str(error)}}, 400), url)
        return Answered(await handle(self._fleet, replica, asked), url)


@contextmanager
def aiohttp_of(fleet: Fleet, first_port: int = FIRST_PORT) -> Iterator[None]:
    """Has `aiohttp.ClientSession` make sessions to the fleet, inside of the block."""
    import aiohttp

    real = aiohttp.ClientSession
    aiohttp.ClientSession = lambda *args, **options: Session(  # type: ignore[misc, assignment]
        fleet, first_port, **options, **({"base_url": args[0]} if args else {})
    )
    try:
        yield
    finally:
        aiohttp.ClientSession = real  # type: ignore[misc]
