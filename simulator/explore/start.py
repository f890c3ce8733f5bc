"""The start of ``rollcast explore``: the library, a port, the processes."""

from __future__ import annotations

import socket
import sys
from importlib.util import find_spec

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.explore.questions import workers
from rollcast.simulator.scenario.scenario import Scenario

FIRST_PORT = 8080
_TRIED = 100
_HOST = "127.0.0.1"


def explore(scenario: Scenario, port: int | None, show: bool) -> None:
    """Serves the page of a scenario. port: default a free one. show: whether to open a browser.
    Raises ScenarioError without the extra (``explore``) and for a port in use (``--port``)."""
    if find_spec("nicegui") is None:
        raise ScenarioError("explore", "needs a library: pip install 'rollcast[explore]'")
    place = free_port() if port is None else checked_port(port)
    pool = workers()  # before the page's library has threads of its own
    from rollcast.simulator.explore.app import serve

    print(f"{scenario.name}: http://{_HOST}:{place} (Ctrl-C stops it)", file=sys.stderr, flush=True)
    try:
        serve(scenario, pool, place, show)
    finally:
        pool.shutdown(cancel_futures=True)


def checked_port(port: int) -> int:
    """The port. Raises ScenarioError (``--port``) if it cannot be used."""
    if not 1 <= port <= 65535:
        raise ScenarioError("--port", f"must be from 1 to 65535, got {port}")
    reason = _taken(port)
    if reason:
        raise ScenarioError("--port", f"cannot use {port}: {reason}; give another")
    return port


def free_port() -> int:
    """The first free port from `FIRST_PORT`. Raises ScenarioError (``--port``)."""
    ports = range(FIRST_PORT, FIRST_PORT + _TRIED)
    free = next((port for port in ports if not _taken(port)), None)
    if free is None:
        raise ScenarioError("--port", f"none from {ports[0]} to {ports[-1]} is free; give one")
    return free


def _taken(port: int) -> str:
    """Why a port cannot be used; '' if it can."""
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((_HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return ""
