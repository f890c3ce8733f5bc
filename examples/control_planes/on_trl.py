"""TRL's asynchronous rollout loop, unchanged (trl/experimental/async_grpo/async_rollout_worker.py),
against the engines' own HTTP endpoints. Replaced: the tokenizer, and the process around the loop,
which is a thread here."""

from __future__ import annotations

import inspect
import queue
import threading
from collections import Counter
from typing import Any

from plane import BATCH, GROUP, Adapter, Quiet, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.aiohttp_session import aiohttp_of

STARVED_S = 3600.0


class _Tokenizer:
    response_template = chat_template = "x"
    eos_token_id = pad_token_id = 0

    def apply_chat_template(self, messages: Any, *_: Any, **options: Any) -> Any:
        text = str(messages[0]["content"]) if messages else "0"
        ids = [9, *(ord(letter) for letter in text)]
        return {"input_ids": ids} if options.get("return_dict") else ids

    def decode(self, *_: Any, **__: Any) -> str:
        return "answer"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **options: [1]


class _Value:
    value = 0


def drive(fleet: Fleet, steps: int, in_flight: int = 4 * BATCH) -> dict[str, Any]:
    """Takes a batch of samples from the loop's queue, and trains. in_flight: the loop's option
    max_inflight_tasks."""
    import trl.experimental.async_grpo.async_rollout_worker as worker

    journal = fleet.journal
    worker.logger = Quiet()
    worker.parse_response = lambda *_, **__: {"role": "assistant", "content": "answer"}
    samples: queue.Queue[Any] = queue.Queue(maxsize=16 * BATCH)
    version, heartbeat, failed = _Value(), _Value(), threading.Event()
    errors: queue.Queue[Any] = queue.Queue(1)
    with aiohttp_of(fleet):
        takes = inspect.signature(worker._AsyncRolloutLoop.__init__).parameters
        newer = {"eos_token_ids": [0], "metrics_queue": queue.Queue()}
        loop = worker._AsyncRolloutLoop(
            **{name: value for name, value in newer.items() if name in takes},
            model_name="m",
            dataset=[{"prompt": [{"role": "user", "content": f"{i}"}]} for i in range(4096)],
            reward_funcs=[
                lambda prompts, completions, **_: [1.0 + 0.5 * i for i in range(len(prompts))]
            ],
            processing_class=_Tokenizer(),
            rollout_buffer=samples,
            model_version_value=version,
            heartbeat_value=heartbeat,
            failed_event=failed,
            exception_info_queue=errors,
            num_generations=GROUP,
            max_inflight_tasks=in_flight,
            max_tokens=fleet.scenario.workload.max_new_tokens,
            vllm_server_url="http://router",
            request_timeout=100_000,
        )
        thread = threading.Thread(target=loop.run, name="rollout loop", daemon=True)
        thread.start()
        seen: Counter[Any] = Counter()
        for step in range(steps):
            taken = 0
            while taken < BATCH * GROUP:
                try:
                    sample = samples.get(timeout=STARVED_S)
                except queue.Empty:
                    journal.add("starved", step)
                    loop._stop_event.set()
                    return {"starved in step": step}
                name = f"{sample.group_id}"
                if not seen[name]:
                    journal.dispatched(unit(name), sample.model_version)
                    journal.trained(unit(name), step)
                seen[name] += 1
                taken += 1
            fleet.after(20.0, "the trainer").wait()
            version.value += 1
            journal.add("train", step)
        loop._stop_event.set()
        thread.join()
    if failed.is_set():
        raise RuntimeError(errors.get_nowait()[2])
    return {"groups": len(seen), "short": sum(n != GROUP for n in list(seen.values())[:-8])}


ADAPTER = Adapter(
    packages=("trl",),
    absent=("torch", "accelerate", "datasets", "pandas", "pyarrow", "transformers"),
    drive=drive,
    policy="fully_async(in_flight=4)",
    laws=(
        lambda tried: laws.trains(tried.journal, STARVED_S / 2, until_s=tried.end_s),
        lambda tried: laws.waiting_bounded(tried.journal, 64),
    ),
)
