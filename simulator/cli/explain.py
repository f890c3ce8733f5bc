"""``rollcast explain``: what a key of a scenario means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import entry_points

from simulator.cli.console import console
from simulator.scenario.reference import Entry, below, find, reference

GROUP = "rollcast.sections"
"""Entry points of mappings of a key to the dataclass that another package reads below it."""


def show(key: str, as_json: bool = False) -> None:
    """Prints one key and those below it; the top where ``key`` is ''.

    Raises ScenarioError for a key that there is not, with the nearest one.
    """
    entries = reference(sections_elsewhere())
    found = find(key, entries) if key else []
    under = below(found[0].key, entries) if found else below("", entries)
    if as_json:
        print(json.dumps([asdict(entry) for entry in (*found, *under)], indent=1))
        return
    for entry in found:
        _print_entry(entry)
    if under:
        _print_list(under)
    if not key:
        print("rollcast explain KEY says more: rollcast explain cluster.trainer_gpus")


def sections_elsewhere() -> Mapping[str, type]:
    """The sections that other packages read."""
    found: dict[str, type] = {}
    for point in entry_points(group=GROUP):
        found.update(point.load())
    return found


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
        ("default", entry.default or "none; it must be given"),
        ("unit", entry.unit),
        ("source", entry.source),
    ):
        if text and not (name == "default" and entry.key.count(".") == 1 and _a_policy(entry)):
            grid.add_row(Text(name, style="dim"), Text(text))
    to.print(grid)


def _a_policy(entry: Entry) -> bool:
    return entry.key.startswith("policy.")


def _print_list(entries: list[Entry]) -> None:
    from rich.table import Table
    from rich.text import Text

    grid = Table(padding=(0, 1, 0, 0), box=None)
    for heading in ("key", "default", "meaning"):
        grid.add_column(heading, overflow="fold")
    for entry in entries:
        when = f" ({entry.when})" if entry.when else ""
        deeper = " ..." if entry.holds else ""
        default = entry.default or ("" if _a_policy(entry) and entry.holds else "-")
        grid.add_row(
            Text(f"{entry.key}{deeper}", style="bold"), Text(default), Text(entry.meaning + when)
        )
    console().print(grid)
