"""Where a rising function reaches a value, by halving."""

from __future__ import annotations

import math
from collections.abc import Callable


def halved(
    short: Callable[[float], bool], low: float, high: float, rounds: int = 60, *, logs: bool = False
) -> tuple[float, float]:
    """The ends of what is left of an interval halved so often. short: whether a value is too low.
    logs: halves the logarithms."""
    for _ in range(rounds):
        middle = math.sqrt(low * high) if logs else (low + high) / 2
        low, high = (middle, high) if short(middle) else (low, middle)
    return low, high
