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
    """Yields what changes the bar: ``update(advance=1)``, ``update(completed=3, said="...")``, and
    so on as `rich.progress.Progress.update` has it; None where stderr is no terminal.

    label: before the bar. elapsed: whether the time so far stands behind it; left: the time that
    is left, too. said: a text at the
    end, to begin with. transient: whether the bar goes once it is done.
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
    columns += [] if text is None else [TextColumn("{task.fields[said]}", markup=False)]
    with Progress(*columns, console=Console(stderr=True), transient=transient) as bar:
        task = bar.add_task(label, total=total, said=text)

        def update(**changes: Any) -> None:
            bar.update(task, **changes)

        yield update
