"""Where tables go, how figures are written for people, and tables that fit a terminal's width."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PIPE_WIDTH = 120


def console() -> Console:
    """The terminal, or a pipe, which is `PIPE_WIDTH` wide where COLUMNS does not say."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(width=width, highlight=False, soft_wrap=False)


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


def one_line(heading: str) -> str:
    """A heading of several lines as it stands in a sentence."""
    return heading.replace("-\n", "").replace("\n", " ")


def named_column(grid: Table, heading: str, values: Sequence[str], width: int) -> None:
    """Adds a column of names, which breaks those too long for its share of a screen of ``width``
    characters."""
    from rich.text import Text

    widest = max(len(line) for text in (heading, *values) for line in text.split("\n"))
    grid.add_column(
        Text(heading), overflow="fold", style="bold", width=min(widest, max(12, width // 4))
    )


def fitted(
    screen: Console,
    columns: Sequence[str],
    first_to_go: Sequence[str],
    build: Callable[[Sequence[str]], Table],
) -> tuple[Table, list[str]]:
    """The table of as many of the ``columns`` as fit on the screen, and those left out.

    build: makes the table of these columns. first_to_go: columns that can be left out, in that
    order.
    """
    wide: Any = screen.options.update_width(1000)
    kept, left_out = list(columns), list[str]()
    while True:
        grid = build(kept)
        dropped = next((name for name in first_to_go if name in kept), None)
        if dropped is None or screen.measure(grid, options=wide).maximum <= screen.width:
            return grid, left_out
        kept.remove(dropped)
        left_out.append(dropped)
