"""Readers: one class for each kind of value.

``read(value, field)`` gives the value in its type or raises ScenarioError naming ``field``, a
dotted key such as ``updates[3].total_s``. Annotations are compiled to readers (`values.options`,
`values.plain`); files' contents are declared by readers (`simulator.results.schema`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeGuard, cast

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.words import A_MAPPING, figure, join, nearest, wrong


@dataclass(frozen=True, slots=True)
class Bounds:
    """A range of numbers, its ends included unless ``above`` or ``below`` says otherwise."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False
    below: bool = False

    def hold(self, value: Any) -> Any:
        """Whether a number lies in the range; of an array, whether each does."""
        low = value > self.least if self.above else value >= self.least
        high = value < self.most if self.below else value <= self.most
        return low & high

    def __str__(self) -> str:
        least, most = figure(self.least), figure(self.most)
        if self.most == math.inf:
            if self.least == -math.inf:
                return ""
            return f"above {least}" if self.above else f"of {least} or more"
        if self.least == -math.inf:
            return f"below {most}" if self.below else f"of {most} or less"
        if self.above:
            return f"above {least} and {'below' if self.below else 'up to'} {most}"
        return f"from {least} to {'below ' if self.below else ''}{most}"


def AtLeast(least: float) -> Bounds:
    """``least`` or more."""
    return Bounds(least)


def Above(least: float, most: float = math.inf, *, below: bool = False) -> Bounds:
    """More than ``least``, and ``most`` at most (less than it, with ``below``)."""
    return Bounds(least, most, above=True, below=below)


def Between(least: float, most: float, *, below: bool = False) -> Bounds:
    """From ``least`` to ``most``, or to less than it."""
    return Bounds(least, most, below=below)


ANY = Bounds()
SHARE = Between(0, 1)
POSITIVE = Above(0)
NOT_NEGATIVE = AtLeast(0)
SEED = Between(0, 2**64 - 1)


class Reader:
    """Base of the readers: by default one that has no keys below it."""

    __slots__ = ()

    @property
    def wanted(self) -> str:
        """What a value must be, as a noun."""
        raise NotImplementedError

    def read(self, value: object, field: str) -> Any:
        """The value in its proper type. Raises ScenarioError naming ``field``."""
        raise NotImplementedError

    def below(self) -> tuple[type, ...]:
        """The dataclasses whose options may stand below this one."""
        return ()

    def check_keys(self, value: object, field: str) -> None:
        """Raises ScenarioError for an unknown key below this value."""


class Anything(Reader):
    """A value that is checked elsewhere."""

    wanted = "a value"

    def read(self, value: object, field: str) -> Any:
        """The value as it is."""
        return value


@dataclass(frozen=True, slots=True)
class Number(Reader):
    """A finite number in a range; a whole one may be written as 8.0. text: whether a float may be
    written as text, such as '1e9' in YAML 1.1."""

    whole: bool
    bounds: Bounds = ANY
    text: bool = True

    @property
    def wanted(self) -> str:
        """Its kind and its range."""
        return f"a {'whole number' if self.whole else 'number'} {self.bounds}".rstrip()

    def read(self, value: object, field: str) -> Any:
        """An int or a float."""
        number = self._taken(value)
        if number is None or not self.bounds.hold(number):
            raise wrong(field, self.wanted, value)
        return number

    def read_all(self, values: Collection[object]) -> list[int | float] | None:
        """What `read` makes of each, where all are plain numbers that it takes; else None."""
        if not values or not {*map(type, values)} <= ({int} if self.whole else {int, float}):
            return None
        try:
            numbers = [*values] if self.whole else [*map(float, cast(Any, values))]
        except OverflowError:
            return None
        read = cast(list[int | float], numbers)
        fit = self.whole or all(map(math.isfinite, read))
        return read if fit and self.bounds.hold(min(read)) and self.bounds.hold(max(read)) else None

    def _taken(self, value: object) -> int | float | None:
        if type(value) is int and self.whole:  # as most are: the others ask abstract classes
            return value
        if type(value) is float and not self.whole:
            return value if math.isfinite(value) else None
        if isinstance(value, bool):
            return None
        if self.whole and isinstance(value, Integral):
            return int(value)
        as_text = self.text and not self.whole and isinstance(value, str) and value.isascii()
        if not as_text and not isinstance(value, Real):
            return None
        try:
            number = float(value)  # type: ignore[arg-type]
        except (ValueError, OverflowError):
            return None
        if not math.isfinite(number) or (self.whole and not number.is_integer()):
            return None
        return int(number) if self.whole else number


