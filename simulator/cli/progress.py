"""A progress bar for long work: on a terminal, and nothing in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(
    label: str,
    total: int | None,
    *,
    elapsed: bool = True,
    left: bool = False,
    text: str | None = None,
    transient: bool = True,
) -> Iterator[Callable[..., None] | None]:
    """Yields the bar's ``update(advance=1)``, ``update(completed=3, text="...")``, as of
    `rich.progress.Progress.update`; None without a terminal.

    label, text: before and after the bar. elapsed, left: whether to show the time so far and left.
    transient: whether the bar vanishes at its end.
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns: list[ProgressColumn] = (
        [TextColumn("{task.description}", markup=False)] if label else []
    )
    columns += [BarColumn(), MofNCompleteColumn()]
    columns += [TimeElapsedColumn()] if elapsed else []
    columns += [TimeRemainingColumn()] if left else []
    columns += [] if text is None else [TextColumn("{task.fields[text]}", markup=False)]
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(label, total=total, text=text)

        def update(**changes: Any) -> None:
            bar.update(task, **changes)

        yield update
