"""Where tables go, and tables that fit a terminal's width; nothing in them steers a terminal."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rollcast.simulator.errors import OldName
from rollcast.simulator.values.words import visible, visible_lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


PIPE_WIDTH = 120
LEAST_WIDTH = 40
"""Columns below which figures would be cut away; a screen without a size has 0."""

_Column = TypeVar("_Column")


def console() -> Console:
    """The terminal, or a pipe of `PIPE_WIDTH` columns (unless COLUMNS is set); shows control
    characters instead of obeying them."""
    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    screen = _harmless()(width=width, highlight=False, soft_wrap=False)
    if screen.width < LEAST_WIDTH:
        screen.width = LEAST_WIDTH
    return screen


def print_where(out: Path | None) -> None:
    """Tells on standard error which folder was written, if one was."""
    if out is not None:
        print(f"wrote {visible(str(out))}/", file=sys.stderr)


@cache
def _harmless() -> type[Console]:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Harmless(Console):
        """Whose text is text: rich writes its own styles and cursor moves apart from it."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                if segment.control or segment.text.isprintable():
                    yield segment
                else:
                    yield Segment(visible_lines(segment.text), segment.style)

    return Harmless


def one_line(heading: str) -> str:
    """A heading without its line breaks."""
    return heading.replace("-\n", "").replace("\n", " ")


def named_column(grid: Table, heading: str, values: Sequence[str], width: int) -> None:
    """Adds a column of names, folded at a quarter of the screen's ``width``."""
    from rich.text import Text

    widest = max(len(line) for text in (heading, *values) for line in text.split("\n"))
    grid.add_column(
        Text(heading), overflow="fold", style="bold", width=min(widest, max(12, width // 4))
    )


def fitted(
    screen: Console,
    columns: Sequence[_Column],
    first_to_go: Sequence[_Column],
    build: Callable[[Sequence[_Column]], Table],
) -> tuple[Table, list[_Column]]:
    """The widest table that fits on the screen, and the columns left out.

    build: makes the table. first_to_go: columns that may be left out, in that order.
    """
    wide: Any = screen.options.update_width(1000)
    kept, left_out = list(columns), list[_Column]()
    while True:
        grid = build(kept)
        dropped = next((column for column in first_to_go if column in kept), None)
        if dropped is None or screen.measure(grid, options=wide).maximum <= screen.width:
            return grid, left_out
        kept.remove(dropped)
        left_out.append(dropped)


@contextmanager
def old_names_as_notes() -> Iterator[None]:
    """Says once, in a line, what has another name now; other warnings are shown as Python does."""
    told: set[str] = set()
    with warnings.catch_warnings():
        as_python_does = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
            if not issubclass(category, OldName):
                as_python_does(message, category, *place, **more)
            elif str(message) not in told:
                told.add(str(message))
                print(f"note: {message}", file=sys.stderr)

        warnings.showwarning = show
        warnings.simplefilter("always", OldName)
        yield
