"""Checks of policy parameters. Each returns the value in its proper type, or raises ScenarioError
naming the parameter's key in a scenario, ``policy.<policy>.<parameter>``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from simulator.checks import flag, nearest
from simulator.errors import ScenarioError

MAX_MULTIPLE = 1000.0


def _wrong(field: str, wanted: str, value: object) -> ScenarioError:
    return ScenarioError(field, f"must be {wanted}, got {value!r}")


def between(value: object, field: str, low: float, high: float, *, above: bool = False) -> float:
    """A number from ``low`` (more than it, with ``above``) to ``high``. Strings such as ``1e-2``,
    which YAML 1.1 does not read as numbers, are accepted."""
    wanted = f"a number {'above' if above else 'from'} {low:g} {'up ' if above else ''}to {high:g}"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _wrong(field, wanted, value)
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise _wrong(field, wanted, value) from None
    if not low <= result <= high or (above and result == low):  # a NaN fails as well
        raise _wrong(field, wanted, value)
    return result


def multiple(value: object, field: str) -> float:
    """How many times what the batch needs is launched: at least 1."""
    return between(value, field, 1, MAX_MULTIPLE)


def whole(value: object, field: str, low: int, high: float = math.inf) -> int:
    """A whole number from ``low`` to ``high``."""
    bounds = f"of {low} or more" if high == math.inf else f"from {low} to {high}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _wrong(field, f"a whole number {bounds}", value)
    return value


def seed(value: object, field: str) -> int:
    """A seed for random draws."""
    return whole(value, field, 0, 2**64 - 1)


def choice(value: object, field: str, valid: Iterable[str]) -> Any:
    """One of the ``valid`` names."""
    names = list(valid)
    if not isinstance(value, str) or value not in names:
        raise _wrong(field, f"one of {', '.join(names)} ({nearest(str(value), names)})", value)
    return value


__all__ = ["MAX_MULTIPLE", "between", "choice", "flag", "multiple", "seed", "whole"]
