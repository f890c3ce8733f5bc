"""The virtual clock: threads, loops, queues, sockets; its reports; nothing of it stays behind."""

import asyncio
import datetime
import http.server
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import time
import types
import urllib.request
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import pytest

from rollcast.simulator import virtual
from rollcast.simulator.virtual.wall import EPOCH_S

HOUR = 3600.0


def test_threads_queues_and_sleeps_take_virtual_time_alone() -> None:
    real = time.perf_counter()
    with virtual.clock() as clock:
        inbox: queue.Queue[float] = queue.Queue()

        def work() -> None:
            for _ in range(3):
                time.sleep(HOUR)
                inbox.put(time.monotonic())

        thread = threading.Thread(target=work)
        thread.start()
        assert [inbox.get() for _ in range(3)] == [HOUR, 2 * HOUR, 3 * HOUR]
        with pytest.raises(queue.Empty):
            inbox.get(timeout=0.5 * HOUR)
        thread.join()
        assert clock.now_s == time.monotonic() == 3.5 * HOUR
    assert time.perf_counter() - real < HOUR


def test_loops_in_several_threads_share_the_clock() -> None:
    ended = []

    async def sleeper(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await asyncio.to_thread(time.sleep, 1.0)
        ended.append((time.monotonic(), name))

    with virtual.clock():
        threads = [
            threading.Thread(target=lambda n=n: asyncio.run(sleeper(f"loop {n}", 10.0 - n)))
            for n in range(3)
        ]
        for thread in threads:
            thread.start()
        asyncio.run(sleeper("main", 5.0))
        for thread in threads:
            thread.join()
    assert ended == [(6.0, "main"), (9.0, "loop 2"), (10.0, "loop 1"), (11.0, "loop 0")]


def test_one_loop_wakes_another_thread_safely() -> None:
    with virtual.clock():
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def answer() -> float:
            await asyncio.sleep(7.0)
            return loop.time()

        assert asyncio.run_coroutine_threadsafe(answer(), loop).result(timeout=100.0) == 7.0
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def test_pools_conditions_events_semaphores_and_timers() -> None:
    with virtual.clock() as clock:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(time.sleep, [1.0] * 8))
        assert clock.now_s == 2.0
        event, condition = threading.Event(), threading.Condition()
        threading.Timer(3.0, event.set).start()
        assert event.wait(10.0)
        assert not threading.Event().wait(1.0)
        with condition:
            assert not condition.wait(1.0)
        gate = threading.Semaphore(1)
        assert gate.acquire()
        assert not gate.acquire(timeout=1.0)
        assert clock.now_s == 8.0


def test_a_wait_of_zero_seconds_lets_the_clock_go_on() -> None:
    with virtual.clock(events=10_000) as clock, ThreadPoolExecutor(1) as pool:
        late = pool.submit(time.sleep, 5.0)
        with pytest.raises(TimeoutError):
            list(as_completed([late], timeout=2.0))
        assert clock.now_s == pytest.approx(2.0, abs=1e-5)
        polled = threading.Event()
        late.add_done_callback(lambda _: polled.set())
        time.sleep(2.99999)
        while not polled.wait(0):
            pass
        assert clock.now_s == pytest.approx(5.0, abs=1e-5)


def test_a_wait_until_a_deadline_ends_whatever_the_rounding() -> None:
    with virtual.clock() as clock:
        time.sleep(1234.567)
        condition, end = threading.Condition(), time.monotonic() + 0.05
        rounds = 0
        with condition:
            while (left := end - time.monotonic()) > 0:
                condition.wait(left)
                rounds += 1
        assert rounds < 3
        assert clock.now_s >= end


def test_every_clock_of_the_run_is_the_same_by_whatever_name() -> None:
    with virtual.clock() as clock:
        began = time.time(), datetime.datetime.now(datetime.UTC)
        time.sleep(60.0)
        assert clock.now_s == monotonic() == time.perf_counter() == time.monotonic_ns() / 1e9
        assert time.time() - began[0] == 60.0
        assert datetime.datetime.now(datetime.UTC) - began[1] == datetime.timedelta(minutes=1)
        assert isinstance(began[1], datetime.datetime)


