"""The engines behind clients of HTTP, without a socket, and with one."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import pytest

from rollcast.simulator import virtual
from rollcast.simulator.virtual.async_llm import AsyncLLM
from rollcast.simulator.virtual.faults import Fault
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.aiohttp_session import Session, aiohttp_of
from rollcast.simulator.virtual.http.httpx_transport import BlockingTransport, Transport
from rollcast.simulator.virtual.prompts import Reply
from tests.virtual.test_virtual_engines import constant, small

FIRST, ROUTER = "http://127.0.0.1:8000", "http://router"


def run(
    main: Callable[[Fleet, httpx.AsyncClient], Awaitable[Any]], tokens: int = 600, **options: Any
) -> Any:
    with virtual.clock():

        async def body() -> Any:
            scenario = small("cluster.replicas=2", "cluster.trainer_gpus=2")
            fleet = Fleet(scenario, replies=constant(tokens), **options)
            async with httpx.AsyncClient(transport=Transport(fleet), timeout=None) as client:
                return await main(fleet, client)

        return asyncio.run(body())


def test_completions_and_chat() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        asked = {"prompt": [1, 2, 3], "max_tokens": 50, "n": 2, "logprobs": 1}
        said = (
            await client.post(f"{FIRST}/v1/completions", json=asked | {"return_token_ids": True})
        ).json()
        assert [choice["index"] for choice in said["choices"]] == [0, 1]
        for choice in said["choices"]:
            assert choice["finish_reason"] == "length"
            assert len(choice["token_ids"]) == 50 == len(choice["logprobs"]["token_logprobs"])
            assert choice["rollcast"]["versions"] == [[0, 50]]
        assert said["usage"]["completion_tokens"] == 100
        messages = [{"role": "user", "content": "hello"}]
        chat = (
            await client.post(
                f"{ROUTER}/v1/chat/completions",
                json={"messages": messages, "logprobs": True, "model": "m"},
            )
        ).json()
        [choice] = chat["choices"]
        assert choice["finish_reason"] == "stop"
        assert len(choice["message"]["content"].split()) == 600
        assert len(choice["logprobs"]["content"]) == 600
        assert chat["model"] == "m"

    run(main)


def test_streams_and_who_leaves_them() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        asked = {"prompt": "say", "max_tokens": 600, "n": 2, "stream": True}
        async with client.stream("POST", f"{FIRST}/v1/completions", json=asked) as answer:
            lines = [line[6:] async for line in answer.aiter_lines() if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line)["choices"][0] for line in lines[:-1]]
        for index in range(2):
            mine = [chunk for chunk in chunks if chunk["index"] == index]
            assert sum(len(chunk["text"].split()) for chunk in mine) == 600
            assert [chunk["finish_reason"] for chunk in mine[:-1]] == [None] * (len(mine) - 1)
            assert len(mine) > 3
        assert len({chunk["index"] for chunk in chunks[:4]}) == 2
        async with client.stream("POST", f"{FIRST}/v1/completions", json=asked) as answer:
            async for line in answer.aiter_lines():
                assert line
                break
            assert fleet.engines[0].load == 2
        await asyncio.sleep(1.0)
        assert fleet.engines[0].load == 0

    run(main)


def test_orders_of_vllm() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        async def order(method: str, path: str, **options: Any) -> Any:
            answer = await client.request(method, f"{FIRST}{path}", **options)
            assert answer.status_code == 200, answer.text
            return answer.json() if answer.content else None

        sampling = {"prompt": "p", "max_tokens": 600, "request_id": "mine"}
        asked = asyncio.ensure_future(client.post(f"{FIRST}/v1/completions", json=sampling))
        await asyncio.sleep(1.0)
        said = (await client.get(f"{FIRST}/metrics")).text
        assert 'vllm:num_requests_running{model_name="fully_async",engine="0"} 1.0' in said
        assert (await order("GET", "/load")) == {"server_load": 1}
        assert (await order("POST", "/pause?mode=keep")) == {"status": "paused"}
        assert (await order("GET", "/is_paused")) == {"is_paused": True}
        before = fleet.now_s
        await order("POST", "/update_weights", json={"update_info": {"weight_version": "step-4"}})
        assert fleet.now_s - before >= fleet.scenario.cost.sync_s
        assert (await order("GET", "/weight_info")) == {"weight_version": "step-4"}
        assert (await order("POST", "/resume")) == {"status": "resumed"}
        assert await order("POST", "/abort_requests", json={"request_ids": ["mine"]}) == {
            "status": "aborted",
            "aborted": 1,
        }
        [choice] = (await asked).json()["choices"]
        assert choice["finish_reason"] == "abort"
        assert 0 < len(choice["text"].split()) < 600
        await order("POST", "/sleep?level=2")
        assert (await order("GET", "/is_sleeping")) == {"is_sleeping": True}
        await order("POST", "/wake_up")
        models = await order("GET", "/v1/models")
        assert models["data"][0]["max_model_len"] > 600
        for path in ("/start_weight_update", "/finish_weight_update", "/reset_prefix_cache"):
            await order("POST", path, json={})

    run(main)


def test_sglang_s_endpoints() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        asked = {"input_ids": [4] * 30, "sampling_params": {"max_new_tokens": 600}}
        post, get = client.post, client.get
        going = asyncio.ensure_future(
            post(f"{FIRST}/generate", json=asked | {"return_logprob": True})
        )
        await asyncio.sleep(1.0)
        assert (await get(f"{FIRST}/flush_cache")).status_code == 400
        assert (await post(f"{FIRST}/pause_generation", json={"mode": "retract"})).is_success
        updated = await post(f"{FIRST}/update_weights_from_disk", json={"weight_version": "7"})
        assert updated.json()["success"]
        assert (await post(f"{FIRST}/continue_generation", json={})).is_success
        meta = (await going).json()["meta_info"]
        assert meta["finish_reason"]["type"] == "stop"
        assert len(meta["output_token_logprobs"]) == meta["completion_tokens"] == 600
        assert (await get(f"{FIRST}/flush_cache")).status_code == 200
        going = asyncio.ensure_future(post(f"{ROUTER}/generate", json=asked))
        await asyncio.sleep(1.0)
        loads = (await get(f"{ROUTER}/v1/loads?include=core")).json()["loads"]
        assert sum(load["num_reqs"] for load in loads) == 1
        assert len((await get(f"{ROUTER}/workers")).json()["workers"]) == 2
        assert (await post(f"{ROUTER}/abort_request", json={"abort_all": True})).is_success
        meta = (await going).json()["meta_info"]
        assert meta["finish_reason"] == {"type": "abort", "message": "Abort in decoding"}

    run(main)


BAD: list[tuple[str, str, dict[str, Any], int, str]] = [
    ("POST", "/v1/completions", {}, 400, "prompt must be"),
    ("POST", "/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens must be"),
    ("POST", "/v1/completions", {"prompt": "x", "n": "two"}, 400, "n must be a whole number"),
    ("POST", "/v1/chat/completions", {"messages": "x"}, 400, "list of messages"),
    ("POST", "/pause?mode=soft", {}, 400, "abort, wait or keep"),
    ("POST", "/pause_generation", {"mode": "soft"}, 400, "abort, retract or in_place"),
    ("POST", "/generate", {"text": ""}, 400, "input_ids"),
    ("POST", "/abort_request", {}, 400, "abort_all or rid"),
]


def test_bad_requests_are_told() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        for method, path, body, status, said in BAD:
            answer = await client.request(method, f"{FIRST}{path}", json=body)
            assert (answer.status_code, said in answer.text) == (status, True), answer.text
        answer = await client.post(f"{FIRST}/generate", content=b"{")
        assert (answer.status_code, "no JSON" in answer.text) == (400, True)
        with pytest.raises(virtual.RefusedError, match=r"/v1/embeddings is not .*test_http.py:"):
            await client.post(f"{FIRST}/v1/embeddings", json={})

    run(main)


def test_a_dead_engine_and_one_that_does_not_answer_in_time() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        await asyncio.sleep(2.0)
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{FIRST}/health")
        with pytest.raises(httpx.ReadTimeout, match="within 3 s"):
            await client.post(
                "http://127.0.0.1:8001/generate",
                json={"text": "p", "sampling_params": {"max_new_tokens": 600}},
                timeout=3.0,
            )
        await asyncio.sleep(1.0)
        assert fleet.engines[1].load == 0

    run(main, faults=[Fault(1.0, "dies")])


def test_aiohttp_sessions() -> None:
    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        with aiohttp_of(fleet):
            async with aiohttp.ClientSession(base_url=FIRST) as session:
                assert isinstance(session, Session)
                asked = {"prompt": "p", "max_tokens": 40}
                async with session.post("/v1/completions", json=asked) as answer:
                    assert answer.status == 200
                    assert (await answer.json())["usage"]["completion_tokens"] == 40
                answer = await session.post("/v1/completions", json={})
                with pytest.raises(aiohttp.ClientResponseError):
                    answer.raise_for_status()
                lines = []
                async with session.post("/v1/completions", json=asked | {"stream": True}) as answer:
                    async for line in answer.content:
                        lines.append(line)
                assert lines[-2] == b"data: [DONE]\n"
                late, long = aiohttp.ClientTimeout(total=0.5), asked | {"max_tokens": 600}
                with pytest.raises(TimeoutError):
                    await session.post("/v1/completions", json=long, timeout=late)
        assert aiohttp.ClientSession is not Session

    run(main)


def test_httpx_in_threads() -> None:
    got = []
    with virtual.clock():
        fleet = Fleet(small(), replies=constant(100))

        def ask() -> None:
            with httpx.Client(transport=BlockingTransport(fleet), timeout=None) as client:
                got.append(client.post(f"{FIRST}/generate", json={"text": "p"}).json())

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [answer["meta_info"]["completion_tokens"] for answer in got] == [100] * 3


def test_async_llm() -> None:
    class Sampling:
        max_tokens, logprobs = 400, 0

    async def main(fleet: Fleet, client: httpx.AsyncClient) -> None:
        llm = AsyncLLM(fleet)

        async def ask(name: str) -> Any:
            async for output in llm.generate({"prompt_token_ids": [1, 2]}, Sampling(), name):
                last = output
            return last

        first, second = asyncio.ensure_future(ask("a")), asyncio.ensure_future(ask("b"))
        await asyncio.sleep(1.0)
        await llm.abort("a")
        assert (await first).outputs[0].finish_reason == "abort"
        assert len((await second).outputs[0].token_ids) == 400
        await llm.pause_generation(mode="wait")
        await llm.collective_rpc("update_weights_from_path")
        await llm.resume_generation()
        with pytest.raises(
            virtual.RefusedError, match=r"AsyncLLM.encode is not modelled; at .*main"
        ):
            llm.encode("x")

    run(main)


def test_lengths_by_a_callback_see_prompt_place_and_turn() -> None:
    seen = []

    def replies(number: int, place: int, turn: int) -> Reply:
        seen.append((number, place, turn))
        return Reply(10 + number, 0.5)

    async def main() -> None:
        fleet = Fleet(small(), replies=replies)
        for prompt in ("a", "b", "a"):
            await fleet.engines[0].generate(prompt)

    with virtual.clock():
        asyncio.run(main())
    assert seen == [(0, 0, 0), (1, 0, 0), (0, 1, 0)]
