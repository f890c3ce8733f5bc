"""Checked reading of JSON, JSON lines and tables. Errors name the file and the line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results import columns
from rollcast.simulator.results.schema import OLD_FILES, PACKED, Document, Lines, Table
from rollcast.simulator.values.readers import Reader

DEEPEST = 100  # levels in a JSON file; ours have six


class NotJsonError(ValueError):
    """A text that is no JSON; its message ends a sentence."""


def parse_json(text: str | bytes) -> Any:
    """The value of ``text``. Raises NotJsonError for no JSON, numbers of thousands of digits, no
    UTF-8, and more than `DEEPEST` levels."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise NotJsonError(f"more than {DEEPEST} levels deep") from None
    except UnicodeDecodeError as error:
        raise NotJsonError(f"not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise NotJsonError(f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise NotJsonError("a number has too many digits") from None
    _check_values(value)
    return value


def _check_values(value: Any) -> None:
    """Raises NotJsonError for values that cannot be walked or printed."""
    level: list[Any] = [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and not item.isascii():
                _check_text(item)
        if not below:
            return
        level = below
    raise NotJsonError(f"more than {DEEPEST} levels deep")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise NotJsonError("half of a surrogate pair is no text") from None


def read_json(path: Path, field: str, name: str | None = None, wanted: str = "") -> Any:
    """The content of a JSON file.

    name: in errors; default its path. wanted: what it should be, in errors. Raises ScenarioError
    (``field``).
    """
    label = str(path) if name is None else name
    try:
        return parse_json(_content(path, field, label))
    except NotJsonError as error:
        message = f"{label} is not a file of JSON: {error}{wanted and f'; {wanted}'}"
        raise ScenarioError(field, message) from None


def read_document(folder: Path, document: Document, field: str) -> dict[str, Any]:
    """A JSON file of a run's folder, checked. Raises ScenarioError (``field``)."""
    path = place(folder, document.name)
    content: dict[str, Any] = read_json(path, field)
    check(content, document.shape, str(path), field)
    return content


def read_lines(folder: Path, lines: Lines, field: str) -> list[dict[str, Any]]:
    """A file of JSON lines, checked. Raises ScenarioError (``field``)."""
    path = place(folder, lines.name)
    documents = []
    for number, line in enumerate(_content(path, field, str(path)).splitlines(), start=1):
        label = f"{path}, line {number}"
        try:
            content = parse_json(line)
        except NotJsonError as error:
            message = f"{label}: {path.name} is not a file of JSON lines: {error}"
            raise ScenarioError(field, message) from None
        check(content, lines.shape, label, field)
        documents.append(content)
    return documents


def read_table(folder: Path, table: Table, field: str) -> dict[str, NDArray[Any]]:
    """The declared columns of a run's table, each of shape (rows,).

    Raises ScenarioError (``field``) for no CSV, rows of another length than the header, a missing
    needed column, or a wrong cell.
    """
    path = place(folder, table.name)
    try:
        text = _content(path, field, str(path)).decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"{path} is not a table: not UTF-8 text (byte {error.start})"
        raise ScenarioError(field, message) from None
    header, lines, rows = _rows(path, text, field)
    for name in table.needed:
        if name not in header:
            raise ScenarioError(field, f"{path} has no column {name!r}")
    cells = dict(zip(header, zip(*rows, strict=True), strict=True)) if rows else {}
    by_column = {}
    for column in table.columns:
        if column.name not in header:
            continue
        try:
            by_column[column.name] = columns.column(column.shape, cells.get(column.name, ()))
        except columns.CellError as error:
            at = f"{path}, line {lines[error.row]}, column {column.name!r}"
            raise ScenarioError(field, f"{at}: {error}") from None
    return by_column


def _rows(path: Path, text: str, field: str) -> tuple[list[str], list[int], list[list[str]]]:
    """Header, and of each row that is not blank its line number and cells."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    lines, rows = [], []
    try:
        header = next(reader, [])
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                message = (
                    f"{path}, line {reader.line_num} has {len(row)} cells; the header has "
                    f"{len(header)}"
                )
                raise ScenarioError(field, message)
            lines.append(reader.line_num)
            rows.append(row)
    except csv.Error as error:
        message = f"{path}, line {reader.line_num} is not a table: {error}"
        raise ScenarioError(field, message) from None
    if not header:
        raise ScenarioError(field, f"{path} is not a table: it is empty")
    for name in header:
        if header.count(name) > 1:
            raise ScenarioError(field, f"{path} has the column {name!r} {header.count(name)} times")
    return header, lines, rows


def check(value: object, shape: Reader, label: str, field: str) -> None:
    """Raises ScenarioError (``field``) for a ``value`` of another shape. label: for errors."""
    try:
        shape.read(value, "")
    except ScenarioError as error:
        at = f"{label}, {error.field}" if error.field else label
        raise ScenarioError(field, f"{at}: {error.message}") from None


def place(folder: Path, name: str) -> Path:
    """The path of a run's file, plain or compressed, by its present name or an earlier one."""
    known = (name, OLD_FILES.get(name, name))
    paths = [folder / each for other in known for each in (f"{other}{PACKED}", other)]
    return next((path for path in paths if path.exists()), folder / name)


def _content(path: Path, field: str, label: str) -> bytes:
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # it may never end
            raise ScenarioError(field, f"{label} is a device or a pipe; give a file")
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == PACKED else content
    except (OSError, EOFError, ValueError) as error:  # ValueError: no path at all
        reason = getattr(error, "strerror", None) or error
        raise ScenarioError(field, f"cannot read {label}: {reason}") from None
    except zlib.error:
        raise ScenarioError(field, f"cannot read {label}: it is not compressed whole") from None
