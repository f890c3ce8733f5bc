"""slime's samples as JSON holds them, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollcast.simulator.errors import RunError

_ARRAY = "rollcast.array"


def plain_sample(sample: Any) -> dict[str, Any]:
    """A sample's ``to_dict`` with arrays spelt out. Raises RunError for what JSON does not hold."""
    plain: dict[str, Any] = _plain(sample.to_dict())
    return plain


def from_plain_sample(kind: Any, data: Mapping[str, Any]) -> Any:
    """The sample of `plain_sample`. kind: its class. Raises KeyError, TypeError or ValueError."""
    return kind.from_dict(_made(data))


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        numbers = all(type(item) in (int, float) for item in value)
        return list(value) if numbers else [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return {_ARRAY: value.ravel().tolist(), "shape": value.shape, "dtype": value.dtype.name}
    if isinstance(value, np.generic):
        return value.item()
    raise RunError(
        f"a sample holds a {type(value).__name__}, which cannot be saved with the checkpoint; "
        "this export is for prompts of text"
    )


def _made(value: Any) -> Any:
    if isinstance(value, Mapping):
        if _ARRAY in value:
            return np.array(value[_ARRAY], dtype=value["dtype"]).reshape(value["shape"])
        return {key: _made(item) for key, item in value.items()}
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        return [_made(item) for item in value]
    return value
