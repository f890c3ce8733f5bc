"""The engines on real ports, in scaled real time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.virtual.clock import clock
from rollcast.simulator.virtual.errors import RefusedError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.connection import Connection, Handle
from rollcast.simulator.virtual.http.messages import Request, Response
from rollcast.simulator.virtual.http.routes import ROUTES, handle
from rollcast.simulator.virtual.pace import Pace

BACKLOG = 4096
Figures = dict[str, float]
"""Of `Pace.figures`."""


def serve(
    scenario: Scenario,
    *,
    pace: Pace,
    host: str,
    port: int,
    ready: Callable[[list[str]], None],
    stood: Callable[[Figures], None],
    ended: Callable[[Figures], None],
    error_share: float = 0.0,
) -> None:
    """Serves each replica at a port of its own from ``port`` on, and a router before all at the one
    behind them, until it is interrupted. ready: called with the addresses. stood: with the clock's
    figures, each time that it has stood still for twice as long; ended: with those when it is
    interrupted. Raises ScenarioError for a port that cannot be had."""
    with clock(pace=pace, blocked_s=None, unseen="keep") as time:
        pace.told = lambda: stood(pace.figures(time.now_s))
        try:
            asyncio.run(_serve(Fleet(scenario, error_share=error_share), host, port, ready))
        except KeyboardInterrupt:
            ended(pace.figures(time.now_s))
            raise


async def _serve(fleet: Fleet, host: str, port: int, ready: Callable[[list[str]], None]) -> None:
    servers, addresses = [], []
    connections: set[Connection] = set()
    loop = asyncio.get_running_loop()
    try:
        for number in (*range(len(fleet.engines)), None):
            at = port + (len(fleet.engines) if number is None else number)
            answer = _answering(fleet, number)
            try:
                server = await loop.create_server(
                    lambda answer=answer: Connection(answer, lambda: fleet.now_s, connections),  # type: ignore[misc]
                    host,
                    at,
                    backlog=BACKLOG,
                )
            except OSError as error:
                raise ScenarioError("--port", f"port {at} of {host}: {error.strerror}") from None
            servers.append(server)
            addresses.append(f"http://{host}:{at}")
        ready(addresses)
        await loop.create_future()
    finally:
        for server in servers:
            server.close()
        for connection in list(connections):
            connection.transport.abort()


def _answering(fleet: Fleet, number: int | None) -> Handle:
    async def answer(request: Request) -> Response:
        try:
            return await handle(fleet, number, request)
        except RefusedError:
            known = ", ".join(sorted({path for _, path in ROUTES}))
            said = f"{request.method} {request.path} is not modelled; modelled are {known}"
            print(f"rollcast: {said}", file=sys.stderr)
            return Response({"error": {"message": said, "code": 501}}, 501)

    return answer
