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


def _replace(buffers: Any, samplers: Any) -> None:
    """Has the buffer make no tensors, and its gates look less often."""
    import numpy as np

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


class _Groups:
    """What is known of groups, by the buffer's names of them; also the data plane, which is told
    what the buffer drops. flying: their tasks, and the versions that they began under."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.numbers: dict[str, int] = {}
        self.answers: dict[str, Any] = {}
        self.trained: set[str] = set()
        self.flying: dict[str, tuple[asyncio.Task[None], int]] = {}

    def begin(self, name: str, version: int) -> None:
        """A group is dispatched."""
        self.numbers[name] = len(self.numbers)
        self._fleet.journal.dispatched(unit(self.numbers[name]), version)

    def give_up(self, name: str) -> None:
        """A group is too old."""
        self._fleet.journal.evicted(unit(self.numbers[name]), "stale")

    async def put_samples(self, **_: Any) -> None:
        """As of the data plane."""
        await asyncio.sleep(0.01)

    async def clear_samples(self, sample_ids: list[str], **_: Any) -> None:
        """As of the data plane."""
        for name in dict.fromkeys(sample.rsplit("_", 1)[0] for sample in sample_ids):
            if name not in self.trained:
                self.give_up(name)
                self._fleet.discard(self.answers.pop(name))


class _Controller:
    """The pump and the trainer around a sampler and its buffer, as the newest controller's."""

    def __init__(self, fleet: Fleet, sampler: Any, buffer: Any, groups: _Groups) -> None:
        self._fleet, self._sampler, self._buffer, self._groups = fleet, sampler, buffer, groups
        self._tasks: set[asyncio.Task[None]] = set()

    async def _ask(self, name: str, version: int, replaces: bool) -> None:
        groups = self._groups
        while True:
            try:
                groups.answers[name] = await group_of(self._fleet, groups.numbers[name])
                break
            except EngineError:
                if not replaces:
                    self._fleet.journal.failed(unit(groups.numbers[name]))
                    await self._remove(name)
                    return
        await self._buffer.commit(name, None, version, self._fleet.updates)

    async def _remove(self, name: str) -> None:
        removed = self._buffer.remove_group(name)
        if asyncio.iscoroutine(removed):
            await removed

    async def pump(self, in_flight: int, replaces: bool) -> None:
        """Dispatches groups as the sampler admits them."""
        room = asyncio.Semaphore(in_flight * BATCH)
        capacity = self._sampler.required_buffer_capacity(BATCH) or 4 * BATCH

        def landed(task: asyncio.Task[None], name: str) -> None:
            self._tasks.discard(task)
            self._groups.flying.pop(name, None)
            room.release()

        while True:
            target = await self._sampler.admit(trainer_version_fn=lambda: self._fleet.updates)
            for _ in range(BATCH):
                while self._buffer.size() >= capacity:
                    await asyncio.sleep(0.5)
                await room.acquire()
                version = self._fleet.updates
                name = self._buffer.reserve(weight_version=version, target_step=target)
                self._groups.begin(name, version)
                task = asyncio.create_task(self._ask(name, version, replaces))
                self._groups.flying[name] = task, version
                self._tasks.add(task)
                task.add_done_callback(lambda task, name=name: landed(task, name))

    async def _select(self) -> list[str]:
        """The groups of a batch."""
        got: list[str] = []
        while len(got) < BATCH:
            await self._sampler.evict(current_train_weight=self._fleet.updates)
            meta, count = await self._sampler.select(
                current_train_weight=self._fleet.updates,
                min_prompt_groups=1,
                max_prompt_groups=BATCH - len(got),
            )
            if count:
                got += dict.fromkeys(tag["group"] for tag in meta.tags)
            else:
                await asyncio.sleep(0.5)
        return got

    async def _abort_stale(self) -> None:
        for name, (task, version) in list(self._groups.flying.items()):
            if self._sampler.should_abort_inflight(
                start_weight_version=version, current_train_weight=self._fleet.updates
            ):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                self._groups.give_up(name)
                await self._remove(name)

    async def step(self, step: int) -> None:
        """Selects, trains, aborts what the sampler can no longer select, and syncs."""
        groups, got = self._groups, await self._select()
        groups.trained.update(got)
        for name in got:
            self._fleet.journal.trained(unit(groups.numbers[name]), step)
        await self._fleet.train([groups.answers.pop(name) for name in got])
        await self._abort_stale()
        await new_weights(self._fleet, keep=True)

    async def stop(self, pumping: asyncio.Task[None]) -> None:
        """Ends what is under way."""
        pumping.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(pumping, *self._tasks, return_exceptions=True)


async def drive(
    fleet: Fleet, steps: int, sampler: str = "Windowed", replaces: bool = True
) -> dict[str, Any]:
    """Runs a sampler. replaces: whether a group that failed is asked again, as the newest
    controller does, or its slot removed."""
    import nemo_rl.algorithms.async_utils.replay_buffer as buffers
    from nemo_rl.algorithms.async_utils import staleness_sampler as samplers

    _replace(buffers, samplers)
    groups = _Groups(fleet)
    buffer = buffers.TQReplayBuffer(groups, "p", pad_value_dict={})
    config = getattr(samplers, f"{sampler}SamplerConfig")(**SAMPLERS[sampler])
    chosen = samplers.create_sampler(buffer, config)
    controller = _Controller(fleet, chosen, buffer, groups)
    pumping = asyncio.create_task(controller.pump(IN_FLIGHT.get(sampler, 3), replaces))
    for step in range(steps):
        await controller.step(step)
    await controller.stop(pumping)
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
