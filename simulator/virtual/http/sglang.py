"""SGLang's native endpoints, as its page on RL and the clients of slime and AReaL use them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.engine import PauseMode, answer_of
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.messages import BadRequestError, Request, Response, whole
from rollcast.simulator.virtual.http.openai import LOGPROB, extra
from rollcast.simulator.virtual.http.vllm import (
    Handler,
    Orders,
    health,
    nothing_to_do,
    served,
    weight_info,
)


async def generate(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /generate``: of ``input_ids`` or ``text``."""
    body = request.body
    prompt = body.get("input_ids", body.get("text"))
    if not isinstance(prompt, str | list) or not prompt:
        raise BadRequestError("give input_ids, a list of token identifiers, or text")
    sampling = body.get("sampling_params") or {}
    if not isinstance(sampling, Mapping):
        raise BadRequestError("sampling_params must be an object")
    if whole(sampling, "n", 1) != 1:
        raise BadRequestError("sampling_params.n other than 1 is not modelled")
    replica = engines[0].number if len(engines) == 1 else None
    most = whole(sampling, "max_new_tokens", 128)
    ask = fleet.ask(prompt, most, replica=replica, request_id=body.get("rid"))
    return Response(_answer(body, await answer_of(fleet, ask)))


def _answer(body: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    finish: dict[str, Any] = {"type": answer.finish}
    if answer.finish == "abort":
        finish["message"] = "Abort in decoding" if answer.new_tokens else "Abort before prefill"
    if answer.finish == "length":
        finish["length"] = answer.new_tokens
    ids = answer.token_ids
    meta: dict[str, Any] = {
        "id": answer.request_id,
        "finish_reason": finish,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.new_tokens,
        "cached_tokens": answer.cached_tokens,
        "weight_version": str(answer.versions[-1].version if answer.versions else answer.version),
        "e2e_latency": answer.end_s - answer.asked_s,
        "rollcast": extra(answer),
    }
    if body.get("return_logprob"):
        meta["output_token_logprobs"] = [[LOGPROB, token, None] for token in ids]
    return {"text": answer.text, "output_ids": ids, "meta_info": meta}


async def pause(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /pause_generation``, in the modes abort, retract and in_place."""
    mode = request.body.get("mode") or "abort"
    if mode not in ("abort", "retract", "in_place"):
        raise BadRequestError(f"mode must be abort, retract or in_place, got {mode!r}")
    await asyncio.gather(*(engine.pause(cast(PauseMode, mode)) for engine in engines))
    return Response({"message": "Generation paused successfully.", "status": "ok"})


async def go_on(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /continue_generation``."""
    await asyncio.gather(*(engine.resume() for engine in engines))
    return Response({"message": "Generation continued successfully.", "status": "ok"})


async def abort(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /abort_request``: all, or one by its ``rid``."""
    rid = request.body.get("rid")
    if not request.body.get("abort_all") and rid is None:
        raise BadRequestError("give abort_all or rid")
    for engine in engines:
        engine.abort(None if request.body.get("abort_all") else [str(rid)])
    return Response()


async def flush(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``/flush_cache``: 400 while requests are in flight."""
    flushed = [engine.flush_cache() for engine in engines].count(False) == 0
    return Response("Cache flushed." if flushed else "Flush cache failed.", 200 if flushed else 400)


async def loads(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /v1/loads``, ``/get_load``."""
    return Response(
        {
            "loads": [
                {
                    "num_reqs": engine.load,
                    "num_running_reqs": engine.replica.running,
                    "num_waiting_reqs": engine.load - engine.replica.running,
                }
                for engine in engines
            ]
        }
    )


async def update(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /update_weights_from_disk``, ``_from_distributed``, ``_from_tensor``."""
    in_flight = sum(len(engine.asks) for engine in engines)
    if request.body.get("abort_all_requests"):
        for engine in engines:
            engine.abort()
    label = request.body.get("weight_version")
    await asyncio.gather(*(engine.update_weights(label=label) for engine in engines))
    return Response({"success": True, "message": "ok", "num_paused_requests": in_flight})


async def release(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /release_memory_occupation``."""
    await asyncio.gather(*(engine.sleep() for engine in engines))
    return Response()


async def occupy(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``POST /resume_memory_occupation``."""
    await asyncio.gather(*(engine.wake_up() for engine in engines))
    return Response()


async def workers(fleet: Fleet, engines: Orders, request: Request) -> Response:
    """``GET /workers`` of a router."""
    return Response(served(engines))


ROUTES: dict[tuple[str, str], Handler] = {
    ("POST", "/generate"): generate,
    ("POST", "/pause_generation"): pause,
    ("POST", "/continue_generation"): go_on,
    ("POST", "/abort_request"): abort,
    ("GET", "/flush_cache"): flush,
    ("POST", "/flush_cache"): flush,
    ("GET", "/v1/loads"): loads,
    ("GET", "/get_load"): loads,
    ("POST", "/init_weights_update_group"): nothing_to_do,
    ("POST", "/destroy_weights_update_group"): nothing_to_do,
    ("POST", "/update_weights_from_disk"): update,
    ("POST", "/update_weights_from_distributed"): update,
    ("POST", "/update_weights_from_tensor"): update,
    ("POST", "/release_memory_occupation"): release,
    ("POST", "/resume_memory_occupation"): occupy,
    ("GET", "/get_weight_version"): weight_info,
    ("GET", "/health_generate"): health,
    ("GET", "/workers"): workers,
}
