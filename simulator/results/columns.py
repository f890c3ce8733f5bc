"""Numbers and columns of numbers in our files, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.values.readers import Bounds, Nullable, Number, Reader
from rollcast.simulator.values.words import short

MOST = 1e12  # largest number in our files
LARGEST_TOKENS = 100_000_000  # of one prompt or response; more is a wrong unit or column


class CellError(Exception):
    """A wrong cell. row: from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def Figure(
    least: float = 0, most: float = MOST, *, whole: bool = False, null: bool = False
) -> Reader:
    """A finite number in a file. null: may be absent (empty, ``nan``, null)."""
    number = Number(whole, Bounds(least, most), text=False)
    return Nullable(number) if null else number


def typecode(reader: Reader) -> str | None:
    """Code of `array.array` and numpy for a number column; None for texts."""
    number = reader.inner if isinstance(reader, Nullable) else reader
    if not isinstance(number, Number):
        return None
    return "q" if number.whole else "d"


def column(reader: Reader, cells: Sequence[str]) -> NDArray[Any]:
    """The cells as an array, shape (n,), nan if absent; texts as objects. Raises CellError."""
    null = isinstance(reader, Nullable)
    number = reader.inner if isinstance(reader, Nullable) else reader
    if isinstance(number, Number):
        return _numbers(number, null, cells)
    if "" in cells:
        raise CellError(list(cells).index(""), f"must be {reader.wanted}, got nothing")
    return np.array(cells, dtype=object)


def _numbers(number: Number, null: bool, cells: Sequence[str]) -> NDArray[Any]:
    given = [cell or "nan" for cell in cells]
    try:
        values = np.array(given, dtype=np.float64)
    except ValueError:
        row = next(i for i, cell in enumerate(given) if not _is_number(cell))
        raise CellError(row, f"must be {number.wanted}, got {short(cells[row])}") from None
    inside: NDArray[np.bool_] = number.bounds.hold(values)
    if number.whole:
        inside[inside] = values[inside] == np.rint(values[inside])
    if null:
        inside |= np.isnan(values)
    if not inside.all():
        row = int(np.argmin(inside))
        got = short(cells[row]) if cells[row].strip() else "nothing"
        raise CellError(row, f"must be {number.wanted}, got {got}")
    return values.astype(np.int64) if number.whole and not np.isnan(values).any() else values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
