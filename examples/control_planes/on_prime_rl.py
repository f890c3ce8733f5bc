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


class _Groups:
    """What is known of groups by their numbers. answers: by the task's key; started: versions."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.answers: dict[str, list[Any]] = {}
        self.started: dict[int, int] = {}

    def begin(self) -> int:
        """The number of the next group, which is dispatched."""
        number = len(self.started)
        self.started[number] = self.fleet.updates
        self.fleet.journal.dispatched(unit(number), self.fleet.updates)
        return number

    def evict(self, number: int, why: str) -> None:
        """A group is given up."""
        self.fleet.journal.evicted(unit(number), why)
        self.fleet.discard(self.answers.pop(f"k{number}", []))


class _Environment:
    """Asks the engines; also the collection of itself alone."""

    config = Names(group_size=GROUP)
    generation_source = Names(
        uses_live_policy=True, pool=Names(train_client=None, eval_client=None, model_name="m")
    )

    def __init__(self, vf: Any, groups: _Groups) -> None:
        self._vf, self._groups, self._client = vf, groups, Client(groups.fleet)

    async def run(self, *, task_data: Any, **_: Any) -> Any:
        number = task_data["idx"]
        answer = await self._client.generate(Prompt(number))
        self._groups.answers.setdefault(f"k{number}", []).append(answer)
        return self._vf.WireEpisode.model_construct(
            env=self._vf.EnvInfo(id="e"),
            task=Names(key=f"k{number}", hash=f"h{number}"),
            ok=True,
            errors=[],
            traces=[],
            group=None,
            run=None,
        )

    def get(self, name: str) -> Any:
        return self

    def __iter__(self) -> Any:
        return iter([self])


class _Source:
    """Numbered tasks, without end. request: their TaskRequest."""

    def __init__(self, vf: Any, request: Any, groups: _Groups) -> None:
        self._vf, self._request, self._groups = vf, request, groups

    def next_task(self, step: int) -> Any:
        number = self._groups.begin()
        task = Names(data=self._vf.TaskData(idx=number), key=f"k{number}", hash=f"h{number}")
        return self._request("e", task, step)


class _Sink:
    """Collects whole groups from the dispatcher's queue. cancellation: their GroupCancellation.
    ready: numbers of the groups."""

    def __init__(self, out: Any, cancellation: Any, groups: _Groups) -> None:
        self._out, self._cancellation, self._groups = out, cancellation, groups
        self._parts: dict[Any, list[Any]] = {}  # by group: number, episodes, cancelled ones
        self._arrived = asyncio.Event()
        self.ready: list[int] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            item = await self._out.get()
            if isinstance(item, self._cancellation):
                entry = self._parts.setdefault(item.group_id, [None, 0, 0])
                entry[2] += item.count
            else:
                entry = self._parts.setdefault(item.group.id, [None, 0, 0])
                entry[0] = int(item.task.key[1:])
                entry[1] += 1
            if entry[1] + entry[2] == GROUP and entry[0] is not None:
                if entry[2]:
                    self._groups.evict(entry[0], "cancelled")
                else:
                    self.ready.append(entry[0])
                    self._arrived.set()

    async def batch(self, oldest: int) -> list[int]:
        """Waits for a batch of groups that were started under version ``oldest`` or later; the
        others are swept out, as by their sink."""
        while True:
            started = self._groups.started
            for number in [number for number in self.ready if started[number] < oldest]:
                self.ready.remove(number)
                self._groups.evict(number, "stale")
            if len(self.ready) >= BATCH:
                break
            self._arrived.clear()
            await self._arrived.wait()
        batch, self.ready[:BATCH] = self.ready[:BATCH], []
        return batch


def _dispatcher_of(plane: Any, vf: Any, groups: _Groups, policy: Any, progress: Any) -> Any:
    """The dispatcher with its environment and source of tasks."""
    from prime_rl.orchestrator.types import TaskRequest

    plane.get_logger = Quiet
    vf.WireEpisode.record_run = lambda self, run: object.__setattr__(self, "run", run)
    shape = vf.WireEpisode.model_fields["task"].annotation
    plane._trace_task = lambda task: shape.model_construct(
        type="T", data=task.data, key=task.key, hash=task.hash
    )
    return plane.Dispatcher(
        train_envs=_Environment(vf, groups),
        eval_envs=None,
        train_source=_Source(vf, TaskRequest, groups),
        eval_source=None,
        policy_pool=_Environment.generation_source.pool,
        policy=policy,
        progress=progress,
        initial_max_inflight=IN_FLIGHT * BATCH * GROUP,
        max_inflight_ceiling=2 * IN_FLIGHT * BATCH * GROUP,
        tasks_per_minute=None,
        max_off_policy_steps=OFF_POLICY,
        run_id="r",
        run_name=None,
    )


async def drive(fleet: Fleet, steps: int) -> dict[str, Any]:
    """Collects whole groups from the dispatcher's queue, trains, announces versions."""
    import prime_rl.orchestrator.dispatcher as plane
    import verifiers.v1 as vf
    from prime_rl.orchestrator.types import GroupCancellation, Policy, Progress
    from prime_rl.orchestrator.utils import min_fresh_version

    groups, policy, progress = _Groups(fleet), Policy(0, "m"), Progress(step=1)
    dispatcher = _dispatcher_of(plane, vf, groups, policy, progress)
    running = asyncio.create_task(dispatcher.start())
    sink = _Sink(dispatcher.out_q, GroupCancellation, groups)
    sinking = asyncio.create_task(sink.run())
    for step in range(1, steps + 1):
        batch = await sink.batch(min_fresh_version(step, OFF_POLICY))
        progress.step = step + 1  # as soon as it has shipped
        for number in batch:
            fleet.journal.trained(unit(number), step - 1)
        await fleet.train([groups.answers.pop(f"k{number}")[:GROUP] for number in batch])
        await dispatcher.on_version_pending(step)
        await new_weights(fleet, keep=True)
        policy.version = step
        await dispatcher.on_new_version(step)
    await dispatcher.stop()
    sinking.cancel()
    await asyncio.gather(running, sinking, return_exceptions=True)
    return {"tasks": len(groups.started)}


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
