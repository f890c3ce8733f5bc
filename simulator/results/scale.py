"""Axes of pictures."""

from __future__ import annotations

import math


def marks(low: float, high: float, most: int = 6) -> list[float]:
    """At most ``most`` round values from ``low`` to ``high``: 1, 2 or 5 times powers of ten."""
    if not high > low:
        return [low]
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(
        factor * power
        for factor in (1, 2, 5, 10, 20)
        if math.floor(high / (factor * power)) - math.ceil(low / (factor * power)) + 1 <= most
    )
    return [
        i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


def around(values: list[float]) -> tuple[float, float]:
    """Ends of an axis around the values; 0 if near."""
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1 * abs(high) or 1.0
    return (0.0 if 0 <= low < 0.4 * high else low - room), high + room


def time_unit(span_s: float) -> tuple[float, str]:
    """Seconds and name of the unit for a span of time."""
    if span_s < 300:
        return 1.0, "seconds"
    return (60.0, "minutes") if span_s < 4 * 3600 else (3600.0, "hours")
