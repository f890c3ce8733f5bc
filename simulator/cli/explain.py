"""``rollcast explain``: what a key of a scenario means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import entry_points

from rollcast.simulator.cli.console import console
from rollcast.simulator.scenario.reference import FIRST, Entry, below, find, reference

GROUP = "rollcast.sections"  # entry points of further packages' sections: dataclasses by key


def show(key: str, as_json: bool = False) -> None:
    """Prints a key and those below it; for '' the keys of a first scenario, then the top level.
    Raises ScenarioError for an unknown key."""
    entries = reference(sections_elsewhere())
    matches = find(key, entries) if key else []
    under = below(matches[0].key if matches else "", entries)
    if as_json:
        print(json.dumps([asdict(entry) for entry in (*matches, *under)], indent=1))
        return
    for entry in matches:
        _print_entry(entry)
    if key:
        _print_lists({"": under})
        return
    _print_lists(
        {
            subject: [entry for name in names for entry in find(name, entries)]
            for subject, names in FIRST.items()
        }
    )
    others = ", ".join(entry.key for entry in under)
    print(f"\nSections and keys of the top level: {others}.")
    print("rollcast explain KEY shows a key and those below it: rollcast explain cluster")


def sections_elsewhere() -> Mapping[str, type]:
    """Sections of other packages."""
    sections: dict[str, type] = {}
    for point in entry_points(group=GROUP):
        sections.update(point.load())
    return sections


def _print_entry(entry: Entry) -> None:
    from rich.table import Table
    from rich.text import Text

    to = console()
    when = f" ({entry.when})" if entry.when else ""
    to.print(Text(f"{entry.key}{when}", style="bold"))
    grid = Table.grid(padding=(0, 2, 0, 2))
    for name, text in (
        ("meaning", entry.meaning),
        ("value", entry.value),
        ("default", entry.default or "none (required)"),
        ("unit", entry.unit),
        ("source", entry.source),
        ("keys", f"those of {entry.like}" if entry.like else ""),
        ("old name", entry.old),
    ):
        if text and not (name == "default" and entry.key.count(".") == 1 and _a_policy(entry)):
            grid.add_row(Text(name, style="dim"), Text(text))
    to.print(grid)


def _a_policy(entry: Entry) -> bool:
    return entry.key.startswith("policy.")


def _print_lists(lists: Mapping[str, list[Entry]]) -> None:
    """A table of entries under one heading each."""
    from rich.table import Table
    from rich.text import Text

    if not any(lists.values()):
        return
    grid = Table(padding=(0, 1, 0, 0), box=None)
    for heading in ("key", "default", "meaning"):
        grid.add_column(heading, overflow="fold")
    for subject, entries in lists.items():
        if subject:
            grid.add_row(Text(f"\n{subject}", style="dim"))
        for entry in entries:
            when = f" ({entry.when})" if entry.when else ""
            deeper = " ..." if entry.holds else ""
            default = entry.default or ("" if _a_policy(entry) and entry.holds else "required")
            grid.add_row(
                Text(f"{entry.key}{deeper}", style="bold"),
                Text(default),
                Text(entry.meaning + when),
            )
    console().print(grid)