def test_nothing_stays_behind() -> None:
    def state() -> list[Any]:
        return [
            *(vars(time)[name] for name in ("time", "sleep", "monotonic", "perf_counter_ns")),
            *(vars(threading)[name] for name in ("Lock", "RLock", "_time", "excepthook")),
            *(os._exit, os.urandom, queue.SimpleQueue, subprocess.Popen.__init__, monotonic),
            *(datetime.datetime, asyncio.SelectorEventLoop, sys.modules.get("uvloop")),
            *(asyncio.events._event_loop_policy, random.getstate(), threading.enumerate()),  # type: ignore[attr-defined]
        ]

    before = state()
    with virtual.clock(unseen="keep"):
        import uvloop

        kept_lock = threading.Lock()
        late = __import__("types").ModuleType("imported_during_the_run")
        sys.modules["imported_during_the_run"] = late
        late.clock = time.monotonic  # type: ignore[attr-defined]
        for _ in range(3):
            threading.Thread(target=lambda: time.sleep(1e9), daemon=True).start()
        uvloop.new_event_loop().close()
        time.sleep(1.0)
    del sys.modules["imported_during_the_run"]
    assert state() == before
    assert late.clock is time.monotonic  # type: ignore[attr-defined]
    with kept_lock:  # real threads may still use what was made in the run
        thread = threading.Thread(target=lambda: kept_lock.acquire(timeout=0.01))
        thread.start()
        thread.join()


def _race(seed: int) -> tuple[int, list[str]]:
    """Two threads that read, hesitate at a lock, and write: an update is lost in some orders."""
    said: list[str] = []
    with virtual.clock(seed=seed):
        count, lock = [0], threading.Lock()

        def add(name: str) -> None:
            for _ in range(6):
                seen = count[0]
                with lock:
                    said.append(name)
                count[0] = seen + 1

        threads = [threading.Thread(target=add, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said.append(uuid.uuid4().hex + str(random.random()))
    return count[0], said


def test_the_same_seed_is_the_same_run_and_other_seeds_find_races() -> None:
    runs = {seed: _race(seed) for seed in range(6)}
    assert all(_race(seed) == run for seed, run in runs.items())
    assert runs[0][0] == 12
    assert {count for count, _ in runs.values()} > {12}


def test_a_deadlock_says_who_waits_where() -> None:
    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async def dies() -> None:
        raise ValueError("no such prompt")

    async def main() -> None:
        kept = asyncio.create_task(dies(), name="dispatcher")
        for _ in range(7):
            asyncio.create_task(never())  # noqa: RUF006
        threading.Thread(
            target=lambda: queue.Queue[int]().get(), name="worker", daemon=True
        ).start()
        await asyncio.sleep(5.0)
        await never()
        del kept

    with pytest.raises(virtual.DeadlockError) as caught, virtual.clock():
        asyncio.run(main())
    said = str(caught.value)
    assert "at 5 s everybody waits" in said
    assert "8 tasks wait at" in said
    assert "thread worker waits for a lock, a condition or a queue, at" in said
    assert "in never: await asyncio.get_running_loop().create_future()" in said
    assert "died unseen: dispatcher of ValueError: no such prompt, at" in said
    assert said.count(__file__) >= 4


def test_what_died_unseen_is_an_error_at_the_end() -> None:
    async def main() -> None:
        async def dies() -> None:
            raise ValueError("lost")

        task = asyncio.create_task(dies())
        await asyncio.sleep(1.0)
        del task

    with (
        pytest.raises(virtual.UnseenError, match=r"ValueError: lost, at .*test_clock\.py:"),
        virtual.clock(),
    ):
        asyncio.run(main())

    def divide() -> None:
        thread = threading.Thread(target=lambda: 1 / 0)  # type: ignore[arg-type]
        thread.start()
        thread.join()

    with pytest.raises(virtual.UnseenError, match="ZeroDivisionError"), virtual.clock():
        divide()


def _spin() -> None:
    async def main() -> None:
        while True:
            await asyncio.sleep(0)

    asyncio.run(main())


def _poll() -> None:
    while True:
        time.sleep(10.0)


def _compute() -> None:
    while True:
        pass


def _exits_in_a_thread() -> None:
    threading.Thread(target=lambda: os._exit(3)).start()
    time.sleep(1.0)


def _fork() -> None:
    import multiprocessing

    multiprocessing.get_context("fork").Process(target=print).start()


BAD: list[tuple[Callable[[], Any], dict[str, Any], type[Exception], str]] = [
    (_spin, {"events": 10_000}, virtual.LimitError, "more than 10,000 things .*in main: await"),
    (_poll, {"virtual_s": 1000.0}, virtual.LimitError, "bound of 1000 s of virtual time.*in _poll"),
    (_poll, {"real_s": 0.05}, virtual.LimitError, "bound of 0.05 s of real time.*in _poll"),
    (_compute, {"blocked_s": 0.2}, virtual.LimitError, "without giving way.*in _compute"),
    (_exits_in_a_thread, {}, virtual.ExitedError, r"os._exit\(3\), at .*in <lambda>"),
    (lambda: os._exit(1), {}, virtual.ExitedError, r"os._exit\(1\), at .*test_clock.py"),
    (_fork, {}, virtual.RefusedError, "multiprocessing.Process.start is out of reach.*in _fork"),
    (
        lambda: os.system("true"),
        {},
        virtual.RefusedError,
        "os.system is out of reach.*test_clock.py",
    ),
    (
        lambda: subprocess.run(["true"]),
        {},
        virtual.RefusedError,
        "subprocess.Popen is out of reach of the virtual clock: a child process.*test_clock.py",
    ),
    (
        lambda: urllib.request.urlopen("http://engines.example/health"),
        {},
        virtual.RefusedError,
        "the look-up of engines.example is out of reach.*test_clock.py",
    ),
    (
        lambda: __import__("socket").create_connection(("192.0.2.1", 80)),
        {},
        virtual.RefusedError,
        r"a connection to \('192.0.2.1', 80\) is out of reach.*test_clock.py",
    ),
    (lambda: threading.Event().wait(), {}, virtual.DeadlockError, "everybody waits.*test_clock.py"),
]


@pytest.mark.parametrize(("bad", "options", "error", "said"), BAD)
def test_bad_input_is_told_with_the_call_and_the_line(
    bad: Callable[[], Any], options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=f"(?s){said}"), virtual.clock(**options):
        bad()


def test_a_sleep_that_stops_an_event_loop_is_told() -> None:
    async def main() -> None:
        time.sleep(3.0)

    with virtual.clock() as clock:
        asyncio.run(main())
        assert clock.now_s == 3.0
    [warning] = clock.warnings
    assert "time.sleep stops its whole event loop, at" in warning
    assert "in main: time.sleep(3.0)" in warning


def test_two_clocks_cannot_be_nested() -> None:
    with virtual.clock():
        with pytest.raises(virtual.VirtualError, match="nested"), virtual.clock():
            pass
        assert time.monotonic() == 0.0


def test_blocking_sockets_within_the_process() -> None:
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            time.sleep(9.0)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"done")

        def log_message(self, *_: Any) -> None:
            pass

    with virtual.clock() as clock:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Slow)
        got = []

        def ask() -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/") as answer:
                got.append((answer.read(), time.monotonic()))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        for _ in asking:
            server.handle_request()
        for thread in asking:
            thread.join()
        server.server_close()
        assert got == [(b"done", 9.0)] * 2
        assert clock.now_s == 9.0


