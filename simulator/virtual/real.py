"""The real clocks and locks, kept from before a virtual clock replaces them."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable

monotonic = time.monotonic
perf_counter = time.perf_counter
sleep = time.sleep
clock_gettime: Callable[[int], float] = getattr(time, "clock_gettime", float)
clock_gettime_ns: Callable[[int], int] = getattr(time, "clock_gettime_ns", int)
allocate_lock = _thread.allocate_lock
start_new_thread = _thread.start_new_thread
get_ident = _thread.get_ident
