"""Objects as plain data, which JSON holds, and back by their annotations.

What is read back is checked to be of the annotated types, so that a file that was damaged, or made
to do harm, gives an error in place of an object that nobody expects; no class is ever looked up by
a name in the data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """``value`` as None, truth values, numbers, texts, lists, and mappings with texts as keys.

    A dataclass, or a class with annotated slots, is a mapping of its fields; a named tuple is a
    list, and so is a mapping whose keys are not texts, of pairs. Raises TypeError for anything
    else.
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
    names = _fields(kind)
    if names:
        return {name: to_plain(getattr(value, name)) for name in names}
    raise TypeError(f"{kind.__name__} is no plain data")


def from_plain(data: Any, hint: type[T] | Any, where: str) -> Any:
    """What `to_plain` made ``data`` of, by its annotation ``hint``; ``Any`` is for plain data.

    Raises ValueError, which says ``where``, for data of another shape.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return data
    if origin in (Union, UnionType):
        return _one_of(data, arguments, where)
    if origin is Literal:
        if not any(data == choice and type(data) is type(choice) for choice in arguments):
            raise ValueError(f"{where} is {_shown(data)}, and not one of {arguments}")
        return data
    if origin is tuple and arguments[-1] is not Ellipsis:
        pairs = zip(_list(data, where, len(arguments)), arguments, strict=True)
        return tuple(from_plain(item, hint, where) for item, hint in pairs)
    if origin in (list, deque, tuple):
        assert origin is not None
        each = enumerate(_list(data, where))
        return origin(from_plain(item, arguments[0], f"{where}[{i}]") for i, item in each)
    if origin in (dict, Mapping):
        return _mapping(data, arguments, where)
    if hint is NoneType or hint is None:
        return _scalar(data, NoneType, where)
    if hint is float and type(data) is int:
        return float(data)
    if hint in (bool, int, float, str):
        return _scalar(data, hint, where)
    return _record(data, hint, where)


def _one_of(data: Any, hints: tuple[Any, ...], where: str) -> Any:
    if data is None and NoneType in hints:
        return None
    kinds = [hint for hint in hints if hint is not NoneType]
    for hint in kinds[:-1]:
        try:
            return from_plain(data, hint, where)
        except ValueError:
            continue
    return from_plain(data, kinds[-1], where)


def _mapping(data: Any, hints: tuple[Any, ...], where: str) -> dict[Any, Any]:
    key_hint, item_hint = hints
    if isinstance(data, dict):
        pairs = [[key, item] for key, item in data.items()]
    else:
        pairs = [_list(pair, where, 2) for pair in _list(data, where)]
    made: dict[Any, Any] = {}
    for key, item in pairs:
        name = from_plain(key, key_hint, where)
        if name in made:
            raise ValueError(f"{where} has {_shown(key)} twice")
        made[name] = from_plain(item, item_hint, f"{where}[{_shown(key)}]")
    return made


def _record(data: Any, kind: Any, where: str) -> Any:
    """An object of a class with annotated fields."""
    hints = _fields(kind)
    if not hints:
        raise TypeError(f"{where}: objects of {kind} are not read")
    if issubclass(kind, tuple):
        items = _list(data, where, len(hints))
        pairs = zip(hints.items(), items, strict=True)
        return kind(*(from_plain(item, hint, f"{where}.{name}") for (name, hint), item in pairs))
    if not isinstance(data, dict) or data.keys() != hints.keys():
        raise ValueError(f"{where} does not have the fields of a {kind.__name__}")
    made = object.__new__(kind)  # what its constructor would compute is in the data
    for name, hint in hints.items():
        object.__setattr__(made, name, from_plain(data[name], hint, f"{where}.{name}"))
    return made


@cache
def _fields(kind: Any) -> dict[str, Any]:
    """The annotated fields of a dataclass, a named tuple, or a class with slots; else none."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return {field.name: hints[field.name] for field in fields(kind)}
    if issubclass(kind, tuple):
        return get_type_hints(kind) if hasattr(kind, "_fields") else {}
    slots = kind.__dict__.get("__slots__", ())
    hints = get_type_hints(kind) if slots else {}
    return {name: hints[name] for name in slots} if set(slots) <= hints.keys() else {}


def _list(data: Any, where: str, length: int | None = None) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{where} is {_shown(data)}, and not a list")
    if length is not None and len(data) != length:
        raise ValueError(f"{where} has {len(data)} entries, and not {length}")
    return data


def _scalar(data: Any, kind: type, where: str) -> Any:
    if type(data) is not kind:
        raise ValueError(f"{where} is {_shown(data)}, and not of type {kind.__name__}")
    return data


def _shown(data: Any) -> str:
    text = repr(data) if isinstance(data, int | float | str | None) else f"a {type(data).__name__}"
    return text if len(text) <= 40 else f"{text[:37]}..."
