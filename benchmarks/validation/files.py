"""Reading published figures: this repository's own, and data sets that lie beside it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from rollcast.simulator import values
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import AtLeast

Row = dict[str, str]
T = TypeVar("T")

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
    return values.number(row[column], f"{where}, {column}", AtLeast(least))


def whole(row: Row, column: str, where: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ScenarioError naming the place."""
    value = number(row, column, where, least)
    return values.whole(value, f"{where}, {column}", AtLeast(least))


def one_of(row: Row, column: str, where: str, valid: Sequence[str]) -> str:
    """A word among ``valid``. Raises ScenarioError naming the place and the words."""
    return values.choice(row[column], f"{where}, {column}", valid)


# Tables in one form: a dataclass is a row, its fields are columns


def column(
    name: str = "",
    valid: Collection[str] | Mapping[str, Any] | None = None,
    least: float | None = None,
    made: Callable[[str, str], Any] | None = None,
) -> Any:
    """A dataclass's field that is read from a table.

    name: of the column; the field's own, if left out. valid: the words that it may hold; of a
    mapping the keys, and the field is what they stand for. least: of a number; 1 of a whole one and
    above 0 of another, if left out. made: the value from a cell and where that stands.
    """
    return field(metadata={"column": name, "valid": valid, "least": least, "made": made})


def columns(row: type) -> tuple[str, ...]:
    """The columns that a row's dataclass is read from."""
    return tuple(f.metadata["column"] or f.name for f in fields(row) if "column" in f.metadata)


def read_table(path: Path, row: type[T]) -> list[T]:
    """The rows of a table as ``row``, a dataclass whose fields are made by `column`.

    Raises AbsentError where there is no such file, ScenarioError naming line and column for a cell
    that is wrong.
    """
    hints = get_type_hints(row)
    records = []
    for line, cells in enumerate(read_rows(path, columns(row)), start=2):
        where = f"{path.name}, line {line}"
        values = {
            f.name: _value(cells, f.metadata, f.metadata["column"] or f.name, hints[f.name], where)
            for f in fields(cast(Any, row))
            if "column" in f.metadata
        }
        records.append(row(**values))
    return records


def _value(cells: Row, spec: Mapping[str, Any], name: str, kind: Any, where: str) -> Any:
    """A cell as its field has it."""
    if spec["made"] is not None:
        return spec["made"](cells[name], where)
    if spec["valid"] is not None:
        word = one_of(cells, name, where, list(spec["valid"]))
        return spec["valid"][word] if isinstance(spec["valid"], Mapping) else word
    if kind is int:
        return whole(cells, name, where, 1 if spec["least"] is None else int(spec["least"]))
    if kind is float:
        return number(cells, name, where, 1e-9 if spec["least"] is None else spec["least"])
    return cells[name]
