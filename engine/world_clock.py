"""A real world's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WorldClock:
    """timer: seconds from any moment on. zero_s: what it said at the run's 0."""

    def __init__(self, timer: Callable[[], float]) -> None:
        self.timer = timer
        self.zero_s = timer()

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.timer() - self.zero_s

    def set(self, now_s: float = 0.0) -> None:
        """Makes it this late."""
        self.zero_s = self.timer() - now_s

    @contextmanager
    def stopped(self, stops: bool) -> Iterator[None]:
        """Stands still within, if it ``stops``."""
        began = self.timer()
        try:
            yield
        finally:
            if stops:
                self.zero_s += self.timer() - began
