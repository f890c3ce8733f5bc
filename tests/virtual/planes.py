"""A control plane with a staleness bound, to be broken in one way at a time."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.virtual.ask import Answer
from rollcast.simulator.virtual.prompts import Prompt
from rollcast.simulator.virtual.trial import Training, training_of


@dataclass
class Plane:
    """Keeps ``ahead`` + 1 batches of groups in flight or ready, and trains on the oldest whole
    ones. broken: what it does wrong."""

    ahead: int = 1
    broken: str = ""

    async def main(self, training: Training) -> None:
        """Drives a training run."""
        ready: list[tuple[int, list[Answer]]] = []
        arrived = asyncio.Event()
        number, done, steps = 0, 0, 0
        room = asyncio.Semaphore((self.ahead + 1) * training.batch_groups)
        tasks: dict[asyncio.Task[None], None] = {}

        async def group(n: int) -> None:
            nonlocal done
            while True:
                engines = training.fleet.engines
                engine = engines[0] if self.broken == "starves one" else training.engine
                asks = [engine.generate(Prompt(n)) for _ in range(training.group_size)]
                got = await asyncio.gather(*asks, return_exceptions=True)
                answers = [answer for answer in got if isinstance(answer, Answer)]
                if len(answers) == training.group_size:
                    break
                if self.broken == "forgets who is left after an error":
                    room.release()
                    return
                training.fleet.discard(answers)
                await asyncio.sleep(1.0)
            done += 1
            if self.broken == "loses one" and done == 9:
                room.release()
                return
            ready.append((n, list(answers)))
            if self.broken == "doubles one" and done == 9:
                ready.append((n, list(answers)))
            arrived.set()

        async def dispatch() -> None:
            nonlocal number
            while True:
                if self.broken == "one at a time":
                    while tasks:
                        await asyncio.wait(list(tasks))
                await room.acquire()
                task = asyncio.create_task(group(number))
                tasks[task] = None
                task.add_done_callback(tasks.pop)
                number += 1

        dispatcher = asyncio.create_task(dispatch())
        kept: tuple[int, list[Answer]] | None = None
        while steps < training.steps:
            while len(ready) < training.batch_groups:
                arrived.clear()
                await arrived.wait()
            ready.sort(key=lambda entry: entry[0])
            if self.broken == "ages one" and kept is None:
                kept = ready.pop(0)
                continue
            if self.broken == "youngest first":
                ready.reverse()
            batch = [ready.pop(0) for _ in range(training.batch_groups)]
            if self.broken == "ages one" and steps == training.steps - 1 and kept is not None:
                ready.append(batch[0])
                batch[0] = kept
            await training.train([answers for _, answers in batch])
            if self.broken == "sleeps" and steps == 3:
                await asyncio.sleep(900.0)
            if self.broken == "stops" and steps == 3:
                dispatcher.cancel()
                await asyncio.gather(dispatcher, return_exceptions=True)
            for _ in batch:
                room.release()
            if self.broken == "opens the gate":
                room.release()
            await training.sync()
            steps += 1
        dispatcher.cancel()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(dispatcher, *tasks, return_exceptions=True)


def plane(broken: str = "", ahead: int = 1) -> Callable[[Any], Any]:
    """For `try_control`."""
    return lambda fleet: Plane(ahead, broken).main(training_of(fleet))


async def rollout(engine: Any, prompts: Any) -> list[list[Answer]]:
    """The synchronous policy, for ``rollcast compare --control``."""
    asks = [_group(engine, prompt) for prompt in _take(prompts)]
    return list(await asyncio.gather(*asks))


def _take(prompts: Any, groups: int = 4) -> list[Prompt]:
    return [next(prompts) for _ in range(groups)]


async def _group(engine: Any, prompt: Prompt, size: int = 8) -> list[Answer]:
    return list(await asyncio.gather(*(engine.generate(prompt) for _ in range(size))))


async def lazy(engine: Any, prompts: Any) -> list[list[Answer]]:
    """Trains on nothing."""
    return []


async def breaks(engine: Any, prompts: Any) -> list[list[Answer]]:
    """Raises an error of its own."""
    raise OSError("no disk")


async def forgets(engine: Any, prompts: Any) -> list[list[Any]]:
    """Does not await its answers."""
    return [[asyncio.ensure_future(asyncio.sleep(1))]]


def plain(engine: Any, prompts: Any) -> list[list[Answer]]:
    """Is not async."""
    return []


async def seven(engine: Any, prompts: Any) -> int:
    """Returns no groups."""
    return 7


async def stuck(engine: Any, prompts: Any) -> None:
    """Awaits what never comes."""
    await asyncio.Event().wait()
