"""What the claims of every paper share: rows, sections and errors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.workload.lengths import LengthModel


@dataclass(frozen=True)
class Row:
    """One claim. published, forecast: text; error: relative, or in words where a range is meant."""

    claim: str
    published: str
    forecast: str
    error: str
    assumed: str


Table = tuple[str, list[list[str]]]
"""A title and rows, the first of which is the head."""


@dataclass(frozen=True)
class Section:
    """One paper's rows, and the notes and further tables below them."""

    title: str
    source: str
    given: str
    rows: list[Row]
    misses: list[str]
    tables: list[Table] = field(default_factory=list)


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %"


def relative(forecast: float, published: float) -> str:
    return percent(forecast / published - 1)


def against(values: Sequence[float], low: float, high: float) -> str:
    """Where a range of forecasts lies against a published range, in percentage points."""
    below, above = 100 * (min(values) - low), 100 * (max(values) - high)
    return f"low end {below:+.0f}, high end {above:+.0f} points"


def span(values: Sequence[float], form: Callable[[float], str]) -> str:
    return f"{form(min(values))} to {form(max(values))}"


def lognormal(model: LengthModel) -> dict[str, Any]:
    part = model.components[0]
    return {
        "family": "lognormal",
        "median_tokens": part.median_tokens,
        "between_sd": part.between_sd,
        "within_sd": part.within_sd,
    }
