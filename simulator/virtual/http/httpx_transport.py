"""httpx clients, and those made of them (openai), answered without a socket."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx

from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response, body_of
from rollcast.simulator.virtual.http.routes import FIRST_PORT, engine_at, handle


class _Stream(httpx.AsyncByteStream):
    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()  # type: ignore[attr-defined]


class Transport(httpx.AsyncBaseTransport):
    """For ``httpx.AsyncClient(transport=...)``. The engine is told by the port of the address, from
    ``first_port`` on; any other address is a router in front of all. A dead engine refuses the
    connection; a caller that is cancelled, or times out, aborts its request."""

    def __init__(self, fleet: Fleet, first_port: int = FIRST_PORT) -> None:
        self._fleet, self._first_port = fleet, first_port

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answers a request; raises what httpx raises of a real connection."""
        content = await request.aread()
        answer = await _within(request, self._answer(request, content))
        headers = {"content-type": answer.content_type}
        if answer.stream is not None:
            return httpx.Response(answer.status, headers=headers, stream=_Stream(answer.stream))
        return httpx.Response(answer.status, headers=headers, content=answer.content)

    async def _answer(self, request: httpx.Request, content: bytes) -> Response:
        url = request.url
        replica = engine_at(self._fleet, url.port, self._first_port)
        if replica is not None and self._fleet.engines[replica].dead:
            raise httpx.ConnectError(f"replica {replica} is dead", request=request)
        try:
            asked = Request(request.method, url.path, dict(url.params), body_of(content))
        except BadRequestError as error:
            return Response({"error": {"message": str(error)}}, 400)
        return await handle(self._fleet, replica, asked)


async def _within(request: httpx.Request, answer: Any) -> Response:
    """An answer within httpx' read timeout, virtual seconds."""
    import asyncio

    limit = (request.extensions.get("timeout") or {}).get("read")
    try:
        async with asyncio.timeout(limit):
            found: Response = await answer
            return found
    except TimeoutError:
        raise httpx.ReadTimeout(f"no answer within {limit:g} s", request=request) from None


class BlockingTransport(httpx.BaseTransport):
    """For ``httpx.Client(transport=...)`` in threads."""

    def __init__(self, fleet: Fleet, first_port: int = FIRST_PORT) -> None:
        self._transport = Transport(fleet, first_port)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answers a request, in an event loop of a thread of its own."""
        import asyncio

        got: list[httpx.Response] = []
        failed: list[BaseException] = []

        async def whole() -> httpx.Response:
            answer = await self._transport.handle_async_request(
                httpx.Request(
                    request.method,
                    request.url,
                    headers=request.headers,
                    content=request.read(),
                    extensions=request.extensions,
                )
            )
            content = await answer.aread()
            return httpx.Response(answer.status_code, headers=answer.headers, content=content)

        def run() -> None:
            try:
                got.append(asyncio.run(whole()))
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return got[0]
