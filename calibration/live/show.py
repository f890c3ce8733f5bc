"""A run that goes on, on a terminal, as lines in a pipe, and as JSON lines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rollcast.calibration.live.follow import Seen
from rollcast.calibration.live.monitor import Left, State
from rollcast.simulator.results.text import seconds
from rollcast.simulator.results.write import plain

if TYPE_CHECKING:
    from rich.console import RenderableType

Tell = Callable[[Seen], None]


@contextmanager
def shown(as_json: bool) -> Iterator[Tell]:
    """Yields the printer of a look: JSON lines, a table in its place on a terminal, or lines."""
    if as_json:
        yield lambda seen: _line(json.dumps(to_json(seen))) if seen.new else None
    elif sys.stdout.isatty():
        from rich.live import Live

        from rollcast.simulator.cli.console import console

        screen = console()
        with Live(console=screen, auto_refresh=False) as live:
            printed = _Said()

            def tell(seen: Seen) -> None:
                for text in printed.new(seen):
                    screen.print(text, markup=False)
                live.update(table(seen), refresh=True)

            yield tell
    else:
        printed = _Said()

        def lines(seen: Seen) -> None:
            if not seen.new:
                return
            _line(f"{_clock(seen.now_s, seen.now_s)}  {progress(seen)}")
            for text in printed.new(seen):
                _line(text)

        yield lines


def _line(text: str) -> None:
    print(text, flush=True)  # in a pipe, when it is new and not when the pipe is full


class _Said:
    """Sentences that are told once each."""

    def __init__(self) -> None:
        self._before: set[str] = set()
        self._late = False

    def new(self, seen: Seen) -> list[str]:
        """Those of a sight that were not told yet."""
        notes = [f"note: {text}" for text in seen.notices]
        texts = [warning.text for warning in seen.state.warnings] if seen.state is not None else []
        notes.extend(f"warning: {text}" for text in texts if text not in self._before)
        self._before.update(texts)
        if seen.late and not self._late:
            notes.append(f"warning: {seen.late}")
        self._late = bool(seen.late)
        return notes


def warnings(seen: Seen) -> list[str]:
    """All that are in force, in sentences."""
    texts = [warning.text for warning in seen.state.warnings] if seen.state is not None else []
    return texts + ([seen.late] if seen.late else [])


def progress(seen: Seen) -> str:
    """Where the run is, in a line."""
    known = seen.state
    if known is None:
        return seen.over or f"waiting for the first step ({seen.waiting})"
    of = f" of {known.planned} ({100 * known.done / known.planned:.0f} %)" if known.planned else ""
    until = f"over: {seen.over}" if seen.over else end(known, seen.now_s)
    return f"step {known.done}{of}, {seconds(known.step_s)} a step, {until}"


def end(known: State, now_s: float) -> str:
    """When the run ends, with its 90 % interval: how long from now, and at what time."""
    if known.planned is None:
        return "no end known: the settings do not say how many steps; --steps does"
    if known.left is None:
        return "too few steps to forecast its end"
    left = from_now(known.left, known.seen_s or now_s, now_s)
    three = (left.seconds, left.low, left.high)
    unit, size = ("h", 3600.0) if left.high >= 600 else ("s", 1.0)
    long = [f"{seconds / size:.3g} {unit}" for seconds in three]
    at = [_clock(now_s + seconds, now_s) for seconds in three]
    return f"ends in {long[0]} (90 %: {long[1]} to {long[2]}), at {at[0]} ({at[1]} to {at[2]})"


def from_now(left: Left, seen_s: float, now_s: float) -> Left:
    """What is left from now on, of what was left when the last step was logged."""
    past = max(now_s - seen_s, 0.0)
    return Left(*(max(seconds - past, 0.0) for seconds in (left.seconds, left.low, left.high)))


def _clock(at_s: float, now_s: float) -> str:
    """Local time, with the date where it is another day."""
    at, now = datetime.fromtimestamp(at_s), datetime.fromtimestamp(now_s)
    return at.strftime("%H:%M:%S" if at.date() == now.date() else "%Y-%m-%d %H:%M")


def table(seen: Seen) -> RenderableType:
    """The same for a terminal."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(show_header=False, expand=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    known = seen.state
    grid.add_row("seen", Text(_clock(seen.now_s, seen.now_s)))
    if known is None:
        grid.add_row("waiting", Text(seen.waiting or "for the first step"))
    else:
        grid.add_row("run", Text(known.stack))
        share = known.done / known.planned if known.planned else None
        bar = "" if share is None else f"  {'#' * round(30 * share):.<30} {100 * share:.0f} %"
        of = f" of {known.planned}" if known.planned else ""
        grid.add_row("step", Text(f"{known.done}{of}{bar}"))
        grid.add_row(
            "a step", Text(f"{seconds(known.step_s)}, the longest {seconds(known.longest_s)}")
        )
        grid.add_row("end", Text(seen.over or end(known, seen.now_s)))
        if known.unread:
            grid.add_row("could not read", Text(f"{known.unread} lines or records"))
    for text in warnings(seen):
        grid.add_row("warning", Text(text, style="yellow"))
    return grid


def to_json(seen: Seen) -> dict[str, Any]:
    """A sight as one JSON object: seconds and steps, times since the epoch."""
    known = seen.state
    content: dict[str, Any] = {
        "now_s": seen.now_s,
        "waited_s": seen.waited_s,
        "notices": list(seen.notices),
    }
    if seen.waiting:
        content["waiting"] = seen.waiting
    if known is not None:
        content["state"] = asdict(known)
        if known.left is not None:
            left = from_now(known.left, known.seen_s or seen.now_s, seen.now_s)
            content["left_s"] = [left.seconds, left.low, left.high]
            content["end_s"] = [seen.now_s + seconds for seconds in content["left_s"]]
    content["warnings"] = warnings(seen)
    if seen.over:
        content["over"] = seen.over
    cleaned: dict[str, Any] = plain(content)
    return cleaned