class Flag(Reader):
    """True or false."""

    wanted = "true or false"

    def read(self, value: object, field: str) -> bool:
        """A bool."""
        if not isinstance(value, bool):
            raise wrong(field, self.wanted, value)
        return value


class Text(Reader):
    """A text."""

    wanted = "text"

    def read(self, value: object, field: str) -> str:
        """A str."""
        if not isinstance(value, str):
            raise wrong(field, self.wanted, value)
        return value


class File(Reader):
    """The path of a file or folder; ``~`` is the user's home."""

    wanted = "the path of a file"

    def read(self, value: object, field: str) -> Path:
        """A path, which nobody has looked for yet."""
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise wrong(field, self.wanted, value)
        try:
            return Path(value).expanduser()
        except RuntimeError:
            raise wrong(field, self.wanted, value) from None


@dataclass(frozen=True, slots=True)
class Choice(Reader):
    """One of several words."""

    valid: tuple[Any, ...]

    @property
    def wanted(self) -> str:
        """The words."""
        words = ", ".join(map(str, self.valid))
        return words if len(self.valid) == 1 else f"one of {words}"

    def read(self, value: object, field: str) -> Any:
        """The word."""
        if any(value == word and type(value) is type(word) for word in self.valid):
            return value
        error = wrong(field, self.wanted, value)
        hint = nearest(value, map(str, self.valid)) if isinstance(value, str) else ""
        if not hint.startswith("did"):
            raise error
        raise ScenarioError(field, f"{error.message} ({hint})")


@dataclass(frozen=True, slots=True)
class Row(Reader):
    """A list: of any length with ``rest``, else one entry for each of ``entries``. least: its
    shortest length. kind: of the value. make: builds the result."""

    entries: tuple[Reader, ...]
    rest: bool = False
    least: int = 0
    kind: type = Sequence
    make: Callable[[Iterable[Any]], Any] = tuple

    @property
    def wanted(self) -> str:
        """What its entries are."""
        kinds = dict.fromkeys(entry.wanted for entry in self.entries)
        if self.rest:
            several = f" of {self.least} or more" if self.least else ""
            return f"a list{several}, each entry {self.entries[0].wanted}"
        each_one = "each " if len(kinds) == 1 else ""
        return f"a list of {len(self.entries)}, {each_one}{', then '.join(kinds)}"

    def read(self, value: object, field: str) -> Any:
        """The list; a tuple unless ``make`` builds another."""
        if not self._is_list(value):
            raise wrong(field, self.wanted, value)
        if self.rest and isinstance(self.entries[0], Number):  # thousands in a file of a run
            numbers = self.entries[0].read_all(value)
            if numbers is not None:
                return self.make(numbers)
        return self.make(
            reader.read(item, f"{field}[{i}]") for i, (reader, item) in self._pairs(value)
        )

    def below(self) -> tuple[type, ...]:
        """What stands in its entries."""
        return tuple(kind for entry in self.entries for kind in entry.below())

    def check_keys(self, value: object, field: str) -> None:
        """Looks into the entries."""
        if any(entry.below() for entry in self.entries) and self._is_list(value):
            for i, (reader, item) in self._pairs(value):
                reader.check_keys(item, f"{field}[{i}]")

    def _is_list(self, value: object) -> TypeGuard[Collection[Any]]:
        if isinstance(value, str) or not isinstance(value, self.kind):
            return False
        length = len(cast(Collection[Any], value))
        return length >= self.least and (self.rest or length == len(self.entries))

    def _pairs(self, values: Collection[Any]) -> Iterator[tuple[int, tuple[Reader, Any]]]:
        readers = self.entries * len(values) if self.rest else self.entries
        return enumerate(zip(readers, values, strict=True))


@dataclass(frozen=True, slots=True)
class Nullable(Reader):
    """Something, or nothing: None stands for itself."""

    inner: Reader

    @property
    def wanted(self) -> str:
        """What it must be if it is anything."""
        return self.inner.wanted

    def read(self, value: object, field: str) -> Any:
        """None, or what the inner reader makes of it."""
        return None if value is None else self.inner.read(value, field)

    def below(self) -> tuple[type, ...]:
        """As the inner one."""
        return self.inner.below()

    def check_keys(self, value: object, field: str) -> None:
        """As the inner one."""
        self.inner.check_keys(value, field)


@dataclass(frozen=True, slots=True)
class AnyOf(Reader):
    """Values of several forms, none of them options; the first that fits is taken."""

    forms: tuple[Reader, ...]

    @property
    def wanted(self) -> str:
        """Each of them."""
        return ", or ".join(form.wanted for form in self.forms)

    def read(self, value: object, field: str) -> Any:
        """As the first that takes it."""
        for form in self.forms:
            try:
                return form.read(value, field)
            except ScenarioError:
                continue
        raise wrong(field, self.wanted, value)


