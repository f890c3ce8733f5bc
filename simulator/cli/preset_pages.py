"""The presets on the terminal: a table of each kind, and a page of each preset."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from rollcast.simulator.cli.console import console
from rollcast.simulator.cli.policy_page import policy_facts, show_policy
from rollcast.simulator.cli.presets import KINDS, Rows, preset_details, preset_rows
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.write import plain
from rollcast.simulator.values import nearest

_NEVER_BROKEN = 12
_LONGEST_NAME = 24
_ROOM_FOR_TEXT = 20


def show_presets(kind: str | None, name: str | None, as_json: bool = False) -> None:
    """Prints the presets of a kind, or all; with a name, every figure and its source."""
    if kind is not None and kind not in KINDS:
        raise ScenarioError("presets", f"unknown kind {kind!r}; {nearest(kind, KINDS)}")
    if name is not None and kind is not None:
        details: Any = policy_facts(name) if kind == "policies" else preset_details(kind, name)
        if as_json:
            print(json.dumps(plain(details), indent=1))
        elif kind == "policies":
            show_policy(name)
        else:
            _print_table(f"{kind}: {name}", details)
        return
    kinds = [kind] if kind else list(KINDS)
    if as_json:
        print(json.dumps(plain({k: preset_rows(k) for k in kinds}), indent=1))
        return
    for presets in kinds:
        _print_table(presets, preset_rows(presets), f"rollcast presets {presets} NAME")


def _print_table(title: str, rows: Rows, more: str = "") -> None:
    """Prints a table. Columns with one value go below it; texts without room are left to the
    command ``more``."""
    from rich.table import Table
    from rich.text import Text

    screen = console()
    shared = [name for name in rows[0] if len(rows) > 1 and len({str(r[name]) for r in rows}) == 1]
    columns = [name for name in rows[0] if name not in shared]
    cells = {name: [str(row[name]) for row in rows] for name in columns}
    cells[columns[0]] = [_in_lines(name) for name in cells[columns[0]]]
    widths = {name: _width(name, cells[name]) for name in columns}
    texts = [name for name in columns[1:] if widths[name] > _NEVER_BROKEN]
    room = screen.width - sum(widths[c] + 3 for c in columns if c not in texts)
    if more and texts and room < _ROOM_FOR_TEXT * len(texts):
        columns = [name for name in columns if name not in texts]
    else:
        more = ""
    grid = Table(title=Text(title), title_justify="left", padding=(0, 0, 0, 1))
    for name in columns:
        grid.add_column(
            textwrap.fill(name, widths[name], break_long_words=False),
            justify="right" if isinstance(rows[0][name], int | float) else "left",
            overflow="fold",
            no_wrap=name not in texts,
        )
    for row in zip(*(cells[name] for name in columns), strict=True):
        grid.add_row(*map(Text, row))
    screen.print(grid)
    for name in shared:
        screen.print(f"{name}: {rows[0][name]}", style="dim", markup=False)
    if more:
        screen.print(f"{more} shows {' and '.join(texts)}.", style="dim", markup=False)


def _width(heading: str, cells: Sequence[str]) -> int:
    """Of a column whose heading may be broken between words."""
    lines = [line for cell in cells for line in cell.split("\n")]
    return max(map(len, (*heading.split(), *lines)))


def _in_lines(name: str) -> str:
    """A long name broken after its underscores."""
    lines = [""]
    for part in re.findall("[^_]+_*|_+", name):
        if lines[-1] and len(lines[-1]) + len(part) > _LONGEST_NAME:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)
