"""The order of simulations: the newest question first, nothing twice, off the page's thread."""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor

from rollcast.simulator.explore.work import Choice, Outcome, outcome, prepare

WORKERS = 2
KEPT = 2000  # outcomes that are remembered


def workers(count: int = WORKERS) -> ProcessPoolExecutor:
    """Processes that simulate; started before the page has threads where the system can fork."""
    forks = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    context = multiprocessing.get_context("fork" if forks else "spawn")
    pool = ProcessPoolExecutor(count, context, initializer=prepare)
    for started in [pool.submit(prepare) for _ in range(count)]:
        started.result()
    return pool


class Memory:
    """Outcomes by key of their choice; drops the least recently used."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: OrderedDict[str, Outcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: str) -> Outcome | None:
        """The outcome, if known."""
        outcome = self._known.get(key)
        if outcome is not None:
            self._known.move_to_end(key)
        return outcome

    def put(self, key: str, outcome: Outcome) -> None:
        """Adds an outcome."""
        self._known[key] = outcome
        while len(self._known) > self._kept:
            self._known.popitem(last=False)


class Questions:
    """Answers one page's questions. Pages may share workers and memory."""

    def __init__(
        self, pool: Executor, memory: Memory, simulate: Callable[[Choice], Outcome] = outcome
    ) -> None:
        self._pool, self._memory, self._simulate = pool, memory, simulate
        self._newest = 0
        self._free = asyncio.Semaphore(WORKERS)

    async def ask(
        self, waves: Sequence[Sequence[Choice]]
    ) -> AsyncIterator[dict[tuple[int, int], Outcome]]:
        """All outcomes so far by (wave, place), after each wave. Ends early if another question
        comes."""
        self._newest += 1
        mine = self._newest
        outcomes: dict[tuple[int, int], Outcome] = {}
        for number, wave in enumerate(waves):
            answers = await asyncio.gather(*(self._answer(choice, mine) for choice in wave))
            if self._newest != mine:
                return
            outcomes.update(
                {
                    (number, place): answer
                    for place, answer in enumerate(answers)
                    if answer is not None
                }
            )
            yield outcomes

    async def _answer(self, choice: Choice, mine: int) -> Outcome | None:
        """None for an outdated question."""
        key = choice.key
        known = self._memory.get(key)
        if known is not None:
            return known
        async with self._free:
            if self._newest != mine:
                return None
            loop = asyncio.get_running_loop()
            outcome = await loop.run_in_executor(self._pool, self._simulate, choice)
        self._memory.put(key, outcome)
        return outcome
