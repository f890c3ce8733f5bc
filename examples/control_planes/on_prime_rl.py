"""prime-rl's dispatcher, unchanged (src/prime_rl/orchestrator/dispatcher.py). Replaced: the
environment, which asks the engines, the task source, and the sink and watcher around it."""

from __future__ import annotations

import asyncio
import types
from typing import Any

from plane import BATCH, GROUP, Adapter, Beside, Quiet, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.fleet import Fleet
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.trial import Client

OFF_POLICY, IN_FLIGHT = 2, 2
Names = types.SimpleNamespace


async def drive(fleet: Fleet, steps: int) -> dict[str, Any]:
    """Collects whole groups from the dispatcher's queue, trains, announces versions."""
    import prime_rl.orchestrator.dispatcher as plane
    import verifiers.v1 as vf
    from prime_rl.orchestrator.types import (
        GroupCancellation,
        Policy,
        Progress,
        TaskRequest,
    )
    from prime_rl.orchestrator.utils import min_fresh_version

    journal, client = fleet.journal, Client(fleet)
    plane.get_logger = Quiet
    kept: dict[str, list[Any]] = {}
    started: dict[int, int] = {}

    def evict(number: int, why: str) -> None:
        journal.evicted(unit(number), why)
        fleet.discard(kept.pop(f"k{number}", []))

    class Task:
        def __init__(self, number: int) -> None:
            self.data = vf.TaskData(idx=number)
            self.key, self.hash = f"k{number}", f"h{number}"

    class Environment:
        config = Names(group_size=GROUP)
        generation_source = Names(
            uses_live_policy=True, pool=Names(train_client=None, eval_client=None, model_name="m")
        )

        async def run(self, *, task_data: Any, **_: Any) -> Any:
            number = task_data["idx"]
            answer = await client.generate(Prompt(number))
            kept.setdefault(f"k{number}", []).append(answer)
            return vf.WireEpisode.model_construct(
                env=vf.EnvInfo(id="e"),
                task=Names(key=f"k{number}", hash=f"h{number}"),
                ok=True,
                errors=[],
                traces=[],
                group=None,
                run=None,
            )

    class Environments:
        one = Environment()

        def get(self, name: str) -> Any:
            return self.one

        def __iter__(self) -> Any:
            return iter([self.one])

    class Source:
        number = 0

        def next_task(self, step: int) -> Any:
            number, self.number = self.number, self.number + 1
            started[number] = fleet.updates
            journal.dispatched(unit(number), fleet.updates)
            return TaskRequest("e", Task(number), step)

    vf.WireEpisode.record_run = lambda self, run: object.__setattr__(self, "run", run)
    shape = vf.WireEpisode.model_fields["task"].annotation
    plane._trace_task = lambda task: shape.model_construct(
        type="T", data=task.data, key=task.key, hash=task.hash
    )
    policy, progress, source = Policy(0, "m"), Progress(step=1), Source()
    dispatcher = plane.Dispatcher(
        train_envs=Environments(),
        eval_envs=None,
        train_source=source,
        eval_source=None,
        policy_pool=Environment.generation_source.pool,
        policy=policy,
        progress=progress,
        initial_max_inflight=IN_FLIGHT * BATCH * GROUP,
        max_inflight_ceiling=2 * IN_FLIGHT * BATCH * GROUP,
        tasks_per_minute=None,
        max_off_policy_steps=OFF_POLICY,
        run_id="r",
        run_name=None,
    )
    running = asyncio.create_task(dispatcher.start())
    ready: list[int] = []
    parts: dict[Any, list[Any]] = {}
    arrived = asyncio.Event()

    async def sink() -> None:
        while True:
            item = await dispatcher.out_q.get()
            if isinstance(item, GroupCancellation):
                entry = parts.setdefault(item.group_id, [None, 0, 0])
                entry[2] += item.count
            else:
                entry = parts.setdefault(item.group.id, [None, 0, 0])
                entry[0] = int(item.task.key[1:])
                entry[1] += 1
            if entry[1] + entry[2] == GROUP:
                if entry[0] is not None and not entry[2]:
                    ready.append(entry[0])
                    arrived.set()
                elif entry[0] is not None:
                    evict(entry[0], "cancelled")

    sinking = asyncio.create_task(sink())
    for step in range(1, steps + 1):
        oldest = min_fresh_version(step, OFF_POLICY)
        while True:  # their sink sweeps its queue, too
            for number in [number for number in ready if started[number] < oldest]:
                ready.remove(number)
                evict(number, "stale")
            if len(ready) >= BATCH:
                break
            arrived.clear()
            await arrived.wait()
        batch, ready[:BATCH] = ready[:BATCH], []
        progress.step = step + 1  # as soon as it has shipped
        for number in batch:
            journal.trained(unit(number), step - 1)
        await fleet.train([kept.pop(f"k{number}")[:GROUP] for number in batch])
        await dispatcher.on_version_pending(step)
        await new_weights(fleet, keep=True)
        policy.version = step
        await dispatcher.on_new_version(step)
    await dispatcher.stop()
    sinking.cancel()
    await asyncio.gather(running, sinking, return_exceptions=True)
    return {"tasks": source.number}


ADAPTER = Adapter(
    packages=("prime_rl", "prime_rl_configs"),
    absent=("torch", "msgspec", "wandb"),
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=2, in_flight=2, exceeded=window, weights=keep)",
            "As TRL, but prime-rl aborts what is too old when weights come, as ours does. What "
            "remains is prime-rl's: what it has in flight grows by at most a tenth in 5 s, at "
            "the start and after it has aborted (without this limit it is 1 % slower than "
            "ours).",
        ),
    ),
    laws=(
        lambda tried: laws.waiting_bounded(tried.journal, 13 * BATCH),
        lambda tried: laws.trains(tried.journal, 600.0, until_s=tried.end_s),
    ),
    folders=("src", "packages/prime-rl-configs/src"),
)
