"""Python's clocks, `time.sleep`, `os._exit` and `os.urandom` as they are during a run."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from rollcast.simulator.virtual import real
from rollcast.simulator.virtual.errors import ExitedError, Stopped
from rollcast.simulator.virtual.kernel import Kernel
from rollcast.simulator.virtual.report import caller
from rollcast.simulator.virtual.wall import EPOCH_S

MONOTONIC = {
    getattr(time, name)
    for name in ("CLOCK_MONOTONIC", "CLOCK_MONOTONIC_RAW", "CLOCK_BOOTTIME")
    if hasattr(time, name)
}


def clock_doubles(kernel: Kernel, warn: Callable[[str], None]) -> list[tuple[Any, Any]]:
    """(a function of Python that tells or passes time, or makes random bytes; what does so on the
    clock of the run, and outside of it as before). warn: notes a sentence about the code."""

    def on_clock(virtual: Callable[..., Any], otherwise: Callable[..., Any]) -> Any:
        def function(*args: Any) -> Any:
            return virtual(*args) if kernel.mine() else otherwise(*args)

        function.__name__ = function.__qualname__ = otherwise.__name__
        return function

    def sleep(seconds: float) -> None:
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        if asyncio._get_running_loop() is not None:
            warn(f"time.sleep stops its whole event loop, at {caller()}")
        kernel.block(kernel.after(seconds) if seconds else kernel.now, "time.sleep")

    def exit_now(status: int) -> None:
        kernel.throw(ExitedError(f"the code under test called os._exit({status}), at {caller()}"))
        raise Stopped

    def random_bytes(size: int) -> bytes:
        return bytes(kernel.random.randbytes(size))

    def nanoseconds() -> int:
        return int(kernel.now * 10**9) >> 80

    real_asctime = time.asctime

    def of_now(function: Callable[..., Any], place: int) -> Any:
        """What takes a time as its argument at ``place``, and else the present."""

        local_time = time.localtime

        def virtual(*args: Any) -> Any:
            if len(args) > place and args[place] is not None:
                return function(*args)
            now = EPOCH_S + kernel.now_s
            return function(*args[:place], now if place == 0 else local_time(now))

        return on_clock(virtual, function)

    def asctime(*args: Any) -> str:
        return real_asctime(*(args or (time.localtime(EPOCH_S + kernel.now_s),)))

    def gettime(which: int) -> float:
        if which == time.CLOCK_REALTIME:
            return float(EPOCH_S + kernel.now_s)
        return float(kernel.now_s if which in MONOTONIC else real.clock_gettime(which))

    def gettime_ns(which: int) -> int:
        if which == time.CLOCK_REALTIME:
            return EPOCH_S * 10**9 + nanoseconds()
        return nanoseconds() if which in MONOTONIC else real.clock_gettime_ns(which)

    doubles: list[tuple[Any, Any]] = [
        (time.time, on_clock(lambda: EPOCH_S + kernel.now_s, time.time)),
        (time.time_ns, on_clock(lambda: EPOCH_S * 10**9 + nanoseconds(), time.time_ns)),
        (time.sleep, on_clock(sleep, time.sleep)),
        (real_asctime, on_clock(asctime, real_asctime)),
        (os._exit, on_clock(exit_now, os._exit)),
        (os.urandom, on_clock(random_bytes, os.urandom)),
    ]
    for name in ("monotonic", "perf_counter"):
        whole, ns = getattr(time, name), getattr(time, f"{name}_ns")
        doubles.append((whole, on_clock(lambda: kernel.now_s, whole)))
        doubles.append((ns, on_clock(nanoseconds, ns)))
    for function in (time.localtime, time.gmtime, time.ctime):
        doubles.append((function, of_now(function, 0)))
    doubles.append((time.strftime, of_now(time.strftime, 1)))
    if hasattr(time, "clock_gettime"):
        doubles.append((time.clock_gettime, on_clock(gettime, time.clock_gettime)))
        doubles.append((time.clock_gettime_ns, on_clock(gettime_ns, time.clock_gettime_ns)))
    return doubles
