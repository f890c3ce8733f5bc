"""Seconds of a device's work: its queue is drained before each look at the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds by phase."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds the seconds of the enclosed code to ``phase``."""
        self._drain()
        start_s = time.perf_counter()
        yield
        self._drain()
        self.seconds[phase] += time.perf_counter() - start_s

    def _drain(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
