"""Other people's control planes on a virtual clock, with simulated engines that answer them.

    with virtual.clock(seed=0) as clock:
        ...  # asyncio, threads, queues and sleeps, in virtual time

`clock` is the kernel; `engines`, `laws` and the transports stand on it.
"""

from rollcast.simulator.virtual.clock import Clock, clock
from rollcast.simulator.virtual.errors import (
    DeadlockError,
    ExitedError,
    LimitError,
    RefusedError,
    UnseenError,
    VirtualError,
)

__all__ = [
    "Clock",
    "DeadlockError",
    "ExitedError",
    "LimitError",
    "RefusedError",
    "UnseenError",
    "VirtualError",
    "clock",
]
