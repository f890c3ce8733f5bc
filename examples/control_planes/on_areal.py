"""AReaL's dispatcher of rollouts, its task runner and its staleness manager, unchanged
(areal/infra/workflow_executor.py, async_task_runner.py, staleness_manager.py): four threads and two
event loops. Replaced: the workflow, which asks the engines."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Iterator
from typing import Any

from plane import BATCH, Adapter, Beside, group_of, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.ask import EngineError
from rollcast.simulator.virtual.fleet import Fleet

STALENESS, CONCURRENT = 2, 64


def drive(fleet: Fleet, steps: int, rejected: float = 0.02) -> dict[str, Any]:
    """Submits and waits for a batch, trains on it, and syncs."""
    import areal.infra.workflow_executor as executor
    from areal.infra.staleness_manager import StalenessManager

    rng, journal = random.Random(0), fleet.journal

    class Version:
        def get_version(self) -> int:
            return fleet.updates

    manager = StalenessManager(Version(), CONCURRENT, BATCH, STALENESS)

    def task(given: Any) -> Any:
        async def run() -> Any:
            journal.dispatched(unit(given.task_id), fleet.updates)
            try:
                answers = await group_of(fleet, given.task_id)
            except EngineError:
                answers = []
            if not answers or rng.random() < rejected:
                fleet.discard(answers)
                manager.on_rollout_rejected()
                journal.evicted(unit(given.task_id), "rejected")
                return None
            manager.on_rollout_accepted()
            return given.task_id, answers

        return run

    def tasks() -> Iterator[Any]:
        for number in itertools.count():
            yield executor._RolloutTaskInput(task_id=number, data={}, workflow=None)

    dispatcher = executor.BatchTaskDispatcher(
        max_queue_size=256, task_factory=task, staleness_manager=manager
    )
    dispatcher.initialize(logging.getLogger("areal"))
    given = tasks()
    for step in range(steps):
        groups = dispatcher.active_submit_and_wait(given, BATCH)
        for number, _ in groups:
            journal.trained(unit(number), step)
        fleet.train([answers for _, answers in groups]).wait()
        dispatcher.pause()
        asyncio.run(new_weights(fleet, keep=False))
        dispatcher.resume()
    dispatcher.destroy()
    return {}


ADAPTER = Adapter(
    packages=("areal",),
    absent=(
        *("colorlog", "flask", "torchdata", "werkzeug", "torch", "lark", "hydra", "ray", "numba"),
        *("orjson", "einops", "psutil", "aiofiles", "omegaconf", "transformers", "datasets"),
        *("jinja2", "PIL", "tensordict", "megatron", "mbridge", "wandb", "swanlab", "trackio"),
    ),
    module="areal.infra.staleness_manager",
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=2, in_flight=4, exceeded=capacity, refill=group)",
            "They agree: this is AReaL's rule.",
            options={"rejected": 0.0},
        ),
    ),
    laws=(
        lambda tried: laws.conserved(tried.journal, patience_steps=40),
        lambda tried: laws.admission_bounded(tried.journal, STALENESS, BATCH, slack=BATCH),
    ),
)
