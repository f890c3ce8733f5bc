"""What a value in a file may be: a cell of a table, or what a key of a JSON file holds.

A shape is frozen data with one method, ``check(value, name)``, which raises ScenarioError whose
field is ``name`` (a dotted key, such as ``updates[3].total_s``) where the value is another. Numbers
and texts also read a whole column of a table at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScenarioError

MOST = 1e12
"""No number in our files is larger: a trillion seconds, or tokens."""

LARGEST_TOKENS = 100_000_000
"""Of one prompt or response: more than any model's context, so that a larger figure is in another
unit or in another column."""


class Shape(Protocol):
    """What a value may be."""

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError (``name``) for another value."""


class CellError(Exception):
    """A cell that its column does not allow. row: its number from 0."""

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number from ``least`` (more than that, with ``above``) to ``most``. null: it may be
    absent: an empty cell or ``nan`` in a table, null in JSON."""

    least: float = 0.0
    most: float = MOST
    above: bool = False
    whole: bool = False
    null: bool = False

    @property
    def typecode(self) -> str:
        """Of `array.array` and numpy."""
        return "q" if self.whole else "d"

    @property
    def _wanted(self) -> str:
        kind = "whole number" if self.whole else "number"
        low = f"{'more than' if self.above else 'at least'} {self.least:g}"
        return f"a {kind} of {low} and at most {self.most:g}"

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError (``name``) for another value; text is no number here."""
        if value is None and self.null:
            return
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ScenarioError(name, f"{shown(value)} is not a number; give {self._wanted}")
        inside = self.least <= value <= self.most and not (self.above and value == self.least)
        if not inside or (self.whole and value != int(value)):
            raise ScenarioError(name, f"{shown(value)} is out of range; give {self._wanted}")

    def column(self, cells: Sequence[str]) -> NDArray[Any]:
        """The cells as an array, shape (n,), nan where one is absent. Raises CellError."""
        given = [cell or "nan" for cell in cells]
        try:
            values = np.array(given, dtype=np.float64)
        except ValueError:
            row = next(i for i, cell in enumerate(given) if not _is_number(cell))
            raise CellError(row, f"{shown(cells[row])} is not a number") from None
        absent = np.isnan(values)
        inside = (values > self.least) if self.above else (values >= self.least)
        inside &= values <= self.most
        if self.whole:
            inside[inside] = values[inside] == np.rint(values[inside])
        if self.null:
            inside |= absent
        if not inside.all():
            row = int(np.argmin(inside))
            if not cells[row].strip():
                raise CellError(row, f"a value is missing; give {self._wanted}")
            raise CellError(row, f"{shown(cells[row])} is out of range; give {self._wanted}")
        return values.astype(np.int64) if self.whole else values


@dataclass(frozen=True, slots=True)
class Text:
    """Text; null: or none."""

    null: bool = False

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError (``name``) for what is no text."""
        if not (isinstance(value, str) or (value is None and self.null)):
            raise ScenarioError(name, f"{shown(value)} is not text")

    def column(self, cells: Sequence[str]) -> NDArray[Any]:
        """The cells as an array of objects, shape (n,). Raises CellError for an empty one."""
        for row, cell in enumerate(cells):
            if not cell and not self.null:
                raise CellError(row, "a value is missing; give text")
        return np.array(cells, dtype=object)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError (``name``) for anything else, 0 and 1 included."""
        if not isinstance(value, bool):
            raise ScenarioError(name, f"{shown(value)} is not true or false")


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some words."""

    words: tuple[str, ...]

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError (``name``) for another."""
        if value not in self.words:
            raise ScenarioError(name, f"{shown(value)} is unknown; valid: {', '.join(self.words)}")


@dataclass(frozen=True, slots=True)
class Each:
    """A list of at least ``at_least`` values of one shape. count: exactly so many."""

    of: Shape
    at_least: int = 0
    count: int | None = None

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError, with the value's place, such as ``rows[3]``."""
        if not isinstance(value, list | tuple):
            raise ScenarioError(name, f"{shown(value)} is not a list")
        if self.count is not None and len(value) != self.count:
            raise ScenarioError(name, f"has {len(value)} values; give {self.count}")
        if len(value) < self.at_least:
            raise ScenarioError(name, f"has {len(value)} values; give at least {self.at_least}")
        for i, item in enumerate(value):
            self.of.check(item, f"{name}[{i}]")


@dataclass(frozen=True, slots=True)
class Row:
    """A list of values, each of its own shape, such as ``[from_rollouts, seconds]``."""

    of: tuple[Shape, ...]

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError for another length, or of the first value that is wrong."""
        if not isinstance(value, list | tuple) or len(value) != len(self.of):
            raise ScenarioError(name, f"{shown(value)} is not a list of {len(self.of)} values")
        for i, (item, shape) in enumerate(zip(value, self.of, strict=True)):
            shape.check(item, f"{name}[{i}]")


@dataclass(frozen=True, slots=True)
class Keys:
    """A mapping. needed: keys that it must hold; may: those that are checked where they are there.
    Others are none of ours, and left alone. null: or none at all."""

    needed: Mapping[str, Shape] = field(default_factory=dict)
    may: Mapping[str, Shape] = field(default_factory=dict)
    null: bool = False

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError naming the first key that is missing or wrong."""
        if value is None and self.null:
            return
        if not isinstance(value, Mapping):
            raise ScenarioError(name, f"{shown(value)} is not a mapping of keys to values")
        for key, shape in self.needed.items():
            if key not in value:
                raise ScenarioError(_inside(name, key), "missing")
            shape.check(value[key], _inside(name, key))
        for key, shape in self.may.items():
            if key in value:
                shape.check(value[key], _inside(name, key))


@dataclass(frozen=True, slots=True)
class Named:
    """A mapping of any names to values of one shape."""

    of: Shape

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError naming the first key that is wrong."""
        if not isinstance(value, Mapping):
            raise ScenarioError(name, f"{shown(value)} is not a mapping of keys to values")
        for key, item in value.items():
            self.of.check(item, _inside(name, str(key)))


@dataclass(frozen=True, slots=True)
class Maybe:
    """A value of a shape, or null."""

    of: Shape

    def check(self, value: object, name: str) -> None:
        """Raises ScenarioError as the shape does, but for null."""
        if value is not None:
            self.of.check(value, name)


def shown(value: object) -> str:
    """A value as an error shows it: on one line, and not a page of it."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple) and len(value) > 4:
        return f"a list of {len(value)} values"
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _inside(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
