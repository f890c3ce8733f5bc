"""The answer of ``rollcast plan`` on the terminal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rollcast.simulator.cli.console import console, fitted, named_column, one_line
from rollcast.simulator.cli.tables import show_phases
from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Planned, Row
from rollcast.simulator.planner.write import document
from rollcast.simulator.results.figures import NAMED
from rollcast.simulator.results.text import hours, memory_said
from rollcast.simulator.results.write import plain

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rollcast.simulator.studies.tornado import Bar

_FIGURES = ("hours", "cost", "break_even", "staleness_max", "bubble_fraction", "simulated_steps")
_HEADINGS = {
    "front": "front",
    "GPUs": "GPUs",
    "split": "split",
    **{name: NAMED[name].heading for name in _FIGURES[:2]},
    "chance": "meets\nlimits",
    **{name: NAMED[name].heading for name in _FIGURES[2:]},
}
_FIRST_TO_GO = (*reversed(_FIGURES[3:]), "break_even", "front", "split")
_MOST_ROWS = 16
_MOST_CAUSES = 5
_WIDE = 4.0
"""An interval that ends at more times its figure is shown by its ends."""


def show_plan(
    planned: Planned,
    as_json: bool = False,
    bars: Sequence[Bar] | None = None,
    lines: Sequence[str] = (),
) -> None:
    """Prints the answer in sentences, a row per notable choice, and causes of impossible ones.

    bars: the tornado of the recommended choice. lines: of a launch, which make that fit its memory.
    """
    if as_json:
        added = {} if bars is None else {"tornado": [asdict(bar) for bar in bars]}
        print(json.dumps(plain({**document(planned), **added}), indent=1))
        return
    screen = console()
    if planned.narrowed:
        screen.print(planned.narrowed, markup=False)
    for sentence in planned.sentences:
        screen.print(sentence, markup=False, style="bold" if planned.recommended else "yellow")
    if lines:
        screen.print("In the launch:", markup=False)
        for line in lines:
            screen.print(f"    {line}", markup=False)
    screen.print()
    shown = planned.notable(_MOST_ROWS // 2)[:_MOST_ROWS]
    known = {
        "break_even": planned.baseline is not None,
        "chance": any(row.chances for row in shown),
    }
    columns = [name for name in _HEADINGS if known.get(name, True)]
    grid, left_out = fitted(
        screen, columns, _FIRST_TO_GO, lambda kept: _table(shown, kept, screen.width)
    )
    screen.print(grid)
    _notes(screen, planned, shown, left_out)
    show_phases(
        screen,
        [f"{row.choice.policy}, {words.split(row)}" for row in shown],
        [row.measured.said for row in shown],
    )
    if planned.chosen is not None and planned.chosen.measured.memory is not None:
        screen.print(memory_said({"memory": planned.chosen.measured.memory}), markup=False)
    for sentence in planned.changes:
        screen.print(f"- {sentence}", markup=False)
    if bars is not None:
        from rollcast.simulator.cli.tornado_table import show_tornado

        show_tornado(bars)
    for warning in () if planned.chosen is None else planned.chosen.measured.warnings:
        screen.print(f"warning: {warning}", style="yellow", markup=False)
    for group in planned.impossible[:_MOST_CAUSES]:
        count, first = len(group.choices), group.choices[0]
        others = f"{count} choices, such as {first}" if count > 1 else first
        screen.print(f"impossible: {group.problem} ({others})", style="yellow", markup=False)
    if len(planned.impossible) > _MOST_CAUSES:
        more = sum(len(group.choices) for group in planned.impossible[_MOST_CAUSES:])
        screen.print(f"{more} more, for other causes, are in plan.json.", style="dim")


def _notes(
    screen: Console, planned: Planned, shown: Sequence[Row], left_out: Sequence[str]
) -> None:
    note = "* in front: no other choice takes fewer hours and costs less."
    if any(not row.exact for row in shown):
        note += " ~: from a short simulation."
    if planned.baseline is not None and "break_even" not in left_out:
        note += f" Pays up to: {NAMED['break_even'].meaning}."
    if any(row.chances for row in shown):
        note += " Meets limits: share of draws within the limits of hours and cost."
    if told := words.unasked(shown):
        note += f" {told}"
    for told in words.alike(planned.rows, shown):
        note += f" {told}"
    if left_out:
        labels = ", ".join(one_line(_HEADINGS[name]) for name in left_out)
        note += f" For {labels}, make the terminal wider."
    screen.print(note, style="dim", markup=False)
    count = len(planned.rows) + len(planned.unrun)
    screen.print(
        f"{len(shown)} of {count} choices are shown. {planned.simulated_steps:,} "
        "steps were simulated; all choices to the end would be "
        f"{planned.brute_force_steps:,}.",
        style="dim",
        markup=False,
    )


def _table(rows: Sequence[Row], columns: Sequence[str], width: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    grid = Table(padding=(0, 0, 0, 1))
    names = [words.called(row) for row in rows]
    named_column(grid, "policy", names, width)
    for name in columns:
        grid.add_column(
            _HEADINGS[name],
            justify="left" if name in ("split", "GPUs") else "right",
            no_wrap=name != "split",
            overflow="fold",
        )
    for name, row in zip(names, rows, strict=True):
        cells = _cells(row, rows[0].run_cost.hours)
        style = "dim" if row.beyond else None
        grid.add_row(Text(name), *(Text(cells[column]) for column in columns), style=style)
    return grid


def _cells(row: Row, like: float) -> dict[str, str]:
    """like: hours in whose unit all are shown."""
    values, about = row.plain(), "" if row.exact else "~"
    cells = {name: NAMED[name].text(values) for name in _FIGURES}
    spread = ""
    if row.hours is not None:
        low, high = (end / row.run_cost.hours for end in (row.hours.low, row.hours.high))
        spread = f" -{1 - low:.0%} +{high - 1:.0%}"
        if high > _WIDE:
            ends = words.between(row.hours, lambda end: hours(end, like))
            spread = f" ({ends})"
    return {
        **cells,
        "front": "*" if row.on_front else "",
        "GPUs": f"{row.setup.gpus} {row.setup.kinds}".strip(),
        "split": words.split(row),
        "hours": f"{about}{hours(row.run_cost.hours, like)}{spread}",
        "chance": words.chance(row),
        "cost": f"{about}{cells['cost']}",
    }
