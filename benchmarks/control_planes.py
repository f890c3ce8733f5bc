"""What the virtual clock and its engines cost, and how true their served ones are to time.

    python -m benchmarks.control_planes [long] [awaits] [hash] [serve] [side_by_side]

Writes benchmarks/results/control_planes.json. Each part runs in a process of its own.
"""

import asyncio
import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchmarks.side_by_side import measured
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import load
from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.trial import Training, training_of, try_control

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "control_planes.json"
SCENARIO = ROOT / "examples" / "fully_async.yaml"
LENGTHS = (
    "workload.max_new_tokens=2048",
    "workload.lengths={family: lognormal, median_tokens: 400, between_sd: 0.6, within_sd: 0.4}",
)
BATCH_GROUPS, GROUP = 64, 8


def scenario(steps: int) -> Scenario:
    """8 replicas of Qwen3-8B on an H100 each; 512 rollouts a step."""
    sizes = (f"workload.batch_groups={BATCH_GROUPS}", f"workload.group_size={GROUP}")
    return load(SCENARIO, f"steps={steps}", *sizes, *LENGTHS)


async def fully_async(training: Training) -> None:
    """Two batches of groups in flight or ready; trains on the first that are whole."""
    room = asyncio.Semaphore(2 * training.batch_groups)
    ready: asyncio.Queue[list[Answer]] = asyncio.Queue()

    async def group(prompt: Prompt) -> None:
        asks = (training.engine.generate(prompt) for _ in range(training.group_size))
        ready.put_nowait(list(await asyncio.gather(*asks)))

    async def dispatch() -> None:
        async with asyncio.TaskGroup() as tasks:
            for prompt in training.prompts:
                await room.acquire()
                tasks.create_task(group(prompt))

    dispatcher = asyncio.create_task(dispatch())
    for _ in range(training.steps):
        batch = [await ready.get() for _ in range(training.batch_groups)]
        await training.train(batch)
        for _ in batch:
            room.release()
        await training.sync()
    dispatcher.cancel()
    await asyncio.gather(dispatcher, return_exceptions=True)


def _load() -> float:
    """Processes that wanted to run in the last minute, on however many cores: real times and, less
    so, CPU times are longer where it is above that."""
    return round(os.getloadavg()[0], 1)


