"""TRL's asynchronous rollout loop, unchanged (trl/experimental/async_grpo/async_rollout_worker.py),
against the engines' own HTTP endpoints. Replaced: the tokenizer, and the process around the loop,
which is a thread here."""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
from typing import Any

from plane import BATCH, GROUP, Adapter, Beside, Quiet, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.ask import Answer, Ask
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.http.aiohttp_session import aiohttp_of
from rollcast.simulator.virtual.prompts import placeholder

STARVED_S, STALENESS = 3600.0, 2


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


class _Asked:
    """The fleet's requests, found by what TRL has of their answers: the first token."""

    def __init__(self, fleet: Fleet, version: _Value) -> None:
        self._fleet, self._version, self._ask = fleet, version, fleet.ask
        self._asks: dict[int, Ask] = {}
        self.groups: set[int] = set()
        fleet.ask = self.ask  # type: ignore[method-assign]

    def ask(self, *args: Any, **options: Any) -> Ask:
        """As `Fleet.ask`; says when the first of a group is asked."""
        ask = self._ask(*args, **options)
        group = ask.conversation.number
        self._asks[placeholder(ask.conversation.serial, 0, 1)[0]] = ask
        if group not in self.groups:
            self.groups.add(group)
            self._fleet.journal.dispatched(unit(group), self._version.value)
        return ask

    def answer(self, sample: Any) -> Answer:
        """Of a sample of the loop's queue."""
        first = list(sample.completion_mask).index(1)
        answer: Answer = self._asks.pop(int(sample.input_ids[first])).pending.value
        return answer


class _Shared:
    """What the loop and the trainer hand each other."""

    def __init__(self, waiting: int) -> None:
        self.samples: queue.Queue[Any] = queue.Queue(maxsize=waiting)
        self.version, self.heartbeat, self.failed = _Value(), _Value(), threading.Event()
        self.errors: queue.Queue[Any] = queue.Queue(1)


def _loop_of(worker: Any, fleet: Fleet, shared: _Shared, in_flight: int) -> Any:
    """The rollout loop, made as its parent process makes it."""
    takes = inspect.signature(worker._AsyncRolloutLoop.__init__).parameters
    newer = {"eos_token_ids": [0], "metrics_queue": queue.Queue()}
    return worker._AsyncRolloutLoop(
        **{name: value for name, value in newer.items() if name in takes},
        model_name="m",
        dataset=[{"prompt": [{"role": "user", "content": f"{i}"}]} for i in range(4096)],
        reward_funcs=[
            lambda prompts, completions, **_: [1.0 + 0.5 * i for i in range(len(prompts))]
        ],
        processing_class=_Tokenizer(),
        rollout_buffer=shared.samples,
        model_version_value=shared.version,
        heartbeat_value=shared.heartbeat,
        failed_event=shared.failed,
        exception_info_queue=shared.errors,
        num_generations=GROUP,
        max_inflight_tasks=in_flight,
        max_tokens=fleet.scenario.workload.max_new_tokens,
        vllm_server_url="http://router",
        request_timeout=100_000,
    )


class _Trainer:
    """Takes samples as the trainer does. trained, evicted: groups."""

    def __init__(self, fleet: Fleet, shared: _Shared) -> None:
        self._fleet, self._shared = fleet, shared
        self._asked = _Asked(fleet, shared.version)
        self.trained, self.evicted = set[int](), set[int]()

    def batch(self, step: int) -> list[Answer]:
        """As many samples as a batch has, without those that are too old. Raises queue.Empty where
        none comes."""
        batch: list[Answer] = []
        while len(batch) < BATCH * GROUP:
            sample = self._shared.samples.get(timeout=STARVED_S)
            answer, group = self._asked.answer(sample), sample.group_id
            is_new = group not in self.trained | self.evicted
            if self._shared.version.value - sample.model_version > STALENESS:
                self._fleet.discard([answer], "stale")
                if is_new:
                    self.evicted.add(group)
                    self._fleet.journal.evicted(unit(group), "stale")
                continue
            batch.append(answer)
            if is_new:
                self.trained.add(group)
                self._fleet.journal.trained(unit(group), step)
        return batch

    def step(self, step: int) -> None:
        """Takes a batch, trains on it, and brings the weights."""
        self._fleet.train(self.batch(step)).wait()
        asyncio.run(new_weights(self._fleet, keep=True))
        self._shared.version.value += 1


def drive(
    fleet: Fleet, steps: int, in_flight: int = STALENESS * BATCH * GROUP, waiting: int = 1024
) -> dict[str, Any]:
    """Runs the loop in a thread beside a trainer. in_flight, waiting: rollouts, the options
    max_inflight_tasks and queue_maxsize."""
    import trl.experimental.async_grpo.async_rollout_worker as worker

    worker.logger = Quiet()
    worker.parse_response = lambda *_, **__: {"role": "assistant", "content": "answer"}
    shared = _Shared(waiting)
    trainer = _Trainer(fleet, shared)
    with aiohttp_of(fleet):
        loop = _loop_of(worker, fleet, shared, in_flight)
        thread = threading.Thread(target=loop.run, name="rollout loop", daemon=True)
        thread.start()
        for step in range(steps):
            try:
                trainer.step(step)
            except queue.Empty:
                fleet.journal.add("starved", step)
                loop._stop_event.set()
                return {"starved in step": step}
        loop._stop_event.set()
        thread.join()
    if shared.failed.is_set():
        raise RuntimeError(shared.errors.get_nowait()[2])
    return {"trained": len(trainer.trained), "too old": len(trainer.evicted)}


ADAPTER = Adapter(
    packages=("trl",),
    absent=("torch", "accelerate", "datasets", "pandas", "pyarrow", "transformers"),
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=2, in_flight=2, exceeded=window, weights=keep)",
            "TRL starts rollouts without regard to the trainer, and drops what is too old when "
            "the trainer takes it. Ours limited the starts, and made steps 10 % shorter than "
            "TRL's: ours was wrong of TRL, and has `exceeded: window` since. What remains is "
            "right on both sides: TRL lets rollouts finish that are too old already, ours "
            "aborts them.",
        ),
    ),
    laws=(
        lambda tried: laws.trains(tried.journal, STARVED_S / 2, until_s=tried.end_s),
        lambda tried: laws.conserved(tried.journal, patience_steps=40),
        lambda tried: laws.age_bounded(tried.journal, STALENESS),
    ),
    module="trl.experimental.async_grpo.async_rollout_worker",
)
