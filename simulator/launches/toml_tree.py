"""TOML as a tree of settings with their lines."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.sources import Sources
from rollcast.simulator.launches.values import EMPTY, Leaf, Tree
from rollcast.simulator.stacks.settings import Place

_HEADER = re.compile(r"\s*\[\[?\s*([\w.\"' -]+?)\s*\]\]?")
_ENTRY = re.compile(r"\s*([\w.\"' -]+?)\s*=")


def read_toml_tree(text: str, name: str, sure: int, sources: Sources) -> Tree:
    """The settings of a TOML text. name: of the file, for places. Raises ScenarioError, with file
    and line, for what is no TOML; a key that is set twice is none."""
    try:
        values = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        match = re.search(r"\(at line (\d+)", str(error))
        place = Place(name, int(match[1]) if match else 0)
        problem = re.sub(r" \(at .*", "", str(error)) or "it cannot be parsed"
        if "digits" in problem:
            problem = "a number has too many digits"
        raise ScenarioError(str(place), f"is no TOML: {problem}") from None
    return _tree(values, "", _lines(text), name, sure, sources)


def _lines(text: str) -> dict[str, int]:
    """The line of each dotted key, as far as a look at lines tells."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.split("\n"), start=1):
        header, entry = _HEADER.match(line), _ENTRY.match(line)
        if header and not entry:
            table = _dotted(header[1])
            lines.setdefault(table, number)
        elif entry:
            lines.setdefault(f"{table}.{_dotted(entry[1])}".lstrip("."), number)
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))


def _tree(
    values: dict[str, Any],
    prefix: str,
    lines: dict[str, int],
    name: str,
    sure: int,
    sources: Sources,
) -> Tree:
    tree: Tree = {}
    for key, value in values.items():
        dotted = f"{prefix}.{key}" if prefix else key
        if value == {}:
            tree[key] = Leaf(EMPTY, Place(name, _nearest(dotted, lines)), sure)
            continue
        if isinstance(value, dict):
            tree[key] = _tree(value, dotted, lines, name, sure, sources)
            continue
        meant = sources.resolved(value) if isinstance(value, str) else None
        place = Place(name, _nearest(dotted, lines))
        tree[key] = Leaf(value if meant is None else meant, place, sure)
    return tree


def _nearest(key: str, lines: dict[str, int]) -> int:
    """The line of a key, or of the inline table that holds it."""
    while key:
        if key in lines:
            return lines[key]
        key = key.rpartition(".")[0]
    return 0