@dataclass(frozen=True, slots=True)
class Keys(Reader):
    """A mapping in a file. needed: required keys; may: keys checked if there. Others: ignored."""

    needed: Mapping[str, Reader] = field(default_factory=dict)
    may: Mapping[str, Reader] = field(default_factory=dict)

    @property
    def wanted(self) -> str:
        """A mapping."""
        return A_MAPPING

    def read(self, value: object, field: str) -> Any:
        """The mapping as it is. Raises ScenarioError for the first key that is missing or wrong."""
        if not isinstance(value, Mapping):
            raise wrong(field, self.wanted, value)
        for key, reader in {**self.needed, **self.may}.items():
            if key in value:
                reader.read(value[key], join(field, key))
            elif key in self.needed:
                raise ScenarioError(join(field, key), "missing")
        return value


@dataclass(frozen=True, slots=True)
class Named(Reader):
    """A mapping in a file, of any names to values of one kind."""

    of: Reader

    @property
    def wanted(self) -> str:
        """A mapping."""
        return A_MAPPING

    def read(self, value: object, field: str) -> Any:
        """The mapping as it is. Raises ScenarioError for the first value that is wrong."""
        if not isinstance(value, Mapping):
            raise wrong(field, self.wanted, value)
        for key, item in value.items():
            self.of.read(item, join(field, str(key)))
        return value


def ListOf(of: Reader, least: int = 0) -> Row:
    """A list of at least ``least`` values of one kind."""
    return Row((of,), rest=True, least=least)


def number(value: object, field: str, bounds: Bounds = NOT_NEGATIVE) -> float:
    """``value`` as a finite float in a range. Raises ScenarioError naming ``field``."""
    return float(Number(False, bounds).read(value, field))


def whole(value: object, field: str, bounds: Bounds = NOT_NEGATIVE) -> int:
    """``value`` as an int in a range. Raises ScenarioError naming ``field``."""
    return int(Number(True, bounds).read(value, field))


def flag(value: object, field: str) -> bool:
    """``value`` as a bool. Raises ScenarioError naming ``field``."""
    return Flag().read(value, field)


def choice(value: object, field: str, valid: Iterable[str]) -> str:
    """``value`` as one of the ``valid`` words. Raises ScenarioError naming ``field``."""
    return str(Choice(tuple(valid)).read(value, field))


def mapping(value: object, field: str) -> Mapping[Any, Any]:
    """``value`` as a mapping. Raises ScenarioError naming ``field``."""
    if not isinstance(value, Mapping):
        raise wrong(field, A_MAPPING, value)
    return value


TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
HOURS = {"min": 1 / 60, "m": 1 / 60, "h": 1.0, "d": 24.0, "w": 168.0}
TOKENS = {"k": 1024.0, "m": 1024.0**2}
"""Of a count of tokens, as contexts are named: 16k is 16,384."""
SECONDS = {"ms": 1e-3, "s": 1.0, **{unit: 3600 * hours for unit, hours in HOURS.items()}}
_WORDS = {"minute": "min", "hour": "h", "day": "d", "week": "w", "second": "s"}
_AMOUNT = re.compile(r"\$?\s*([0-9][0-9,_]{0,20}(?:\.[0-9]{1,9})?)\s*([a-z]{0,8})", re.IGNORECASE)


def amount(value: Any, units: Mapping[str, float]) -> Any:
    """A number that people write with a unit (``16k``, ``5d``, ``5 days``, ``$16,000``), in that of
    ``units`` which is 1; anything else as it is, for a reader to refuse. Whole numbers stay so.
    """
    match = _AMOUNT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    word = match[2].lower()
    unit = word if word in units else _WORDS.get(word.removesuffix("s"), word)
    if unit not in units:
        return value
    exact = float(re.sub("[,_]", "", match[1])) * units[unit]
    return int(exact) if exact == int(exact) else exact


def in_its_unit(key: str, value: Any) -> Any:
    """A value in the unit that the last part of its key names, tokens or seconds (``_s``), where it
    is written with another."""
    name = key.rpartition(".")[2]
    if isinstance(value, str) and "tokens" in name:
        return amount(value, TOKENS)
    return amount(value, SECONDS) if isinstance(value, str) and name.endswith("_s") else value


def in_their_units(value: Any, key: str = "") -> Any:
    """As `in_its_unit`, every value in mappings and lists."""
    if isinstance(value, dict):
        return {name: in_their_units(item, str(name)) for name, item in value.items()}
    if isinstance(value, list):
        return [in_their_units(item, key) for item in value]
    return in_its_unit(key, value)
