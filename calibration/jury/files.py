"""Reading published figures: this repository's own, and data sets that lie beside it."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from simulator import options
from simulator.errors import ScenarioError
from simulator.options import AtLeast

Row = dict[str, str]

PUBLISHED = Path(__file__).parents[1] / "data" / "published"
DEFAULT_DATA = Path(__file__).parents[3] / "shared" / "data"


class AbsentError(Exception):
    """A data set is not at hand; the message names the file."""


def read_rows(path: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of a CSV file that must have ``columns``.

    Raises AbsentError where there is no such file, ScenarioError where it is no CSV, lacks a
    column, has no row, or a row is cut short.
    """
    if not path.is_file():
        raise AbsentError(f"{path.name} is not in the data folder")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            missing = [name for name in columns if name not in (reader.fieldnames or ())]
            if missing:
                raise ScenarioError(path.name, f"has no column {', '.join(missing)}")
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ScenarioError(path.name, f"is not a CSV file: {error}") from None
    if not rows:
        raise ScenarioError(path.name, "has no rows")
    for number, row in enumerate(rows, start=2):
        if any(row[name] is None for name in columns):
            raise ScenarioError(f"{path.name}, line {number}", "is cut short")
    return rows


def value_of(cell: str) -> bool | int | float | str:
    """A cell as what it spells: true or false, a number, or else text."""
    if cell in ("true", "false"):
        return cell == "true"
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def number(row: Row, column: str, where: str, least: float = 0.0) -> float:
    """A finite number of at least ``least``. Raises ScenarioError naming the place."""
    return options.number(row[column], f"{where}, {column}", AtLeast(least))


def whole(row: Row, column: str, where: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ScenarioError naming the place."""
    value = number(row, column, where, least)
    return options.whole(value, f"{where}, {column}", AtLeast(least))


def one_of(row: Row, column: str, where: str, valid: Sequence[str]) -> str:
    """A word among ``valid``. Raises ScenarioError naming the place and the words."""
    return options.choice(row[column], f"{where}, {column}", valid)