def test_asyncio_streams_within_the_process() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(4.0)
        writer.write(await reader.readline())
        writer.close()

    async def main() -> bytes:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"hello\n")
        said = await reader.readline()
        writer.close()
        server.close()
        return said

    with virtual.clock() as clock:
        assert asyncio.run(main()) == b"hello\n"
        assert clock.now_s == 4.0


def test_packages_that_keep_things_globally_are_imported_anew(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keeps_global.py").write_text("seen = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        with virtual.clock(fresh=["keeps_global"]):
            import keeps_global  # type: ignore[import-not-found]

            keeps_global.seen.append(1)
            assert keeps_global.seen == [1]


def test_a_call_at_an_instant_comes_before_who_wakes_later() -> None:
    said = []
    with virtual.clock() as clock:
        clock.call_at(5.0, lambda: said.append(clock.now_s))
        time.sleep(6.0)
        said.append(clock.now_s)
    assert said == [5.0, 6.0]


def _keeps(clock: Callable[[], float] = time.monotonic, *, date: Any = time.time) -> list[float]:
    return [clock(), date()]


class _Keeps:
    def at(self, clock: Callable[[], float] = time.perf_counter) -> float:
        return clock()


def test_clocks_that_functions_keep_as_default_arguments_are_virtual_for_a_run() -> None:
    kept = _keeps.__defaults__, _keeps.__kwdefaults__, _Keeps.at.__defaults__
    with virtual.clock():
        time.sleep(HOUR)
        assert _keeps() == [HOUR, EPOCH_S + HOUR]
        assert _Keeps().at() == HOUR
    assert (_keeps.__defaults__, _keeps.__kwdefaults__, _Keeps.at.__defaults__) == kept


def _timer(now: Callable[[], float]) -> Callable[[], float]:
    return lambda: now()


_closure = _timer(time.monotonic)


@dataclass(frozen=True)
class _Timed:
    begun: float = field(default_factory=time.time)
    now: Callable[[], float] = time.monotonic
    plain = time.monotonic
    static = staticmethod(time.monotonic)


class _Alone:
    static = staticmethod(time.monotonic)


_timed = _Timed()


def test_clocks_that_closures_classes_and_objects_keep_are_virtual_for_a_run() -> None:
    def all_of_them() -> list[float]:
        clocks = _closure, _timed.now, _timed.plain, _Timed.static, _Alone.static
        return [*(clock() for clock in clocks), _Timed().begun]

    kept = _closure.__closure__[0].cell_contents, _timed.now, _Timed.plain, _Timed.static  # type: ignore[index, attr-defined]
    with virtual.clock():
        time.sleep(HOUR)
        assert all_of_them() == [HOUR] * 5 + [EPOCH_S + HOUR]
    assert (_closure.__closure__[0].cell_contents, _timed.now, _Timed.plain, _Timed.static) == kept  # type: ignore[index, attr-defined]
    assert kept == (time.monotonic,) * 4


def test_a_lock_is_the_run_s_in_a_module_that_has_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, lock = types.ModuleType("of_a_lock"), threading.Lock()
    module.lock = lock  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "of_a_lock", module)
    with virtual.clock():
        assert isinstance(module.lock, threading.Lock)  # type: ignore[arg-type]
    assert module.lock is lock


