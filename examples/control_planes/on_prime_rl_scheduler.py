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


def _done(number: int) -> dict[str, Any]:
    """A rollout of the group ``number``, as the scheduler knows it."""
    return {"number": number, "task": "t", "error": None, "trajectory": [1]}


class _Rollouts:
    """Asks the engines, in groups or one by one. Ages are counted in loads of weights, as the
    scheduler counts them. began, ended: loads, by group; weights: a journal in which each load is a
    unit of work; over: whether the run ends, so that what is cancelled is not evicted."""

    def __init__(self, fleet: Fleet, scores_s: float) -> None:
        self._fleet, self._client, self._scores_s = fleet, Client(fleet), scores_s
        self._loads = 0
        self.answers: dict[int, list[Any]] = {}
        self.began: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.weights = Journal(lambda: fleet.kernel.now)
        self.over = False

    def _begin(self, number: int) -> None:
        self.began[number] = self._loads
        self._fleet.journal.dispatched(unit(number), self._loads)

    async def group(self, **given: Any) -> list[Any]:
        """In place of generate_group and run_group."""
        number = given["example"]["number"]
        self._begin(number)
        try:
            self.answers[number] = await group_of(self._fleet, number)
        except asyncio.CancelledError:
            if not self.over:
                loads = self._loads - self.began[number]
                self._fleet.journal.evicted(unit(number), loads=loads)
            raise
        self.ended[number] = self._loads
        return [_done(number) for _ in range(GROUP)]

    async def one(self, **given: Any) -> Any:
        """In place of run_rollout."""
        number = given["example"]["number"]
        if number not in self.began:
            self._begin(number)
        self.answers[number].append(await self._client.generate(Prompt(number)))
        await asyncio.sleep(self._scores_s)
        self.ended[number] = self._loads
        return _done(number)

    async def load(self, *given: Any, **options: Any) -> None:
        """In place of update_weights."""
        path = next(value for value in (*given, *options.values()) if isinstance(value, _Path))
        self._fleet.journal.add("load", path.step)
        self.weights.dispatched(f"weights {path.step}")
        await asyncio.gather(*(engine.update_weights(path.step) for engine in self._fleet.engines))
        self.weights.trained(f"weights {path.step}", path.step)
        self._loads += 1

    def train(self, numbers: Any) -> Any:
        """An update on groups, which is awaited."""
        return self._fleet.train([self.answers.pop(number)[:GROUP] for number in numbers])


class _Trainer:
    """Trains on batches in a task of its own. latest: the version of its checkpoint."""

    def __init__(self, rollouts: _Rollouts, train_s: float) -> None:
        self._rollouts, self._train_s = rollouts, train_s
        self._fresh = asyncio.Event()
        self.batches: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.latest = 0

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            batch = await self.batches.get()
            await self._rollouts.train(dict.fromkeys(rollout["number"] for rollout in batch))
            await asyncio.sleep(self._train_s)
            self.latest += 1
            self._fresh.set()

    async def wait_for(self, path: _Path) -> None:
        """Until there is a checkpoint of this step."""
        while self.latest < path.step:
            self._fresh.clear()
            await self._fresh.wait()


class _Buffer:
    """Numbers examples, and keeps finished rollouts until they are sampled."""

    def __init__(self, answers: dict[int, list[Any]]) -> None:
        self._answers, self._numbers = answers, iter(range(1 << 60))
        self._finished: list[Any] = []

    def sample_examples(self, n: int) -> list[Any]:
        numbers = [next(self._numbers) for _ in range(n)]
        self._answers.update((number, []) for number in numbers)
        return [{"number": number, "task": "t"} for number in numbers]

    sample_problems = sample_examples

    def update(self, rollouts: list[Any]) -> None:
        self._finished.extend(rollouts)

    def sample_rollouts(self, n: int) -> list[Any]:
        taken, self._finished[:n] = self._finished[:n], []
        return taken


class _Pool:
    """The clients of the engines."""

    def __init__(self, load: Any) -> None:
        one = Names(url="a", api_base_url="a", extra_headers={})
        self.train_clients = self.clients = [one]
        self.update_weights = load

    async def get_next_client(self) -> Any:
        return self.clients[0]

    def update_model_name(self, name: str) -> None: ...

    def get_metrics(self) -> dict[str, float]:
        return {}


def _replace(plane: Any, rollouts: _Rollouts, trainer: _Trainer) -> None:
    """Has the scheduler's module call ours, by the names that it has."""
    for name, value in {
        "generate_group": rollouts.group,
        "run_group": rollouts.group,
        "run_rollout": rollouts.one,
        "update_weights": rollouts.load,
        "wait_for_path": trainer.wait_for,
        "get_step_path": lambda _, step: _Path(step),
        "get_broadcast_dir": lambda _: None,
        "get_latest_ckpt_step": lambda _: trainer.latest,
        "get_logger": Quiet,
        "tqdm": lambda *_, **__: Quiet(),
        "ProgressTracker": lambda *_, **__: Quiet(),
        "compute_temperature": lambda **_: 1.0,
        "get_sampling_args": lambda *_, **__: {},
        "get_seq_len": lambda _: 1,
    }.items():
        if hasattr(plane, name):
            setattr(plane, name, value)


def _scheduler_of(
    plane: Any, rollouts: _Rollouts, batch: int, over: float, ahead: int, off_policy: int
) -> Any:
    """The scheduler, with those of these options that it takes."""
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
        "buffer": _Buffer(rollouts.answers),
        "tokenizer": None,
        "config": config,
        "inference_pool": _Pool(rollouts.load),
        "oversampling_factor": over,
        "max_inflight_rollouts": int(over * batch * GROUP),
        "max_async_level": ahead,
        "max_off_policy_steps": off_policy,
        "strict_async_level": False,
        "tasks_per_minute": None,
    }
    takes = inspect.signature(plane.Scheduler).parameters
    return plane.Scheduler(**{name: value for name, value in known.items() if name in takes})


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

    rollouts = _Rollouts(fleet, scores_s)
    trainer = _Trainer(rollouts, train_s)
    _replace(plane, rollouts, trainer)
    scheduler = _scheduler_of(plane, rollouts, batch, over, ahead, off_policy)
    training = asyncio.create_task(trainer.run())
    loop = getattr(scheduler, "update_policy_loop", None)
    starts_it = hasattr(scheduler, "update_policy_task") and hasattr(plane, "safe_cancel")
    updating = None if loop is None or starts_it else asyncio.create_task(loop())
    for step in range(steps):
        done = await scheduler.generate_batch(step)
        for number in dict.fromkeys(rollout["number"] for rollout in done):
            fleet.journal.trained(unit(number), rollouts.ended[number], rollouts.began[number])
        trainer.batches.put_nowait(done)
    rollouts.over = True
    training.cancel()
    for task in (updating, getattr(scheduler, "update_policy_task", None)):
        if task is not None:
            task.cancel()
    return {"version": scheduler.ckpt_step, "weights": rollouts.weights}


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
