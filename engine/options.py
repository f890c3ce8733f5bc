"""A mapping of a scenario as the keyword arguments of a dataclass, each value of the right type."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from simulator.checks import flag, join, known_keys, number, whole
from simulator.errors import ScenarioError


def mapping(value: object, field: str) -> dict[str, Any]:
    """``value`` as a mapping, empty for None. Raises ScenarioError naming ``field``."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ScenarioError(field, f"must be a mapping of options, got {value!r}")
    return dict(value)


def typed(value: object, kind: type, field: str, apart: Collection[str] = ()) -> dict[str, Any]:
    """The options in ``value`` for the dataclass ``kind``, checked against its annotations.

    Numbers are at least 0; narrower ranges are for ``kind`` to check. apart: keys that are left as
    they are, for the caller to read. Raises ScenarioError naming the key for one that ``kind`` does
    not have, and for a value of another type.
    """
    given = mapping(value, field)
    known_keys(given, [f.name for f in fields(kind)], field)
    hints = get_type_hints(kind)
    return {
        key: item if key in apart else _typed(item, hints[key], join(field, key))
        for key, item in given.items()
    }


def _typed(value: Any, hint: Any, field: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        if value is None and NoneType in arguments:
            return None
        [hint] = [argument for argument in arguments if argument is not NoneType]
        return _typed(value, hint, field)
    if origin is Literal:
        if value not in arguments:
            raise ScenarioError(field, f"{value!r} is not one of {', '.join(arguments)}")
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple) or len(value) != len(arguments):
            raise ScenarioError(field, f"must be a list of {len(arguments)} numbers, got {value!r}")
        return tuple(_typed(item, each, field) for item, each in zip(value, arguments, strict=True))
    if hint is bool:
        return flag(value, field)
    if hint is int:
        return whole(value, field)
    if hint is float:
        return number(value, field)
    raise TypeError(f"{field}: options of type {hint} are not read")