DEPRECATED = """
class Deprecated:
    def __getattribute__(self, name):
        looked_at.append(name)
        return object.__getattribute__(self, name)

it, looked_at = Deprecated(), []
"""


def test_objects_that_warn_at_any_access_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch.distributed.reduce_op is, in a module of Python source."""
    module = types.ModuleType("of_deprecated")
    module.__file__ = "/of_deprecated.py"
    exec(DEPRECATED, module.__dict__)
    monkeypatch.setitem(sys.modules, "of_deprecated", module)
    with virtual.clock():
        time.sleep(HOUR)
    assert module.looked_at == []


class _Holiday(datetime.date):
    pass


def test_the_date_of_today_is_the_run_s() -> None:
    real, today = datetime.date, datetime.date.today()
    with virtual.clock():
        from datetime import date

        assert date.today() == datetime.date.today() == real(2027, 1, 15)
        time.sleep(24 * HOUR)
        assert date.today() == _Holiday.today() == real(2027, 1, 16)
        assert type(_Holiday.today()) is _Holiday
        assert type(date(2027, 1, 1)) is real
        assert isinstance(today, date)
        assert isinstance(datetime.datetime.now(), date)
        assert issubclass(datetime.datetime, date)
        assert time.asctime().endswith("2027")
        assert date.today() - today > datetime.timedelta()
    assert datetime.date is real


def test_every_function_of_time_tells_the_run_s() -> None:
    real = time.gmtime
    with virtual.clock():
        time.sleep(HOUR)
        assert time.gmtime()[:5] == (2027, 1, 15, 9, 0)
        assert time.gmtime(0)[:2] == (1970, 1)
        assert time.strftime("%Y") == "2027" == time.ctime()[-4:]
        assert time.strftime("%H", time.gmtime(HOUR)) == "01"
        assert time.localtime() == time.localtime(EPOCH_S + HOUR)
        assert time.clock_gettime(time.CLOCK_MONOTONIC) == HOUR
        assert time.clock_gettime_ns(time.CLOCK_REALTIME) == (EPOCH_S + 3600) * 10**9
        assert time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) > 0
    assert time.gmtime is real


def test_datagrams_and_names_of_other_machines_are_refused_where_they_are_asked() -> None:
    async def look_up() -> None:
        await asyncio.get_running_loop().getaddrinfo("example.com", 80)

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.sendto(b"x", ("10.0.0.1", 53))

    with virtual.clock():
        with pytest.raises(virtual.RefusedError, match=r"sendto to .* in send: one\.sendto"):
            send()
        with pytest.raises(virtual.RefusedError, match=r"look-up of example.com .* in look_up"):
            asyncio.run(look_up())
