"""Text of durations, amounts, counts and shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from rollcast.simulator.results.figure import Values


def seconds(value: float | None, like: float | None = None) -> str:
    """Text of a duration; "-" for None. like: whose unit is taken, where several stand in one line;
    None: its own."""
    if value is None:
        return "-"
    size = value if like is None else like
    if size >= 7200:
        return f"{_three_digits(value / 3600)} h"
    if size >= 600:
        return f"{value / 60:.1f} min" if value >= 60 else f"{value / 60:.2g} min"
    return f"{value:.3g} s" if value < 100 else f"{value:.1f} s"


def _three_digits(value: float) -> str:
    """A number to hundredths, tenths or ones, by its size."""
    return f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def interval(ends: Sequence[float], write: Callable[[float], str] | None = None) -> str:
    """Text of an interval, its unit once. write: of both ends; None: seconds."""
    first, last = map(write or partial(seconds, like=ends[1]), ends)
    number, _, unit = first.partition(" ")
    return f"{number if unit and last.endswith(f' {unit}') else first} to {last}"


def hours(value: float, like: float | None = None) -> str:
    """Text of the duration of a whole run. value: hours. like: whose unit is taken, where several
    stand in one line; None: its own."""
    size = value if like is None else like
    if size >= 96:
        return f"{_tenths(value / 24, whole=100)} days"
    if size >= 1:
        return f"{_tenths(value, whole=10)} h"
    if size >= 1 / 30:
        return (
            f"{60 * value:.0f} min" if value >= 1 / 6 or like is None else f"{60 * value:.2g} min"
        )
    return f"{3600 * value:.3g} s"


def _tenths(value: float, whole: float) -> str:
    """A number to a tenth, from ``whole`` on to one; one digit of less than a tenth."""
    if 0 < value < 0.05:
        return f"{value:.1g}"
    return f"{value:,.{1 if value < whole else 0}f}"


def usd(value: float) -> str:
    """Text of an amount of US dollars."""
    if value >= 10:
        return f"${value:,.0f}"
    return f"${value:.2f}" if value >= 0.1 or not value else f"${value:.1g}"


def cost(usd_or_none: float | None, gpu_hours: float) -> str:
    """Text of a run's cost: dollars, or GPU-hours for a GPU without a price."""
    if usd_or_none is None:
        return f"{gpu_hours:,.0f} GPU-hours" if gpu_hours >= 100 else f"{gpu_hours:.3g} GPU-hours"
    return usd(usd_or_none)


def count(value: float) -> str:
    """Text of a count."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}"


def share(value: float | None) -> str:
    """Text of a share, in per cent."""
    return "-" if value is None or value != value else f"{100 * value:.1f} %"


factor = "{:.2f}x".format


def number(value: float, digits: int = 3) -> str:
    """Text of a number to so many digits; from 100 on, a whole one."""
    return f"{value:.{digits}g}" if value < 99.5 else f"{value:,.0f}"


def gigabytes(size: float) -> str:
    """Text of bytes, in GB of 1e9."""
    size /= 1e9
    return f"{size:.0f} GB" if size >= 10 else f"{size:.1f} GB"


ENGINE_SHARE = "engine_share"
"""The pool of a ledger that is what an engine may use of its GPUs."""
MEMORY_PHASES: Mapping[str, str] = {
    "start": "at the start",
    "generation": "in generation",
    "switch": "between rollout and training",
    "log_prob": "in the log-probabilities",
    "update": "in the update",
    "optimizer_step": "in the optimiser's step",
    "sync": "in the weight sync",
}
"""Phases of a ledger of memory, as a sentence goes on."""
MEMORY_PHASE_NAMES: Mapping[str, str] = {
    "start": "start",
    "generation": "generation",
    "switch": "switch",
    "log_prob": "log-probs",
    "update": "update",
    "optimizer_step": "optimiser step",
    "sync": "weight sync",
}
"""The same in tables."""


def room(peak: Mapping[str, Any]) -> str:
    """What a peak is of: a GPU's memory, or an engine's share of it. peak: as a ledger tells it."""
    size = gigabytes(peak["capacity_bytes"])
    return f"the engine's {size} of a GPU" if peak["pool"] == ENGINE_SHARE else f"{size} of a GPU"


def _peak(v: Values) -> Values | None:
    memory = v.get("memory")
    return None if memory is None else memory["peak"]


def peak_text(v: Values) -> str:
    """Empty where no memory is known."""
    peak = _peak(v)
    return "" if peak is None else gigabytes(peak["bytes"])


def peak_note(v: Values) -> str:
    """Of what the peak is, and in which phase; empty where no memory is known."""
    peak = _peak(v)
    if peak is None:
        return ""
    return f"of {room(peak)}, {MEMORY_PHASES[peak['phase']]}"


def memory_said(v: Values) -> str:
    """Peak, phase, what is left and how sure that is, as a sentence; empty where no memory is
    known. v: with ``memory``, of a ledger."""
    memory, peak = v.get("memory"), _peak(v)
    if memory is None or peak is None:
        return ""
    spare = peak["capacity_bytes"] - peak["bytes"]
    rest = f"{gigabytes(spare)} are left" if spare >= 0 else f"{gigabytes(-spare)} are missing"
    return (
        f"A GPU holds at most {gigabytes(peak['bytes'])} of {gigabytes(peak['capacity_bytes'])}, "
        f"{MEMORY_PHASES[peak['phase']]}: {rest}; it fits with a probability of "
        f"{100 * memory['fits_probability']:.0f} %."
    )
