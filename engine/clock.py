"""The clock of a real run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class WallClock:
    """Seconds since the run began, interruptions and saving left out. start_s: what it shows at
    first."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.set(start_s)

    @property
    def now_s(self) -> float:
        """What it shows."""
        return time.perf_counter() - self._zero

    def set(self, now_s: float) -> None:
        """Has it show ``now_s`` from here on."""
        self._zero = time.perf_counter() - now_s

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The enclosed code takes no time of the run."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._zero += time.perf_counter() - began
