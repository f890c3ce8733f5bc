"""Tables of published figures: a dataclass is a row, its fields are the columns."""

import csv
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

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


def column(
    name: str = "",
    valid: Collection[str] | Mapping[str, Any] | None = None,
    least: float | None = None,
    made: Callable[[str, str], Any] | None = None,
) -> Any:
    """A field of a row that needs more than its type.

    name: of the column; the field's own, if left out. valid: the words that it may hold; of a
    mapping the keys, and the field is what they stand for. least: of a number; 1 of a whole one and
    above 0 of another, if left out. made: the value from a cell and its place.
    """
    return field(metadata={"name": name, "valid": valid, "least": least, "made": made})


def columns(row: type) -> tuple[str, ...]:
    """The columns that a row's dataclass is read from: its fields without a default."""
    return tuple(f.metadata.get("name") or f.name for f in _read(row))


def read_table(path: Path, row: type[T]) -> list[T]:
    """The rows of a table as ``row``, a dataclass.

    Fields are numbers, text, words (a Literal) or what their `column` says; an empty cell of an
    optional field is None. Raises AbsentError where there is no such file, ScenarioError naming
    line and column for a wrong cell.
    """
    hints, records = get_type_hints(row), []
    for line, cells in enumerate(read_rows(path, columns(row)), start=2):
        where = f"{path.name}, line {line}"
        given = {f.name: _value(cells, f, hints[f.name], where) for f in _read(row)}
        records.append(row(**given))
    return records


def _read(row: type) -> list[Field[Any]]:
    return [f for f in fields(cast(Any, row)) if f.default is MISSING]


def _value(cells: Row, spec: Field[Any], kind: Any, line: str) -> Any:
    """A cell as its field has it."""
    options = spec.metadata
    name = options.get("name") or spec.name
    cell, where, least = cells[name], f"{line}, {name}", options.get("least")
    if options.get("made"):
        return options["made"](cell, where)
    if get_origin(kind) is types.UnionType:
        if not cell:
            return None
        kind = get_args(kind)[0]
    valid = options.get("valid") or (get_args(kind) if get_origin(kind) is Literal else None)
    if valid is not None:
        word = values.choice(cell, where, list(valid))
        return valid[word] if isinstance(valid, Mapping) else word
    if kind is int:
        bounds = AtLeast(1 if least is None else int(least))
        return values.whole(values.number(cell, where, bounds), where, bounds)
    if kind is float:
        return values.number(cell, where, AtLeast(1e-9 if least is None else least))
    return cell
