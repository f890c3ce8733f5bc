"""NeMo-RL's staleness samplers and replay buffer, unchanged
(nemo_rl/algorithms/async_utils/staleness_sampler.py, replay_buffer.py). Replaced: the data plane,
and the pump and trainer around them, which are of this file."""

from __future__ import annotations

import asyncio
from typing import Any

from plane import BATCH, Adapter, Beside, group_of, new_weights, unit

from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.ask import EngineError
from rollcast.simulator.virtual.fleet import Fleet

IN_FLIGHT = {"Windowed": 2, "ReadyFirst": 2}
SAMPLERS = {
    "Windowed": {"max_staleness_versions": 1},
    "ReadyFirst": {"max_staleness_versions": 1},
    "WeightFifo": {"max_staleness_versions": 2},
    "InOrder": {"max_lookahead_versions": 2},
}


async def drive(
    fleet: Fleet, steps: int, sampler: str = "Windowed", replaces: bool = True
) -> dict[str, Any]:
    """Admits, asks, evicts, selects, trains, and aborts what the sampler can no longer select, as
    the controller does. replaces: whether a group that failed is asked again, as the newest
    controller does, or its slot removed."""
    import nemo_rl.algorithms.async_utils.replay_buffer as buffers
    import numpy as np
    from nemo_rl.algorithms.async_utils import staleness_sampler as samplers

    buffers.record_to_train_batch = lambda record, pad_value_dict: {
        "input_lengths": np.array([10] * 4)
    }
    buffers.pack_payload = lambda batch, weight_version, group_id: (
        [f"{group_id}_{i}" for i in range(4)],
        {"x": 1},
        [{"wv": weight_version, "group": group_id}] * 4,
    )
    buffers.trace_rollout_payload = lambda **_: None
    # The gate looks every 5 ms; every half second changes times by less than 1 %, and is 50 times
    # as fast.
    for module in (samplers, buffers):
        for name in list(vars(module)):
            if "POLL" in name and isinstance(getattr(module, name), float):
                setattr(module, name, 0.5)

    class Plane:
        async def put_samples(self, **_: Any) -> None:
            await asyncio.sleep(0.01)

        async def clear_samples(self, sample_ids: list[str], **_: Any) -> None:
            for name in dict.fromkeys(sample.rsplit("_", 1)[0] for sample in sample_ids):
                if name not in trained:
                    journal.evicted(unit(numbers[name]), "stale")
                    fleet.discard(answers.pop(name))

    buffer = buffers.TQReplayBuffer(Plane(), "p", pad_value_dict={})
    chosen = samplers.create_sampler(
        buffer, getattr(samplers, f"{sampler}SamplerConfig")(**SAMPLERS[sampler])
    )
    capacity = chosen.required_buffer_capacity(BATCH) or 4 * BATCH
    journal, numbers, answers = fleet.journal, dict[str, int](), dict[str, Any]()
    trained, tasks = set[str](), set[asyncio.Task[None]]()
    flying: dict[str, tuple[asyncio.Task[None], int]] = {}
    room = asyncio.Semaphore(IN_FLIGHT.get(sampler, 3) * BATCH)

    async def one(name: str, version: int) -> None:
        while True:
            try:
                answers[name] = await group_of(fleet, numbers[name])
                break
            except EngineError:
                if not replaces:
                    journal.failed(unit(numbers[name]))
                    await remove(name)
                    return
        await buffer.commit(name, None, version, fleet.updates)

    async def remove(name: str) -> None:
        removed = buffer.remove_group(name)
        if asyncio.iscoroutine(removed):
            await removed

    async def abort_stale() -> None:
        for name, (task, version) in list(flying.items()):
            if chosen.should_abort_inflight(
                start_weight_version=version, current_train_weight=fleet.updates
            ):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                journal.evicted(unit(numbers[name]), "stale")
                await remove(name)

    def landed(task: asyncio.Task[None], name: str) -> None:
        tasks.discard(task)
        flying.pop(name, None)
        room.release()

    async def pump() -> None:
        while True:
            target = await chosen.admit(trainer_version_fn=lambda: fleet.updates)
            for _ in range(BATCH):
                while buffer.size() >= capacity:
                    await asyncio.sleep(0.5)
                await room.acquire()
                version = fleet.updates
                name = buffer.reserve(weight_version=version, target_step=target)
                numbers[name] = len(numbers)
                journal.dispatched(unit(numbers[name]), version)
                task = asyncio.create_task(one(name, version))
                flying[name] = task, version
                tasks.add(task)
                task.add_done_callback(lambda task, name=name: landed(task, name))

    pumping = asyncio.create_task(pump())
    for step in range(steps):
        got: list[str] = []
        while len(got) < BATCH:
            await chosen.evict(current_train_weight=fleet.updates)
            meta, count = await chosen.select(
                current_train_weight=fleet.updates,
                min_prompt_groups=1,
                max_prompt_groups=BATCH - len(got),
            )
            if count:
                got += dict.fromkeys(tag["group"] for tag in meta.tags)
            else:
                await asyncio.sleep(0.5)
        trained.update(got)
        for name in got:
            journal.trained(unit(numbers[name]), step)
        await fleet.train([answers.pop(name) for name in got])
        await abort_stale()
        await new_weights(fleet, keep=True)
    pumping.cancel()
    for task in tasks:
        task.cancel()
    await asyncio.gather(pumping, *tasks, return_exceptions=True)
    return {"in the buffer": buffer.size()}


ADAPTER = Adapter(
    packages=("nemo_rl",),
    absent=(
        *("torch", "ray", "tensordict", "transformers", "nemo_rl.models", "nemo_rl.experience"),
        *("nemo_rl.utils", "nemo_rl.distributed", "nemo_rl.data", "nemo_rl.environments"),
        "nemo_rl.algorithms.async_utils.trajectory_collector",
        *(f"nemo_rl.data_plane.{name}" for name in ("codec", "factory", "observability")),
        "nemo_rl.data_plane.column_io",
    ),
    drive=drive,
    beside=(
        Beside(
            "fully_async(max_staleness=1, in_flight=2, exceeded=window, refill=group, "
            "weights=keep)",
            "They agree. The sampler starts rollouts without regard to the trainer, and gives "
            "up what is too old when new weights come. Ours limited the starts (`drop`), and "
            "made steps 17 % shorter than NeMo-RL's: ours was wrong of NeMo-RL, and has "
            "`exceeded: window` since.",
            setting="WindowedSampler",
        ),
        Beside(
            "fully_async(max_staleness=1, in_flight=2, exceeded=capacity, refill=group, "
            "weights=keep)",
            "They agree. NeMo-RL keeps the KV cache of rollouts in flight, as SkyRL does.",
            setting="ReadyFirstSampler",
            options={"sampler": "ReadyFirst"},
        ),
        Beside(
            "fully_async(max_staleness=2, in_flight=3, exceeded=wait, refill=group, weights=keep)",
            "They agree.",
            setting="WeightFifoSampler",
            options={"sampler": "WeightFifo"},
        ),
        Beside(
            "fully_async(max_staleness=2, in_flight=3, exceeded=wait, refill=group, weights=keep)",
            "They agree: what a batch of ours waits for is what NeMo-RL gives its target step.",
            setting="InOrderSampler",
            options={"sampler": "InOrder"},
        ),
    ),
    laws=(
        lambda tried: laws.conserved(tried.journal),
        lambda tried: laws.age_bounded(tried.journal, 1),
    ),
)
