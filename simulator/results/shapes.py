"""What a value in a file may be: a cell of a table, or what a key of a JSON file holds.

A shape is frozen data with one method, ``read(value, field)``, which raises ScenarioError naming
``field`` (a dotted key, such as ``updates[3].total_s``) where the value is another, in the words of
`simulator.options`, whose `Choice` and `Flag` are shapes too. Files differ from options in this:
a number is never written as text, is never beyond what can be reckoned with, and keys that are
none of ours are left alone. Numbers and texts also read a whole column of a table at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.options import A_MAPPING, Bounds, join, short, wrong

MOST = 1e12
"""No number in our files is larger: a trillion seconds, or tokens."""

LARGEST_TOKENS = 100_000_000
"""Of one prompt or response: more than any model's context, so that a larger figure is in another
unit or in another column."""


class Shape(Protocol):
    """What a value may be."""

    def read(self, value: object, field: str) -> Any:
        """The value. Raises ScenarioError (``field``) for another."""
        ...


class CellError(Exception):
    """A cell that its column does not allow. row: its number from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from ``least`` (more than that, with ``above``) to ``most``. null: it may be
    absent: an empty cell or ``nan`` in a table, null in JSON."""

    least: float = 0
    most: float = MOST
    above: bool = False
    whole: bool = False
    null: bool = False

    @property
    def typecode(self) -> str:
        """Of `array.array` and numpy."""
        return "q" if self.whole else "d"

    @property
    def wanted(self) -> str:
        """Its kind and its range."""
        bounds = Bounds(self.least, self.most, above=self.above)
        return f"a {'whole number' if self.whole else 'number'} {bounds}"

    def read(self, value: object, field: str) -> Any:
        """The number. Raises ScenarioError (``field``)."""
        if value is None and self.null:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(field, self.wanted, value)
        inside = self.least <= value <= self.most and not (self.above and value == self.least)
        if not inside or (self.whole and value != int(value)):
            raise wrong(field, self.wanted, value)
        return value

    def column(self, cells: Sequence[str]) -> NDArray[Any]:
        """The cells as an array, shape (n,), nan where one is absent. Raises CellError."""
        given = [cell or "nan" for cell in cells]
        try:
            values = np.array(given, dtype=np.float64)
        except ValueError:
            row = next(i for i, cell in enumerate(given) if not _is_number(cell))
            raise CellError(row, f"must be {self.wanted}, got {short(cells[row])}") from None
        inside = (values > self.least) if self.above else (values >= self.least)
        inside &= values <= self.most
        if self.whole:
            inside[inside] = values[inside] == np.rint(values[inside])
        if self.null:
            inside |= np.isnan(values)
        if not inside.all():
            row = int(np.argmin(inside))
            got = short(cells[row]) if cells[row].strip() else "nothing"
            raise CellError(row, f"must be {self.wanted}, got {got}")
        return values.astype(np.int64) if self.whole else values


@dataclass(frozen=True, slots=True)
class Text:
    """Text."""

    def read(self, value: object, field: str) -> str:
        """The text. Raises ScenarioError (``field``)."""
        if not isinstance(value, str):
            raise wrong(field, "text", value)
        return value

    def column(self, cells: Sequence[str]) -> NDArray[Any]:
        """The cells as an array of objects, shape (n,). Raises CellError for an empty one."""
        if "" in cells:
            raise CellError(list(cells).index(""), "must be text, got nothing")
        return np.array(cells, dtype=object)


@dataclass(frozen=True, slots=True)
class Each:
    """A list of at least ``at_least`` values of one shape."""

    of: Shape
    at_least: int = 0

    def read(self, value: object, field: str) -> Any:
        """The list. Raises ScenarioError, with the value's place, such as ``rows[3]``."""
        if not isinstance(value, list | tuple):
            raise wrong(field, "a list", value)
        if len(value) < self.at_least:
            raise wrong(field, f"a list of {self.at_least} or more", value)
        return [self.of.read(item, f"{field}[{i}]") for i, item in enumerate(value)]


@dataclass(frozen=True, slots=True)
class Several:
    """A list of as many values as there are shapes, such as ``[from_rollouts, seconds]``."""

    of: tuple[Shape, ...]

    def read(self, value: object, field: str) -> Any:
        """The list. Raises ScenarioError for another length, or of the first value that is
        wrong."""
        if not isinstance(value, list | tuple) or len(value) != len(self.of):
            raise wrong(field, f"a list of {len(self.of)}", value)
        pairs = enumerate(zip(self.of, value, strict=True))
        return [shape.read(item, f"{field}[{i}]") for i, (shape, item) in pairs]


@dataclass(frozen=True, slots=True)
class Keys:
    """A mapping. needed: keys that it must hold; may: those that are checked where they are there.
    Others are none of ours."""

    needed: Mapping[str, Shape] = field(default_factory=dict)
    may: Mapping[str, Shape] = field(default_factory=dict)

    def read(self, value: object, field: str) -> Any:
        """The mapping. Raises ScenarioError naming the first key that is missing or wrong."""
        if not isinstance(value, Mapping):
            raise wrong(field, A_MAPPING, value)
        for key, shape in {**self.needed, **self.may}.items():
            if key in value:
                shape.read(value[key], join(field, key))
            elif key in self.needed:
                raise ScenarioError(join(field, key), "missing")
        return value


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping of any names to values of one shape."""

    of: Shape

    def read(self, value: object, field: str) -> Any:
        """The mapping. Raises ScenarioError naming the first key that is wrong."""
        if not isinstance(value, Mapping):
            raise wrong(field, A_MAPPING, value)
        for key, item in value.items():
            self.of.read(item, join(field, str(key)))
        return value


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value of a shape, or null."""

    of: Shape

    def read(self, value: object, field: str) -> Any:
        """The value. Raises ScenarioError as the shape does, but for null."""
        return None if value is None else self.of.read(value, field)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
