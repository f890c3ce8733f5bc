"""verl's V1 replay buffer with its samplers, unchanged (verl/trainer/ppo/v1/replay_buffer.py),
which polls with time.sleep. Replaced: the transfer queue, and the agent loops that fill it, which
run in a thread with an event loop."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from typing import Any

from plane import BATCH, GROUP, Adapter, Beside, group_of, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.ask import EngineError
from rollcast.simulator.virtual.fleet import Fleet

STALENESS = 2


def drive(fleet: Fleet, steps: int, exceeded: str = "drop") -> dict[str, Any]:
    """Samples, trains, clears, and refills. exceeded: what becomes of prompts beyond the bound."""
    store: dict[str, dict[str, dict[str, Any]]] = {"train": {}}
    rows, journal = store["train"], fleet.journal
    answers: dict[str, Any] = {}
    cleared: dict[str, str] = {}  # by the buffer, since it was last asked
    numbers = iter(range(1 << 60))
    step_now = [1]
    inbox: list[str] = []
    stopped = threading.Event()

    def clear(partition_id: str, keys: list[str]) -> None:
        for key in keys:
            row = rows.pop(key, None)
            if row is not None and row.get("is_prompt"):
                cleared[key] = row["status"]

    queue: Any = types.ModuleType("transfer_queue")
    queue.KVBatchMeta = lambda partition_id, keys, tags: types.SimpleNamespace(
        partition_id=partition_id, keys=keys, tags=tags
    )
    queue.kv_list = lambda *_, **__: {
        part: {key: dict(tags) for key, tags in kept.items()} for part, kept in store.items()
    }
    queue.kv_clear, queue.kv_batch_get = clear, lambda **_: None
    sys.modules["transfer_queue"] = queue
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

    async def one(name: str) -> None:
        status = "finished"
        try:
            answers[name] = await group_of(fleet, int(name))
        except EngineError:
            status = "failure"
        if name in rows:
            rows.update({f"{name}_{i}_0": {"uid": name} for i in range(GROUP)})
            rows[name]["status"] = status

    async def agents() -> None:
        tasks: dict[asyncio.Task[None], None] = {}
        while not stopped.is_set():
            while inbox:
                task = asyncio.create_task(one(inbox.pop(0)))
                tasks[task] = None
                task.add_done_callback(tasks.pop)
            await asyncio.sleep(0.1)
        for task in list(tasks):
            task.cancel()

    def submit(count: int) -> None:
        for _ in range(count):
            number = next(numbers)
            rows[str(number)] = {
                "is_prompt": True,
                "uid": str(number),
                "status": "running",
                "global_steps": step_now[0],
            }
            journal.dispatched(unit(number), step_now[0] - 1)
            inbox.append(str(number))

    thread = threading.Thread(target=lambda: asyncio.run(agents()), name="agent loops")
    thread.start()
    buffer = ReplayBufferAsync(
        "separate_async", None, STALENESS, exceeded, {}, poll_interval=2.0, refill_fn=submit
    )
    submit(BATCH)  # num_warmup_batches of trainer.v1.separate_async
    for step in range(1, steps + 1):
        step_now[0] = step
        submit(BATCH)
        meta, _ = buffer.sample(step, "train", BATCH)
        names = list(dict.fromkeys(key.split("_")[0] for key in meta.keys))
        for name in names:
            cleared.pop(name, None)
            journal.trained(unit(int(name)), step - 1)
        for name, status in cleared.items():
            journal.evicted(unit(int(name)), status)
            fleet.discard(answers.pop(name, []))
        queue.kv_clear("train", [*meta.keys, *names])
        cleared.clear()
        fleet.train([answers.pop(name) for name in names]).wait()
        asyncio.run(new_weights(fleet, keep=False))
    stopped.set()
    thread.join()
    del sys.modules["transfer_queue"]
    return {"left": sum(bool(row.get("is_prompt")) for row in rows.values())}


ADAPTER = Adapter(
    packages=("verl",),
    absent=(
        *("ray", "tensordict", "torch", "hydra", "codetiming", "orjson", "datasets", "cachetools"),
        *("fastapi", "torchdata", "peft", "accelerate", "psutil", "omegaconf", "transformers"),
    ),
    module="verl.trainer.ppo.v1.replay_buffer",
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=1, in_flight=2, exceeded=drop)",
            "They agree. The threshold counts the versions that a prompt spans: 2 is one "
            "version behind. verl looks every 2 s, which our scenario says, too (`poll_s`); "
            "where it looks every 10 ms it drops 8 groups in 40 steps (3 to 11, six seeds), and "
            "ours without `poll_s` 9 (6 to 14). Ours dropped 20 until it, too, replaced them "
            "under the next weights.",
            setting="drop",
            scenario=("poll_s=2",),
        ),
        Beside(
            "fully_async(max_staleness=1, in_flight=2, exceeded=wait)",
            "They agree.",
            setting="wait",
            options={"exceeded": "wait"},
            scenario=("poll_s=2",),
        ),
    ),
    laws=(
        lambda tried: laws.conserved(tried.journal),
        lambda tried: laws.age_bounded(tried.journal, STALENESS),
    ),
)
