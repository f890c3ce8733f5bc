"""Reading published figures: this repository's own, and data sets that lie beside it."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import ScenarioError

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


def number(row: Row, column: str, where: str, least: float = 0.0) -> float:
    """A finite number of at least ``least``. Raises ScenarioError naming the place."""
    try:
        value = float(row[column])
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= least):
        raise ScenarioError(
            f"{where}, {column}", f"{row[column]!r} is no number of at least {least:g}"
        )
    return value


def whole(row: Row, column: str, where: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ScenarioError naming the place."""
    value = number(row, column, where, least)
    if not value.is_integer():
        raise ScenarioError(f"{where}, {column}", f"{row[column]!r} is no whole number")
    return int(value)


def one_of(row: Row, column: str, where: str, valid: Sequence[str]) -> str:
    """A word among ``valid``. Raises ScenarioError naming the place and the words."""
    if row[column] not in valid:
        raise ScenarioError(
            f"{where}, {column}", f"{row[column]!r} is unknown; known: {', '.join(valid)}"
        )
    return row[column]
