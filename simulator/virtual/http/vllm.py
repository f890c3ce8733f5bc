"""vLLM's endpoints for RL, load and metrics, as of vllm/entrypoints/serve (0.14 and later), and
those that prime-rl and SkyRL add to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from rollcast.simulator.virtual.engine import Engine, PauseMode
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response
from rollcast.simulator.virtual.http.openai import sample

Orders = Sequence[Engine]
"""The engines that an order is for: the one addressed, or all behind a router's address."""
Handler = Callable[[Fleet, Orders, Request], Awaitable[Response]]


def _one(engines: Orders) -> int | None:
    return engines[0].number if len(engines) == 1 else None


async def completions(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /v1/completions``."""
    return await sample(fleet, _one(engines), request, chat=False)


async def chat(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    return await sample(fleet, _one(engines), request, chat=True)


async def models(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /v1/models``."""
    most = fleet.scenario.workload.max_prompt_tokens + fleet.scenario.workload.max_new_tokens
    model = {"id": fleet.scenario.name, "object": "model", "max_model_len": most}
    return Response({"object": "list", "data": [model]})


async def health(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /health``: 503 of an engine that is dead."""
    return Response(status=503 if any(engine.dead for engine in engines) else 200)


async def pause(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /pause``, in the modes abort, wait and keep."""
    mode = request.query.get("mode") or request.body.get("mode") or "abort"
    if mode not in ("abort", "wait", "keep"):
        raise BadRequestError(f"mode must be abort, wait or keep, got {mode!r}")
    await asyncio.gather(*(engine.pause(cast(PauseMode, mode)) for engine in engines))
    if mode != "keep" and request.query.get("clear_cache", "true").lower() != "false":
        for engine in engines:
            engine.flush_cache()
    return Response({"status": "paused"})


async def resume(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /resume``."""
    await asyncio.gather(*(engine.resume() for engine in engines))
    return Response({"status": "resumed"})


async def is_paused(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /is_paused``."""
    return Response({"is_paused": any(engine.paused for engine in engines)})


async def abort_requests(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /abort_requests``: of these names; an empty list aborts all."""
    names = request.body.get("request_ids") or None
    aborted = sum(len(engine.abort(names)) for engine in engines)
    return Response({"status": "aborted", "aborted": aborted})


async def update_weights(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /update_weights``, ``/fetch_weights``."""
    info = request.body.get("update_info") or request.body
    label = info.get("weight_version") if isinstance(info, dict) else None
    await asyncio.gather(*(engine.update_weights(label=label) for engine in engines))
    return Response({"status": "ok", "message": "Weights updated"})


async def weight_version(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /update_weight_version``."""
    label = request.body.get("new_version")
    for engine in engines:
        engine.label = None if label is None else str(label)
    return Response({"success": True, "new_version": label})


async def weight_info(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /weight_info``, ``/get_weight_version``."""
    return Response({"weight_version": engines[0].label or str(engines[0].version)})


async def nothing_to_do(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """Orders that take no time of their own: the groups of processes that carry weights."""
    return Response({"message": "ok", "success": True, "status": "ok"})


async def world_size(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /get_world_size``."""
    return Response({"world_size": fleet.scenario.shape.gpus_per_replica})


async def sleep(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /sleep``."""
    level = int(request.query.get("level", "1"))
    await asyncio.gather(*(engine.sleep(level) for engine in engines))
    return Response()


async def wake_up(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /wake_up``."""
    await asyncio.gather(*(engine.wake_up() for engine in engines))
    return Response()


async def is_sleeping(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /is_sleeping``."""
    return Response({"is_sleeping": any(engine.sleeping for engine in engines)})


async def reset_cache(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /reset_prefix_cache``."""
    for engine in engines:
        engine.flush_cache()
    return Response({"status": "ok"})


async def load(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /load``: requests on the engine."""
    return Response({"server_load": sum(engine.load for engine in engines)})


def clock_figures(fleet: Fleet) -> dict[str, float]:
    """Of the virtual clock: ``virtual_s``, and what `Pace.figures` says where it has a pace."""
    pace = fleet.kernel.pace
    return {"virtual_s": fleet.now_s} if pace is None else pace.figures(fleet.now_s)


async def clock(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /rollcast/clock``: virtual time, for clients that measure."""
    return Response(clock_figures(fleet))


async def metrics(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /metrics``, in Prometheus' text form."""
    lines: list[str] = []
    for name, kind, value in _METRICS:
        lines.append(f"# TYPE vllm:{name} {kind}")
        for engine in engines:
            labels = f'model_name="{fleet.scenario.name}",engine="{engine.number}"'
            lines.append(f"vllm:{name}{{{labels}}} {float(value(engine))}")
    engine_spec = fleet.scenario.engine
    config = f'block_size="{engine_spec.block_tokens}",num_gpu_blocks="{engine_spec.kv_blocks}"'
    lines += ["# TYPE vllm:cache_config_info gauge", f"vllm:cache_config_info{{{config}}} 1.0"]
    for name, seconds in clock_figures(fleet).items():
        lines += [f"# TYPE rollcast:clock_{name} gauge", f"rollcast:clock_{name} {seconds}"]
    return Response("\n".join(lines) + "\n")


_METRICS: tuple[tuple[str, str, Callable[[Engine], float]], ...] = (
    ("num_requests_running", "gauge", lambda engine: engine.replica.running),
    ("num_requests_waiting", "gauge", lambda engine: engine.replica.waiting + len(engine.held)),
    ("kv_cache_usage_perc", "gauge", lambda engine: engine.replica.kv_used),
    ("num_preemptions_total", "counter", lambda engine: engine.preemptions),
    ("prompt_tokens_total", "counter", lambda engine: engine.prompt_tokens),
    ("generation_tokens_total", "counter", lambda engine: engine.new_tokens),
    ("request_success_total", "counter", lambda engine: engine.answered),
    ("prefix_cache_queries_total", "counter", lambda engine: engine.prompt_tokens),
    ("prefix_cache_hits_total", "counter", lambda engine: engine.cached_tokens),
)

ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/chat/completions"): chat,
    ("GET", "/v1/models"): models,
    ("GET", "/health"): health,
    ("GET", "/ping"): health,
    ("GET", "/liveness"): health,
    ("GET", "/load"): load,
    ("GET", "/metrics"): metrics,
    ("GET", "/rollcast/clock"): clock,
    ("POST", "/pause"): pause,
    ("POST", "/resume"): resume,
    ("GET", "/is_paused"): is_paused,
    ("POST", "/abort_requests"): abort_requests,
    ("POST", "/init_weight_transfer_engine"): nothing_to_do,
    ("POST", "/start_weight_update"): nothing_to_do,
    ("POST", "/finish_weight_update"): nothing_to_do,
    ("POST", "/update_weights"): update_weights,
    ("POST", "/update_weight_version"): weight_version,
    ("GET", "/weight_info"): weight_info,
    ("GET", "/get_world_size"): world_size,
    ("POST", "/sleep"): sleep,
    ("POST", "/wake_up"): wake_up,
    ("GET", "/is_sleeping"): is_sleeping,
    ("POST", "/reset_prefix_cache"): reset_cache,
    ("POST", "/init_broadcaster"): nothing_to_do,
    ("POST", "/load_lora_adapter"): nothing_to_do,
    ("POST", "/fetch_weights"): update_weights,
}


def served(engines: Orders) -> dict[str, Any]:
    """What a router says of the engines behind it."""
    return {"workers": [{"id": str(engine.number), "load": engine.load} for engine in engines]}
