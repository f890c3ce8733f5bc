"""Random asyncio programs do the same on the virtual clock as under looptime, an event loop by
others; random programs of threads do the same as a list of events sorted by hand."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollcast.simulator import virtual
from tests.laws import examples

looptime = pytest.importorskip("looptime")

SECONDS = st.integers(0, 12).map(lambda eighths: eighths / 8)
NAMES = st.integers(0, 2)

LEAVES = st.one_of(
    st.tuples(st.just("sleep"), SECONDS),
    st.tuples(st.just("put"), NAMES),
    st.tuples(st.just("get"), NAMES, SECONDS),
    st.tuples(st.just("set"), NAMES),
    st.tuples(st.just("event"), NAMES, SECONDS),
    st.tuples(st.just("lock"), NAMES, SECONDS),
    st.tuples(st.just("fail")),
)
PROGRAMS = st.recursive(
    st.lists(LEAVES, min_size=1, max_size=4),
    lambda inner: st.lists(
        st.one_of(
            LEAVES,
            st.tuples(st.just("gather"), st.lists(inner, min_size=1, max_size=3)),
            st.tuples(st.just("limit"), SECONDS, inner),
            st.tuples(st.just("cancel"), SECONDS, inner),
            st.tuples(st.just("first"), st.lists(inner, min_size=1, max_size=3)),
        ),
        min_size=1,
        max_size=4,
    ),
    max_leaves=20,
)
Program = list[tuple[Any, ...]]


class _Asyncio:
    """Runs a program and writes down who did what when."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []

    async def main(self, program: Program) -> None:
        self._queues = [asyncio.Queue[int]() for _ in range(3)]
        self._events = [asyncio.Event() for _ in range(3)]
        self._locks = [asyncio.Lock() for _ in range(3)]
        try:
            await self._run(program, "0")
        except ValueError:
            self._say("failed", "0")
        # By age: asyncio.run would cancel them in the order of a set, the other loop not at all.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        left = sorted(others, key=lambda task: int(task.get_name().partition("-")[2]))
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _say(self, *what: Any) -> None:
        self.log.append((round(asyncio.get_running_loop().time(), 6), *what))

    async def _run(self, program: Program, name: str) -> None:
        for step, (kind, *args) in enumerate(program):
            try:
                await getattr(self, f"_{kind}")(f"{name}.{step}", *args)
                self._say(kind, name, step)
            except (TimeoutError, asyncio.CancelledError) as error:
                self._say(kind, name, step, type(error).__name__)
                if isinstance(error, asyncio.CancelledError):
                    raise

    async def _sleep(self, _: str, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _put(self, _: str, which: int) -> None:
        await self._queues[which].put(1)

    async def _get(self, _: str, which: int, seconds: float) -> None:
        await asyncio.wait_for(self._queues[which].get(), seconds)

    async def _set(self, _: str, which: int) -> None:
        self._events[which].set()

    async def _event(self, _: str, which: int, seconds: float) -> None:
        await asyncio.wait_for(self._events[which].wait(), seconds)

    async def _lock(self, _: str, which: int, seconds: float) -> None:
        async with asyncio.timeout(1.0), self._locks[which]:
            await asyncio.sleep(seconds)

    async def _fail(self, _: str) -> None:
        raise ValueError

    async def _gather(self, name: str, programs: list[Program]) -> None:
        parts = (self._run(part, f"{name}.{i}") for i, part in enumerate(programs))
        await asyncio.gather(*parts, return_exceptions=True)

    async def _limit(self, name: str, seconds: float, program: Program) -> None:
        await asyncio.wait_for(self._run(program, name), seconds)

    async def _cancel(self, name: str, seconds: float, program: Program) -> None:
        task = asyncio.create_task(self._run(program, name))
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def _first(self, name: str, programs: list[Program]) -> None:
        tasks = [
            asyncio.create_task(self._run(part, f"{name}.{i}")) for i, part in enumerate(programs)
        ]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(rest, key=tasks.index):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._say("first", name, sorted(tasks.index(task) for task in done))


def _under_looptime(program: Program) -> list[tuple[Any, ...]]:
    runner, loop = _Asyncio(), looptime.new_event_loop(start=0.0, noop_cycles=0)
    try:
        loop.run_until_complete(runner.main(program))
    finally:
        loop.close()
    return runner.log


@settings(max_examples=examples(60))
@given(PROGRAMS)
@example([("cancel", 0.0, [("cancel", 0.0, [("sleep", 0.125)])])])  # leaves a task behind
@example([("cancel", 0.0, [("first", [4 * [("sleep", 0.0)], [("sleep", 0.0), ("sleep", 0.125)]])])])
def test_asyncio_programs_do_as_under_looptime(program: Program) -> None:
    runner = _Asyncio()
    with virtual.clock(unseen="keep"):
        asyncio.run(runner.main(program))
    assert runner.log == _under_looptime(program)


@settings(max_examples=examples(60))
@given(st.lists(st.lists(st.integers(1, 10_000), max_size=6), max_size=5), st.integers(0, 3))
def test_threads_that_sleep_wake_in_the_order_of_their_sums(
    naps: list[list[int]], seed: int
) -> None:
    log: list[tuple[float, int]] = []

    def nap(number: int, lengths: list[int]) -> Callable[[], None]:
        def run() -> None:
            for length in lengths:
                time.sleep(length)
                log.append((time.monotonic(), number))

        return run

    with virtual.clock(seed=seed):
        threads = [threading.Thread(target=nap(n, lengths)) for n, lengths in enumerate(naps)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    due = [
        (float(sum(lengths[: i + 1])), number)
        for number, lengths in enumerate(naps)
        for i in range(len(lengths))
    ]
    assert sorted(log) == sorted(due)
    assert [at for at, _ in log] == sorted(at for at, _ in due)
