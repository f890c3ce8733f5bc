"""Which endpoints there are, and which engine an address means."""

from __future__ import annotations

from rollcast.simulator.errors import RunError
from rollcast.simulator.virtual.ask import EngineError
from rollcast.simulator.virtual.errors import RefusedError, VirtualError
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http import sglang, vllm
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response
from rollcast.simulator.virtual.report import caller

ROUTES = {**vllm.ROUTES, **sglang.ROUTES}
FIRST_PORT = 8000


def engine_at(fleet: Fleet, port: int | None, first_port: int = FIRST_PORT) -> int | None:
    """The engine at a port, the i-th one at ``first_port`` + i; None: a router in front of all."""
    number = -1 if port is None else port - first_port
    return number if 0 <= number < len(fleet.engines) else None


async def handle(fleet: Fleet, replica: int | None, request: Request) -> Response:
    """Answers a request to an engine, or (None) to the router before all. What is wrong with it is
    told by an HTTP status. Raises RefusedError for an endpoint that is not modelled."""
    path = "/" + request.path.strip("/")
    found = ROUTES.get((request.method.upper(), path))
    if found is None:
        near = sorted(f"{method} {known}" for method, known in ROUTES if known == path)
        known = ", ".join(near or sorted({known for _, known in ROUTES}))
        raise RefusedError(
            f"{request.method} {path} is not modelled; modelled are {known}; at {caller()}"
        )
    engines = fleet.engines if replica is None else [fleet.engines[replica]]
    try:
        if any(engine.dead for engine in engines) and len(engines) == 1:
            raise EngineError(f"replica {replica} is dead", 503)
        return await found(fleet, engines, request)
    except BadRequestError as error:
        return _error(400, str(error))
    except EngineError as error:
        return _error(error.status, str(error))
    except VirtualError:
        raise
    except RunError as error:
        return _error(409, str(error))


def _error(status: int, message: str) -> Response:
    return Response({"error": {"message": message, "code": status}}, status)
