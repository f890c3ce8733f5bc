"""prime-rl's former scheduler, unchanged (src/prime_rl/orchestrator/scheduler.py of 2025 and 2026),
for defects that its history has. Replaced: groups of rollouts, which ask the engines; checkpoints
of the trainer; the calls that load weights."""

from __future__ import annotations

import asyncio
import inspect
import types
from typing import Any

from plane import BATCH, GROUP, Adapter, Quiet, group_of, unit

from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.journal import Journal
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.trial import Client

Names = types.SimpleNamespace


class _Path:
    def __init__(self, step: int) -> None:
        self.step = step

    def __truediv__(self, _: str) -> _Path:
        return self


async def drive(
    fleet: Fleet,
    steps: int,
    ahead: int = 1,
    off_policy: int = 8,
    train_s: float = 0.0,
    batch: int = BATCH,
    over: float = 2.0,
    scores_s: float = 0.0,
) -> dict[str, Any]:
    """Generates batches, which a trainer of its own task trains on. ahead: max_async_level;
    off_policy: max_off_policy_steps; train_s: more seconds an update; over: groups in flight, in
    batches; scores_s: seconds that the environment takes to score an answer."""
    import prime_rl.orchestrator.scheduler as plane  # type: ignore[import-not-found]

    journal, client = fleet.journal, Client(fleet)
    latest, fresh = [0], asyncio.Event()
    numbers = iter(range(1 << 60))
    answers: dict[int, list[Any]] = {}

    def version() -> int:
        return scheduler.ckpt_step

    def new_example() -> dict[str, Any]:
        number = next(numbers)
        answers[number] = []
        return {"number": number, "task": "t"}

    def done(number: int) -> dict[str, Any]:
        return {"number": number, "task": "t", "error": None, "trajectory": [1]}

    async def group(**given: Any) -> list[Any]:
        number = given["example"]["number"]
        journal.dispatched(unit(number), loads[0])
        began[number] = loads[0]
        try:
            answers[number] = await group_of(fleet, number)
        except asyncio.CancelledError:
            if not over_now:
                journal.evicted(unit(number), loads=loads[0] - began[number])
            raise
        ended[number] = loads[0]
        return [done(number) for _ in range(GROUP)]

    async def rollout(**given: Any) -> Any:
        number = given["example"]["number"]
        if number not in began:
            began[number] = loads[0]
            journal.dispatched(unit(number), loads[0])
        answers[number].append(await client.generate(Prompt(number)))
        await asyncio.sleep(scores_s)
        ended[number] = loads[0]
        return done(number)

    # Ages are counted in loads of weights, as the scheduler counts them.
    began: dict[int, int] = {}
    ended: dict[int, int] = {}
    loads = [0]
    over_now: list[bool] = []
    weights = Journal(lambda: fleet.kernel.now)  # a load of them is a unit of work, too

    async def load(*given: Any, **options: Any) -> None:
        path = next(value for value in (*given, *options.values()) if isinstance(value, _Path))
        journal.add("load", path.step)
        weights.dispatched(f"weights {path.step}")
        await asyncio.gather(*(engine.update_weights(path.step) for engine in fleet.engines))
        weights.trained(f"weights {path.step}", path.step)
        loads[0] += 1

    async def wait_for(path: _Path) -> None:
        while latest[0] < path.step:
            fresh.clear()
            await fresh.wait()

    finished: list[Any] = []

    class Buffer:
        def sample_examples(self, n: int) -> list[Any]:
            return [new_example() for _ in range(n)]

        sample_problems = sample_examples

        def update(self, rollouts: list[Any]) -> None:
            finished.extend(rollouts)

        def sample_rollouts(self, n: int) -> list[Any]:
            taken, finished[:n] = finished[:n], []
            return taken

    class Pool:
        def __init__(self) -> None:
            one = Names(url="a", api_base_url="a", extra_headers={})
            self.train_clients = self.clients = [one]

        async def get_next_client(self) -> Any:
            return self.clients[0]

        update_weights = staticmethod(load)

        def update_model_name(self, name: str) -> None: ...

        def get_metrics(self) -> dict[str, float]:
            return {}

    for name, value in {
        "generate_group": group,
        "run_group": group,
        "run_rollout": rollout,
        "update_weights": load,
        "wait_for_path": wait_for,
        "get_step_path": lambda _, step: _Path(step),
        "get_broadcast_dir": lambda _: None,
        "get_latest_ckpt_step": lambda _: latest[0],
        "get_logger": Quiet,
        "tqdm": lambda *_, **__: Quiet(),
        "ProgressTracker": lambda *_, **__: Quiet(),
        "compute_temperature": lambda **_: 1.0,
        "get_sampling_args": lambda *_, **__: {},
        "get_seq_len": lambda _: 1,
    }.items():
        if hasattr(plane, name):
            setattr(plane, name, value)
    config = Names(
        batch_size=batch * GROUP,
        token_batch_size=None,
        rollouts_per_example=GROUP,
        seq_len=1,
        max_steps=None,
        output_dir=None,
        sampling=None,
        model=Names(name="m"),
        log=Names(json_logging=False),
        verification=Names(enabled=False),
    )
    known = {
        "clients": ["a"],
        "admin_clients": ["a"],
        "env": None,
        "buffer": Buffer(),
        "tokenizer": None,
        "config": config,
        "inference_pool": Pool(),
        "oversampling_factor": over,
        "max_inflight_rollouts": int(over * batch * GROUP),
        "max_async_level": ahead,
        "max_off_policy_steps": off_policy,
        "strict_async_level": False,
        "tasks_per_minute": None,
    }
    takes = inspect.signature(plane.Scheduler).parameters
    scheduler = plane.Scheduler(**{name: value for name, value in known.items() if name in takes})
    batches: asyncio.Queue[list[Any]] = asyncio.Queue()

    async def trainer() -> None:
        while True:
            rollouts = await batches.get()
            taken = list(dict.fromkeys(rollout["number"] for rollout in rollouts))
            await fleet.train([answers.pop(number)[:GROUP] for number in taken])
            await asyncio.sleep(train_s)
            latest[0] += 1
            fresh.set()

    training = asyncio.create_task(trainer())
    loop = getattr(scheduler, "update_policy_loop", None)
    own = (
        None if hasattr(scheduler, "update_policy_task") and hasattr(plane, "safe_cancel") else loop
    )
    updating = asyncio.create_task(own()) if own is not None else None
    for step in range(steps):
        rollouts = await scheduler.generate_batch(step)
        for number in dict.fromkeys(rollout["number"] for rollout in rollouts):
            journal.trained(unit(number), ended[number], began[number])
        batches.put_nowait(rollouts)
    over_now.append(True)
    training.cancel()
    for task in (updating, getattr(scheduler, "update_policy_task", None)):
        if task is not None:
            task.cancel()
    return {"version": version(), "weights": weights}


ADAPTER = Adapter(
    packages=("prime_rl",),
    absent=(
        *("torch", "verifiers", "openai", "httpx", "aiolimiter", "transformers", "tqdm"),
        *(f"prime_rl.orchestrator.{name}" for name in ("buffer", "config", "utils", "vf_utils")),
        *(f"prime_rl.utils.{name}" for name in ("client", "logger", "utils", "vf")),
        *("prime_rl.utils.temp_scheduling", "prime_rl.configs"),
    ),
    drive=drive,
    folders=("src",),
)
