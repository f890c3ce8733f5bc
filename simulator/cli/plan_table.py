"""A plan on the terminal: the recommendation, the choices, and why the others cannot be."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rollcast.simulator.cli.console import console, fitted, named_column, one_line, share
from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Interval, Planned, Row
from rollcast.simulator.planner.write import document
from rollcast.simulator.results.write import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rollcast.simulator.studies.tornado import Bar

_HOURS, _COST, _FRONT = "time", "cost", "front"
_COLUMNS = (
    _FRONT,
    "GPUs",
    "split",
    _HOURS,
    _COST,
    "bound by",
    "pays\nup to",
    "oldest\ntoken",
    "bubble",
    "steps",
)
_FIRST_TO_GO = ("steps", "bubble", "oldest\ntoken", "bound by", "pays\nup to", _FRONT, "split")
_MOST_ROWS = 16
_MOST_CAUSES = 5


def show_plan(planned: Planned, as_json: bool = False, bars: Sequence[Bar] | None = None) -> None:
    """Prints the sentences, one row a choice, and each cause for which others cannot be. bars: of
    the tornado of what is recommended, where one was made."""
    if as_json:
        added = {} if bars is None else {"tornado": [asdict(bar) for bar in bars]}
        print(json.dumps(plain({**document(planned), **added}), indent=1))
        return
    screen = console()
    for sentence in planned.sentences:
        screen.print(sentence, markup=False, style="bold" if planned.recommended else "yellow")
    screen.print()
    shown = _shown(planned)

    def build(kept: Sequence[str]) -> Table:
        return _table(shown, kept, screen.width)

    columns = [name for name in _COLUMNS if name != "pays\nup to" or planned.baseline is not None]
    grid, left_out = fitted(screen, columns, _FIRST_TO_GO, build)
    screen.print(grid)
    _notes(screen, planned, shown, left_out)
    for sentence in planned.changes:
        screen.print(f"- {sentence}", markup=False)
    if bars is not None:
        from rollcast.simulator.cli.tornado_table import show_tornado

        show_tornado(bars)
    chosen = planned.chosen
    for warning in () if chosen is None else chosen.measured.warnings:
        screen.print(f"warning: {warning}", style="yellow", markup=False)
    for group in planned.impossible[:_MOST_CAUSES]:
        count = len(group.choices)
        others = (
            f" ({count} choices, the first of them {group.choices[0]})"
            if count > 1
            else (f" ({group.choices[0]})")
        )
        screen.print(f"cannot be: {group.problem}{others}", style="yellow", markup=False)
    if len(planned.impossible) > _MOST_CAUSES:
        more = sum(len(group.choices) for group in planned.impossible[_MOST_CAUSES:])
        screen.print(f"{more} more, for other causes, are in plan.json.", style="dim")


def _shown(planned: Planned) -> list[Row]:
    """The best, the front, and the best of each policy."""
    kept: list[Row] = []
    seen: set[str] = set()
    for row in planned.rows:
        first = row.choice.policy not in seen
        if len(kept) < _MOST_ROWS // 2 or row.on_front or first or row is planned.baseline:
            kept.append(row)
            seen.add(row.choice.policy)
    return kept[:_MOST_ROWS]


def _notes(
    screen: Console, planned: Planned, shown: Sequence[Row], left_out: Sequence[str]
) -> None:
    note = "* in front: no other choice takes fewer hours and costs less."
    if any(not row.exact for row in shown):
        note += " ~: of a short simulation."
    if planned.baseline is not None and "pays\nup to" not in left_out:
        note += " Pays up to: times the updates of the best synchronous choice."
    if left_out:
        note += f" For {', '.join(map(one_line, left_out))}, make the terminal wider."
    screen.print(note, style="dim", markup=False)
    count = len(planned.rows) + len(planned.unrun)
    screen.print(
        f"{len(shown)} of {count} choices; {planned.simulated_steps:,} steps simulated to choose "
        f"(all of them: {planned.brute_force_steps:,}).",
        style="dim",
        markup=False,
    )


def _table(rows: Sequence[Row], columns: Sequence[str], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(padding=(0, 0, 0, 1))
    names = [", ".join(filter(None, (row.choice.policy, words.others(row)))) for row in rows]
    named_column(grid, "policy", names, width)
    for name in columns:
        left = name in ("split", "bound by", "GPUs")
        grid.add_column(
            name, justify="left" if left else "right", no_wrap=name != "split", overflow="fold"
        )
    for name, row in zip(names, rows, strict=True):
        cells = _cells(row)
        style = None if not row.beyond else "dim"
        grid.add_row(Text(name), *(Text(cells[column]) for column in columns), style=style)
    return grid


def _cells(row: Row) -> dict[str, str]:
    s, m = row.setup, row.measured
    about = "" if row.exact else "~"
    cost = (
        f"{row.run_cost.gpu_hours:,.0f} GPU-h"
        if row.run_cost.usd is None
        else words.usd(row.run_cost.usd)
    )
    return {
        _FRONT: "*" if row.on_front else "",
        "GPUs": f"{s.gpus} {s.gpu}".strip(),
        "split": words.split(row),
        _HOURS: f"{about}{words.hours(row.run_cost.hours)}{_spread(row.hours, row.run_cost.hours)}",
        _COST: f"{about}{cost}",
        "bound by": m.bound_by,
        "pays\nup to": "-" if row.break_even is None else f"{row.break_even:.2f}x",
        "oldest\ntoken": str(m.staleness_max),
        "bubble": share(m.bubble_fraction),
        "steps": str(m.steps),
    }


def _spread(interval: Interval | None, value: float) -> str:
    """How far the ends of an interval are off."""
    if interval is None:
        return ""
    return f" -{1 - interval.low / value:.0%} +{interval.high / value - 1:.0%}"
