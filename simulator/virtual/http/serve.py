"""The engines on real ports, in scaled real time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from aiohttp import web

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.clock import clock
from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, body_of
from rollcast.simulator.virtual.http.routes import ROUTES, handle

LONGEST_BODY = 1 << 28
BACKLOG = 4096


def serve(
    scenario: Scenario,
    *,
    speed: float,
    host: str,
    port: int,
    ready: Callable[[list[str]], None],
    late: Callable[[float], None],
    error_share: float = 0.0,
) -> None:
    """Serves each replica at a port of its own from ``port`` on, and a router before all at the one
    behind them, until it is interrupted. speed: simulated seconds in a real one. ready: called with
    the addresses. late: with the real seconds by which answers may have come late, where requests
    are more than can be served at this speed. Raises ScenarioError for a port that cannot be had.
    """
    with clock(pace=speed, blocked_s=None, unseen="keep") as time:
        time.kernel.on_late = late
        asyncio.run(_serve(Fleet(scenario, error_share=error_share), host, port, ready))


async def _serve(fleet: Fleet, host: str, port: int, ready: Callable[[list[str]], None]) -> None:
    runners, addresses = [], []
    try:
        for number in (*range(len(fleet.engines)), None):
            at = port + (len(fleet.engines) if number is None else number)
            runner = web.AppRunner(_app(fleet, number), access_log=None, handler_cancellation=True)
            await runner.setup()
            runners.append(runner)
            try:
                await web.TCPSite(runner, host, at, backlog=BACKLOG).start()
            except OSError as error:
                raise ScenarioError("--port", f"port {at} of {host}: {error.strerror}") from None
            addresses.append(f"http://{host}:{at}")
        ready(addresses)
        await asyncio.get_running_loop().create_future()
    finally:
        for runner in runners:
            await runner.cleanup()


def _app(fleet: Fleet, number: int | None) -> web.Application:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            body = body_of(await request.read())
            asked = Request(request.method, request.path, dict(request.query), body)
            found = await handle(fleet, number, asked)
        except BadRequestError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        except RefusedError:
            known = ", ".join(sorted({path for _, path in ROUTES}))
            said = f"{request.method} {request.path} is not modelled; modelled are {known}"
            print(f"rollcast: {said}", file=sys.stderr)
            return web.json_response({"error": {"message": said}}, status=501)
        if found.stream is None:
            kind = found.content_type.partition(";")[0]
            return web.Response(body=found.content, status=found.status, content_type=kind)
        response = web.StreamResponse(headers={"content-type": found.content_type})
        await response.prepare(request)
        try:
            async for part in found.stream:
                await response.write(part)
        finally:
            await found.stream.aclose()  # type: ignore[attr-defined]
        return response

    app: Any = web.Application(client_max_size=LONGEST_BODY)
    app.router.add_route("*", "/{path:.*}", answer)
    return app  # type: ignore[no-any-return]
