"""slime's fully asynchronous rollout: its worker thread, its loops and its queue, unchanged
(slime/rollout/fully_async_rollout.py). Replaced: the call of the engines, and the data source."""

from __future__ import annotations

import asyncio
import time
import types
from typing import Any

from plane import BATCH, Adapter, Beside, group_of, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.fleet import Fleet


def drive(fleet: Fleet, steps: int, concurrency: int = 32) -> dict[str, Any]:
    """Generates, trains and syncs, as slime's train_async.py does. Returns the groups that are in
    flight or ready at the end."""
    import slime.rollout.fully_async_rollout as rollout
    from slime.utils.types import Sample

    class State:
        def __init__(self, args: Any) -> None:
            self.sampling_params: dict[str, Any] = {}

    async def generate(
        args: Any, group: list[Any], sampling_params: Any = None, evaluation: bool = False
    ) -> list[Any]:
        try:
            answers = await group_of(fleet, group[0].index, len(group))
        finally:
            source.flying.discard(group[0].index)
        for sample, answer in zip(group, answers, strict=True):
            sample.status, sample.answer = Sample.Status.COMPLETED, answer
        return group

    class Source:
        def __init__(self) -> None:
            self.number, self.again, self.flying = 0, list[Any](), set[int]()

        def get_samples(self, count: int) -> list[Any]:
            if self.again:
                group = self.again.pop(0)
            else:
                group = [Sample(index=self.number) for _ in range(size)]
                fleet.journal.dispatched(unit(self.number), fleet.updates)
                self.number += 1
            self.flying.add(group[0].index)
            return [group]

        def add_samples(self, groups: list[Any]) -> None:
            self.again += groups

    batch, size = fleet.scenario.plan.batch.groups, fleet.scenario.plan.batch.group_size
    rollout.GenerateState, rollout.generate_and_rm_group = State, generate
    args = types.SimpleNamespace(
        sglang_server_concurrency=concurrency // 4,
        rollout_num_engines=4,
        rollout_num_gpus=4,
        rollout_num_gpus_per_engine=1,
        rollout_global_dataset=True,
        rollout_batch_size=batch,
    )
    source = Source()
    for step in range(steps):
        groups = rollout.generate_rollout_fully_async(args, step, source)
        for group in groups:
            fleet.journal.trained(unit(group[0].index), step)
        fleet.train([[sample.answer for sample in group] for group in groups]).wait()
        asyncio.run(new_weights(fleet, keep=False))
    time.sleep(0.1)  # who is whole at this instant comes to the queue
    ready = [group[0].index for _, group in list(rollout._global_worker.output_queue.queue)]
    again = [group[0].index for group in source.again]
    return {"held": [unit(number) for number in (*source.flying, *ready, *again)]}


ADAPTER = Adapter(
    packages=("slime",),
    absent=("torch", "ray", "slime.rollout.rm_hub", "sglang_router"),
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=3, in_flight=2, exceeded=capacity, refill=group)",
            "They agree. slime asks for another group when a whole one is complete. Ours asked "
            "for one as soon as as many rollouts were free, and made steps 4 % shorter than "
            "slime's: ours was wrong of slime, and has `refill: group` since.",
        ),
    ),
    laws=(
        lambda tried: laws.conserved(tried.journal, tried.value["held"]),
        lambda tried: laws.waiting_bounded(tried.journal, 2 * 32 + BATCH),
    ),
)
