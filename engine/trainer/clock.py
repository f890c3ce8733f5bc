"""Seconds of what a device does: its queue is drained before either look at the clock."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Clock:
    """Seconds a phase, the device's queue drained at both ends of each."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds what the enclosed code takes to the seconds of ``phase``."""
        self._drain()
        start_s = time.perf_counter()
        yield
        self._drain()
        self.seconds[phase] += time.perf_counter() - start_s

    def _drain(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
