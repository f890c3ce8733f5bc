"""Numbers in our files, and whole columns of them: one check for a value and for a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.values.readers import Bounds, Nullable, Number, Reader
from rollcast.simulator.values.words import short

MOST = 1e12
"""No number in our files is larger: a trillion seconds, or tokens."""

LARGEST_TOKENS = 100_000_000
"""Of one prompt or response: more than any model's context, so that a larger figure is in another
unit or in another column."""


class CellError(Exception):
    """A cell that its column does not allow. row: its number from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


def Figure(
    least: float = 0, most: float = MOST, *, whole: bool = False, null: bool = False
) -> Reader:
    """A finite number in a file, never written as text. null: it may be absent: an empty cell or
    ``nan`` in a table, null in JSON."""
    number = Number(whole, Bounds(least, most), text=False)
    return Nullable(number) if null else number


def typecode(reader: Reader) -> str | None:
    """`array.array`'s and numpy's code of a column of numbers; None of texts."""
    number = reader.inner if isinstance(reader, Nullable) else reader
    if not isinstance(number, Number):
        return None
    return "q" if number.whole else "d"


def column(reader: Reader, cells: Sequence[str]) -> NDArray[Any]:
    """The cells of a column as an array, shape (n,): numbers, nan where one is absent, or texts as
    objects. Raises CellError for the first that is wrong."""
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
    return values.astype(np.int64) if number.whole else values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
