"""Objects as plain data for JSON, and back by their annotations.

Data read back are checked against the annotated types, exactly (8.0 is no whole number); no class
is looked up by a name in the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.readers import AnyOf, Anything, Choice, Nullable, Reader, Row
from rollcast.simulator.values.words import A_MAPPING, short, wrong

T = TypeVar("T")
_SCALARS = {NoneType: "null", bool: "true or false", int: "a whole number", str: "text"}


def to_plain(value: Any) -> Any:
    """``value`` as None, booleans, numbers, texts, lists, and mappings with text keys.

    A dataclass, or a class with annotated slots, becomes a mapping of its fields; a named tuple a
    list; a mapping with other keys a list of pairs. Raises TypeError for anything else.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple | deque):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        if all(type(key) is str for key in value):
            return {key: to_plain(item) for key, item in value.items()}
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, float | int):  # numpy's float64 is one of Python's floats
        return float(value) if isinstance(value, float) else int(value)
    kind: Any = type(value)
    names = _annotated(kind)
    if names:
        return {name: to_plain(getattr(value, name)) for name in names}
    raise TypeError(f"{kind.__name__} is no plain data")


def from_plain(data: Any, hint: type[T] | Any, where: str) -> Any:
    """The object of ``hint`` that `to_plain` wrote as ``data``. Raises ValueError, starting with
    ``where``, for data of another shape."""
    try:
        return _reader(cast(Hashable, hint)).read(data, where)
    except ScenarioError as error:
        raise ValueError(str(error)) from None


def check_type(value: Any, hint: Any, where: str) -> None:
    """Raises ValueError for an object not of its annotated type: plain data, sets, records."""
    try:
        _reader(hint, True).read(value, where)
    except ScenarioError as error:
        raise ValueError(str(error)) from None


@cache
def _reader(hint: Any, objects: bool = False) -> Reader:
    """The exact reader of an annotation. objects: reads objects, not their plain data."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return Anything()
    if origin in (Union, UnionType):
        readers = [_reader(kind, objects) for kind in arguments if kind is not NoneType]
        single = readers[0] if len(readers) == 1 else AnyOf(tuple(readers))
        return Nullable(single) if NoneType in arguments else single
    if origin is Literal:
        return Choice(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        entries = tuple(_reader(entry, objects) for entry in arguments)
        return Row(entries, kind=tuple if objects else list)
    if origin in (list, deque, tuple, set, frozenset):
        entry = _reader(arguments[0], objects)
        return Row((entry,), rest=True, kind=origin if objects else list, make=origin)
    if origin in (dict, Mapping):
        return _Pairs(_reader(arguments[0], objects), _reader(arguments[1], objects), objects)
    if hint is None or hint in (bool, int, float, str, NoneType):
        return _Exact(NoneType if hint is None else hint)
    if objects:
        plain = hint in (tuple, list, set, frozenset, dict, deque)
        return _Exact(hint) if plain or is_record(hint) else Anything()
    return _Record(hint)


@dataclass(frozen=True, slots=True)
class _Exact(Reader):
    """A value of a type, and of none derived from it; for a float, whole numbers too."""

    kind: type

    @property
    def wanted(self) -> str:
        """Its type in words."""
        return _SCALARS.get(self.kind, "a number" if self.kind is float else self.kind.__name__)

    def read(self, value: object, field: str) -> Any:
        """The value."""
        if type(value) is self.kind:
            return value
        if self.kind is float and type(value) is int:
            return float(value)
        raise wrong(field, self.wanted, value)


@dataclass(frozen=True, slots=True)
class _Pairs(Reader):
    """A mapping; in plain data also a list of pairs."""

    key: Reader
    item: Reader
    objects: bool

    @property
    def wanted(self) -> str:
        """A mapping."""
        return A_MAPPING

    def read(self, value: object, field: str) -> dict[Any, Any]:
        """A dict."""
        if type(value) is dict:
            pairs = [(key, item) for key, item in value.items()]
        elif self.objects:
            raise wrong(field, self.wanted, value)
        else:
            pairs = _LIST_OF_PAIRS.read(value, field)
        made: dict[Any, Any] = {}
        for key, item in pairs:
            name = self.key.read(key, field)
            if name in made:
                raise ScenarioError(field, f"holds {short(key)} twice")
            made[name] = self.item.read(item, f"{field}[{short(key)}]")
        return made


_LIST_OF_PAIRS = Row((Row((Anything(), Anything()), kind=list),), rest=True, kind=list)


@dataclass(frozen=True, slots=True)
class _Record(Reader):
    """An object of a class with annotated fields: a mapping of them; of a named tuple, a list."""

    kind: Any

    @property
    def wanted(self) -> str:
        """Its fields."""
        return f"the fields of a {self.kind.__name__}"

    def read(self, value: object, field: str) -> Any:
        """An object of the class. Raises TypeError for a class without annotated fields."""
        hints = _annotated(self.kind)
        if not hints:
            raise TypeError(f"{field}: objects of {self.kind} are not read")
        if issubclass(self.kind, tuple):
            if type(value) is not list or len(value) != len(hints):
                raise wrong(field, f"a list of {len(hints)}", value)
            value = dict(zip(hints, value, strict=True))
        elif not isinstance(value, dict) or value.keys() != hints.keys():
            raise wrong(field, self.wanted, value)
        values = {
            name: _reader(hint).read(value[name], f"{field}.{name}") for name, hint in hints.items()
        }
        return make_record(self.kind, values)


def is_record(kind: Any) -> bool:
    """Whether a class is a dataclass or a named tuple."""
    named_tuple = isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    return named_tuple or (isinstance(kind, type) and is_dataclass(kind))


def make_record(kind: Any, values: Mapping[str, Any]) -> Any:
    """An object of a record class with these fields, computed ones included."""
    if issubclass(kind, tuple):
        return kind(**values)
    made = object.__new__(kind)
    for name, item in values.items():
        object.__setattr__(made, name, item)
    return made


@cache
def _annotated(kind: Any) -> dict[str, Any]:
    """The annotated fields of a dataclass, a named tuple, or a class with slots; else none."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind)}
    if issubclass(kind, tuple):
        return get_type_hints(kind) if hasattr(kind, "_fields") else {}
    slots = kind.__dict__.get("__slots__", ())
    hints = get_type_hints(kind) if slots else {}
    return {name: hints[name] for name in slots} if set(slots) <= hints.keys() else {}
