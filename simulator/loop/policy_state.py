"""Policies' states as plain data, and back.

A state may hold numbers, texts, None, lists, tuples, sets, mappings, numpy arrays of numbers, and
records (dataclasses and named tuples). A record is read back only as a class that the policy's own
module names.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import numpy as np

from rollcast.simulator.core.policy import Chain, Policy
from rollcast.simulator.errors import RunError
from rollcast.simulator.values.plain import check_type, from_plain, is_record, make_record

_TAG = "is"
_MANY: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
}
_ARRAYS = ("bool", "int64", "float64")


def save_state(policy: Policy, state: Any) -> Any:
    """A policy's state as plain data. Raises RunError, naming the policy, for anything else."""
    if isinstance(policy, Chain):
        pairs = zip(policy.policies, state, strict=True)
        return [save_state(member, member_state) for member, member_state in pairs]
    try:
        return _encode(state, dict(_records(policy)))
    except (_NotPlainError, RecursionError) as error:
        raise RunError(
            f"{type(policy.behind).__name__}'s state cannot be saved: {error}; a state is made of "
            "numbers, texts, lists, tuples, sets, mappings, arrays of numbers, and the dataclasses "
            "and named tuples of the policy's own module"
        ) from None


def load_state(policy: Policy, data: Any) -> Any:
    """The state that `save_state` saved. Raises ValueError for any other data."""
    if isinstance(policy, Chain):
        if not isinstance(data, list) or len(data) != len(policy.policies):
            raise ValueError("there is not one state for each policy of the chain")
        pairs = zip(policy.policies, data, strict=True)
        return tuple(load_state(member, member_state) for member, member_state in pairs)
    name, first = type(policy.behind).__name__, policy.init()
    try:
        state = _decode(data, dict(_records(policy)))
    except (TypeError, RecursionError) as error:
        raise ValueError(f"{name}'s state: {error}") from None
    if first is not None and type(state) is not type(first):
        kinds = f"a {type(state).__name__} in place of a {type(first).__name__}"
        raise ValueError(f"{name}'s state is {kinds}")
    return state


class _NotPlainError(Exception):
    """The state holds something that is no plain data; the message says what."""


def _records(policy: Policy) -> Iterator[tuple[str, type]]:
    """The record classes that the modules of the policy's classes name."""
    for owner in type(policy.behind).__mro__:
        for value in list(vars(sys.modules[owner.__module__]).values()):
            if isinstance(value, type) and _is_record(value):
                yield value.__qualname__, value


def _is_record(kind: type) -> bool:
    return is_record(kind) and not issubclass(kind, Policy)


def _encode(value: Any, records: dict[str, type]) -> Any:
    def encoded(values: Any) -> list[Any]:
        return [_encode(item, records) for item in values]

    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return _encode(value.item(), records)
    if kind is list:
        return encoded(value)
    if kind.__name__ in _MANY and kind in (tuple, set, frozenset, deque):
        return {_TAG: kind.__name__, "of": encoded(value)}
    if kind is dict:
        if _TAG not in value and all(type(key) is str for key in value):
            return {key: _encode(item, records) for key, item in value.items()}
        return {_TAG: "mapping", "of": [encoded(pair) for pair in value.items()]}
    if isinstance(value, np.ndarray):
        return _encode_array(value)
    if records.get(kind.__qualname__) is kind:
        names = _names(kind)
        values = {name: _encode(getattr(value, name), records) for name in names}
        return {_TAG: "record", "of": kind.__qualname__, "fields": values}
    raise _NotPlainError(f"it holds a {kind.__module__}.{kind.__qualname__}")


def _encode_array(value: np.ndarray[Any, Any]) -> Any:
    if value.dtype.name not in _ARRAYS:
        raise _NotPlainError(f"it holds an array of {value.dtype.name}")
    shape, flat = list(value.shape), value.ravel().tolist()
    return {_TAG: "array", "of": flat, "shape": shape, "dtype": value.dtype.name}


def _decode(data: Any, records: dict[str, type]) -> Any:
    if data is None or type(data) in (bool, int, float, str):
        return data
    if isinstance(data, list):
        return [_decode(item, records) for item in data]
    if not isinstance(data, dict):
        raise ValueError(f"a {type(data).__name__} is no plain data")
    if _TAG not in data:
        return {key: _decode(item, records) for key, item in data.items()}
    tag, of = data[_TAG], data.get("of")
    if tag == "record":
        return _decode_record(data, records)
    if tag == "array":
        return _decode_array(data)
    if not isinstance(of, list):
        raise ValueError(f"a {tag} without entries")
    if tag == "mapping":
        pairs = [_decode(pair, records) for pair in of]
        if any(not isinstance(pair, list) or len(pair) != 2 for pair in pairs):
            raise ValueError("a mapping is not made of pairs")
        return dict(pairs)
    if tag not in _MANY:
        raise ValueError(f"{tag!r} is nothing that a state holds")
    return _MANY[tag]([_decode(item, records) for item in of])


def _decode_record(data: dict[str, Any], records: dict[str, type]) -> Any:
    name, given = data.get("of"), data.get("fields")
    kind = records.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError(f"{name!r} is no record that the policy's module names")
    if not isinstance(given, dict) or set(given) != set(_names(kind)):
        raise ValueError(f"not the fields of a {name}")
    values = {key: _decode(item, records) for key, item in given.items()}
    _check_fields(kind, values)
    return make_record(kind, values)


def _decode_array(data: dict[str, Any]) -> Any:
    if data.get("dtype") not in _ARRAYS:
        raise ValueError(f"no array of {data.get('dtype')!r} is read")
    flat = from_plain(data.get("of"), list[bool | int | float], "array")
    shape = from_plain(data.get("shape"), list[int], "shape")
    try:
        return np.array(flat, dtype=data["dtype"]).reshape(shape)
    except OverflowError as error:
        raise ValueError(str(error)) from None


def _names(kind: type) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
    return names


def _check_fields(kind: type, values: dict[str, Any]) -> None:
    """Raises ValueError for a value of another type than its annotation says."""
    try:
        hints = get_type_hints(kind)
    except Exception:  # annotations of someone else's module may name what is not there
        return
    for name, value in values.items():
        if name in hints:
            check_type(value, hints[name], f"{kind.__name__}.{name}")
