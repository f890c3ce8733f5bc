"""``rollcast serve``: another process asks the engines over loopback."""

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.trial import try_control
from tests.conftest import Cli
from tests.refusals import refused

SCENARIO = Path(__file__).parents[2] / "examples" / "fully_async.yaml"


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(50):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + count > 65_535:
            continue
        try:
            with ExitStack() as held:
                for i in range(count):
                    held.enter_context(socket.create_server(("127.0.0.1", first + i)))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@contextmanager
def serving(*options: str) -> Iterator[list[str]]:
    """The addresses of a server in a process of its own: two replicas and the router."""
    port = _free_ports(3)
    command = [sys.executable, "-m", "rollcast", "serve", str(SCENARIO), "--port", str(port)]
    settings = ("--set", "cluster.replicas=2", "--set", "cluster.trainer_gpus=2")
    with subprocess.Popen(
        [*command, *settings, *options], stdout=subprocess.PIPE, text=True
    ) as process:
        said = [process.stdout.readline() for _ in range(3)]
        try:
            yield [line.split()[-1] for line in said]
        finally:
            process.terminate()
        table = process.stdout.read()
        assert process.wait(60) == 0  # being stopped is how it ends
    assert "simulated time stood still" in table
    assert re.search(r"speed reached +\d+\.\d\d x", table)


def test_engines_answer_another_process_on_loopback() -> None:
    async def main(first: str, second: str, router: str) -> None:
        asked: dict[str, Any] = {"prompt": "say", "max_tokens": 400}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            one = await session.post(f"{first}/v1/completions", json=asked)
            [choice] = (await one.json())["choices"]
            assert len(choice["text"].split()) <= 400
            many = [session.post(f"{router}/v1/completions", json=asked) for _ in range(200)]
            answers = await asyncio.gather(*many)
            assert {answer.status for answer in answers} == {200}
            text = await (await session.get(f"{second}/metrics")).text()
            answered = re.search(r"vllm:request_success_total\{.*\} (\d+)", text)
            assert 0 < int(answered[1]) < 201
            assert re.search(r"rollcast:clock_virtual_s \d+", text)
            odd = await session.post(f"{first}/v1/embeddings", json={})
            assert odd.status == 501
            assert "/v1/embeddings is not modelled" in await odd.text()

    with serving("--speed", "200") as addresses:
        assert all(address.startswith("http://127.0.0.1:") for address in addresses)
        asyncio.run(main(*addresses))


def test_requests_take_the_simulations_time_on_the_clock_that_answers_tell() -> None:
    """Whatever the real time, an answer comes at the tick at which the simulation has it."""

    async def alone(fleet: Fleet) -> list[float]:
        spent = []
        for number in range(3):
            answer = await fleet.engines[0].generate(f"prompt {number}", 400)
            spent.append(answer.end_s - answer.asked_s)
        return spent

    expected = try_control(alone, SCENARIO, "cluster.replicas=2", "cluster.trainer_gpus=2").value

    async def main(first: str, *_: str) -> None:
        async with aiohttp.ClientSession() as session:
            for number, seconds in enumerate(expected):
                before = await (await session.get(f"{first}/rollcast/clock")).json()
                body = {"prompt": f"prompt {number}", "max_tokens": 400}
                answer = await session.post(f"{first}/v1/completions", json=body)
                [choice] = (await answer.json())["choices"]
                came, left = choice["rollcast"]["asked_s"], choice["rollcast"]["end_s"]
                assert left - came == pytest.approx(seconds, abs=1e-6)
                told = float(answer.headers["x-rollcast-virtual-s"])
                assert left == pytest.approx(told, abs=1e-6)
                assert before["virtual_s"] <= came
            assert before["speed"] == 100
            assert before["stood_s"] <= before["real_s"]
            stream = await session.post(
                f"{first}/v1/completions", json={"prompt": "x", "max_tokens": 400, "stream": True}
            )
            assert (await stream.content.readline()).startswith(b"data: ")
            stream.close()
            loads = 1
            while loads:  # who leaves aborts
                await asyncio.sleep(0.05)
                loads = (await (await session.get(f"{first}/load")).json())["server_load"]

    with serving("--speed", "100") as addresses:
        asyncio.run(main(*addresses))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--burst-ms", "-1"], "--burst-ms: must be from 0"),
        (["--speed", "0"], "--speed: must be above 0"),
        (["--port", "65535"], "--port: ports 65535"),
        (["--host", "nowhere"], "--host: is no address"),
        (["--error-share", "1"], "--error-share: must be"),
    ],
)
def test_bad_options_are_told(cli: Cli, options: list[str], said: str) -> None:
    error = refused(cli("serve", SCENARIO, *options))
    assert said in error


def test_a_port_in_use_is_told(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code, _, error = cli("serve", SCENARIO, "--port", server.getsockname()[1])
    assert code == 2
    assert "--port: port" in error
