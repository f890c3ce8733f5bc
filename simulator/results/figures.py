"""How figures are written for people, on a terminal and on a page."""

from __future__ import annotations


def seconds(value: float) -> str:
    """A duration for people."""
    if value >= 7200:
        return f"{value / 3600:.2f} h"
    if value >= 600:
        return f"{value / 60:.1f} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.1f} s"


def count(value: float) -> str:
    """A count for people."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in per cent."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"