def _measured(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    found = work()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {
        **found,
        "cpu_s": round(time.process_time() - cpu, 1),
        "wall_s": round(time.perf_counter() - wall, 1),
        "peak_gb": round(peak, 2),
        "machine_load": _load(),
    }


def long(steps: int = 1000) -> dict[str, Any]:
    """1,000 steps of 512 rollouts under an asyncio control plane on 8 replicas."""

    def work() -> dict[str, Any]:
        tried = try_control(
            lambda fleet: fully_async(training_of(fleet)), scenario(steps), units=False
        )
        tokens = tried.run.ledger.generated_tokens
        return {"steps": len(tried.run.steps), "virtual_s": round(tried.end_s), "tokens": tokens}

    return _measured(work)


def awaits(count: int = 100_000) -> dict[str, Any]:
    """So many requests awaited at once."""

    async def main(fleet: Fleet) -> int:
        asks = (fleet.engines[i % 8].generate(Prompt(i // GROUP)) for i in range(count))
        return len(await asyncio.gather(*asks))

    return _measured(lambda: {"answers": try_control(main, scenario(1), units=False).value})


def digest() -> dict[str, Any]:
    """Of the journal and the tables of a run of 20 steps."""
    tried = try_control(lambda fleet: fully_async(training_of(fleet)), scenario(20), seed=1)
    text = tried.journal.text() + repr(list(tried.run.segments.rows()))
    return {"sha256": hashlib.sha256(text.encode()).hexdigest()}


def _child(part: str, **environment: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.control_planes", f"--{part}"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def hash_seeds() -> dict[str, Any]:
    """One seed twice, and under another PYTHONHASHSEED."""
    found = [_child("digest", PYTHONHASHSEED=seed)["sha256"] for seed in ("1", "1", "77")]
    return {"equal": len(set(found)) == 1, "sha256": found[0]}


TOKENS, LONG_TOKENS = 400, 8192
"""Of an answer at most: most of the first set-up's are as long; a reasoning model's, twice that in
the median, are cut."""
LONG_LENGTHS = (
    "workload.max_new_tokens=16384",
    "workload.lengths={family: lognormal, median_tokens: 16000, between_sd: 0.3, within_sd: 0.3}",
)
Spent = tuple[float, float]
"""When a request was asked and answered, in virtual seconds."""


async def _at_most(most: int, requests: int, ask: Callable[[int], Awaitable[Spent]]) -> list[Spent]:
    """Asks them in their order, so many at once."""
    left = iter(range(requests))

    async def worker() -> list[Spent]:
        return [await ask(number) for number in left]

    return [
        one for found in await asyncio.gather(*(worker() for _ in range(most))) for one in found
    ]


def _makespan_and_mean(spent: list[Spent]) -> tuple[float, float]:
    makespan = max(end for _, end in spent) - min(asked for asked, _ in spent)
    return makespan, sum(end - asked for asked, end in spent) / len(spent)


def _are_free(*ports: int) -> bool:
    """Whether nobody listens from the first port up to the last. Those that a system gives to
    connections are above 32,767."""
    for port in range(*ports):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return False
    return True


def served(
    speed: float, requests: int = 1000, at_once: int = 1000, tokens: int = TOKENS
) -> dict[str, Any]:
    """Requests to 2 served replicas, so many at once, and the same in virtual time.

    virtual_*: by the virtual clock that each answer tells. real_*: by the client's own clock, times
    the speed: what the client and the server take for HTTP counts there.
    """
    import aiohttp

    lengths = LENGTHS if tokens == TOKENS else LONG_LENGTHS
    settings = ("cluster.replicas=2", "cluster.trainer_gpus=2", *lengths)

    async def virtually(fleet: Fleet) -> list[Spent]:
        async def ask(number: int) -> Spent:
            answer = await fleet.engines[number % 2].generate(f"prompt {number}", tokens)
            return answer.asked_s, answer.end_s

        return await _at_most(at_once, requests, ask)

    simulated = try_control(virtually, load(SCENARIO, *settings), units=False).value
    port = next(port for port in range(21_000, 32_000, 3) if _are_free(port, port + 3))
    command = [sys.executable, "-m", "rollcast", "serve", str(SCENARIO), "--speed", str(speed)]
    for setting in settings:
        command += ["--set", setting]
    with subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        took: list[Spent] = []
        try:

            async def main() -> list[Spent]:
                limits = aiohttp.TCPConnector(limit=0)
                async with aiohttp.ClientSession(connector=limits) as session:

                    async def ask(number: int) -> Spent:
                        began = time.perf_counter()
                        body = {"prompt": f"prompt {number}", "max_tokens": tokens}
                        url = f"http://127.0.0.1:{port + number % 2}/v1/completions"
                        async with session.post(url, json=body) as answer:
                            answer.raise_for_status()
                            said = await answer.json()
                        took.append((began * speed, time.perf_counter() * speed))
                        asked_s = said["choices"][0]["rollcast"]["asked_s"]
                        return asked_s, float(answer.headers["x-rollcast-virtual-s"])

                    return await _at_most(at_once, requests, ask)

            answered = asyncio.run(main())
        finally:
            process.terminate()
            process.stdout.read()
    makespan, mean = _makespan_and_mean(simulated)
    found: dict[str, Any] = {
        "speed": speed,
        "requests": requests,
        "at_once": at_once,
        "tokens": tokens,
        "simulated_makespan_s": round(makespan, 2),
    }
    for clock, spent in (("virtual", answered), ("real", took)):
        its_makespan, its_mean = _makespan_and_mean(spent)
        found[f"{clock}_makespan_off"] = round(its_makespan / makespan - 1, 4)
        found[f"{clock}_per_token_off"] = round(its_mean / mean - 1, 4)
    real_s = _makespan_and_mean(took)[0] / speed
    reached = round(_makespan_and_mean(answered)[0] / real_s, 1)
    return {**found, "reached_speed": reached, "machine_load": _load()}


PARTS: dict[str, Callable[[], Any]] = {
    "long": lambda: _child("long"),
    "awaits": lambda: _child("awaits"),
    "hash": hash_seeds,
    "side_by_side": measured,
    "serve": lambda: [
        served(1.0),
        served(10.0),
        served(50.0),
        served(1.0, 1000, 64),
        served(50.0, 3000, 64),
        served(50.0, 3000),
        served(50.0, 1000, 1000, LONG_TOKENS),
    ],
}
INNER: dict[str, Callable[[], Any]] = {"long": long, "awaits": awaits, "digest": digest}


def main() -> None:
    """Runs the parts that are named, or all."""
    given = sys.argv[1:]
    if given and given[0].removeprefix("--") in INNER and given[0].startswith("--"):
        print(json.dumps(INNER[given[0][2:]]()))
        return
    for part in given:
        if part not in PARTS:
            print(f"no part is called {part!r}; choose of {', '.join(PARTS)}", file=sys.stderr)
            sys.exit(2)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in given or PARTS:
        results[part] = PARTS[part]()
        print(part, json.dumps(results[part], indent=1))
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
