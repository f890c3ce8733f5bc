"""The presets on the terminal: a table of each kind, and a page of each preset."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rollcast.simulator.cli.console import console
from rollcast.simulator.cli.presets import KINDS, Rows, preset_details, preset_rows
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.policies import outside, registry
from rollcast.simulator.policies.described import describe
from rollcast.simulator.results.write import plain
from rollcast.simulator.values import Option, nearest

if TYPE_CHECKING:
    from rich.console import Console


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


_WIDEST = 100  # longer lines are hard to read


def policy_facts(name: str) -> dict[str, Any]:
    """The page as JSON types. name: a known policy or ``module:Class``. Raises ScenarioError."""
    known = registry.names()
    if name not in known and not outside.is_reference(name):
        raise ScenarioError("presets policies", f"unknown name {name!r}; {nearest(name, known)}")
    kind = registry.find(name, f"presets policies {name}")
    about = describe(kind)
    facts: dict[str, Any] = {
        "name": name,
        "what it does": about.mechanism,
        "source": about.source,
        "how": list(about.paragraphs),
        "parameters": [_parameter(option) for option in outside.options_of(kind)],
    }
    short_name = getattr(kind, "NAME", "")
    other = name in registry.built_in() and short_name != name
    return {**facts, "another name of": short_name} if other else facts


def _parameter(option: Option) -> dict[str, Any]:
    facts = {"name": option.key, "must be": option.reader.wanted, "unit": option.unit}
    if not option.required:
        facts["default"] = option.default
    return {**facts, "meaning": option.doc.sentence, "default from": option.doc.source}


def show_policy(name: str) -> None:
    """Prints a policy's page."""
    screen = console()
    facts = policy_facts(name)
    _say(screen, f"{name}: {facts['what it does']}", style="bold")
    if facts["source"]:
        _say(screen, f"Source: {facts['source']}.")
    if "another name of" in facts:
        _say(screen, f"Another name of {facts['another name of']}.")
    for number, text in enumerate(facts["how"]):
        listed = text.startswith("- ")
        if not (listed and number and facts["how"][number - 1].startswith("- ")):
            screen.print()
        _say(screen, text.removeprefix("- "), "  - " if listed else "")
    screen.print()
    if not facts["parameters"]:
        _say(screen, "It has no parameters.")
    for parameter in facts["parameters"]:
        _say(screen, _heading(parameter), style="bold")
        if parameter["meaning"]:
            _say(screen, parameter["meaning"], "    ")
        if parameter["default from"]:
            _say(screen, f"default from: {parameter['default from']}", "    ")


def _heading(parameter: dict[str, Any]) -> str:
    default = parameter.get("default", _NONE)
    given = "required" if default is _NONE else f"default {_spelt(default)}"
    unit = f" ({parameter['unit']})" if parameter["unit"] else ""
    return f"{parameter['name']}: {parameter['must be']}{unit}; {given}"


_NONE = object()


def _spelt(value: Any) -> str:
    """As a scenario would write it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_spelt, value))}]"
    return str(value)


def _say(screen: Console, text: str, lead: str = "", style: str = "") -> None:
    """A paragraph, whose later lines stand below its first."""
    import textwrap

    width = min(screen.width, _WIDEST)
    after = " " * len(lead)
    for line in textwrap.wrap(
        text, width, initial_indent=lead, subsequent_indent=after, break_on_hyphens=False
    ):
        screen.print(line, style=style or None, markup=False)
