"""Checks that user input passes, with errors that name the key and the nearest valid name."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from simulator.errors import ScenarioError
from simulator.options import short


def join(field: str, key: str) -> str:
    """The dotted name of ``key`` inside ``field``."""
    return f"{field}.{key}" if field else key


def number(value: object, field: str, *, minimum: float = 0.0, above: bool = False) -> float:
    """``value`` as a finite float of at least ``minimum`` (more than it, with ``above``).

    Strings such as ``1e9``, which YAML 1.1 does not read as numbers, are accepted.
    Raises ScenarioError naming ``field`` otherwise.
    """
    bound = f"{'more than' if above else 'at least'} {minimum:g}"
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise ScenarioError(field, f"{short(value)} is not a number; give a number {bound}")
    try:
        result = float(value)
    except (ValueError, OverflowError):
        raise ScenarioError(
            field, f"{short(value)} is not a number; give a number {bound}"
        ) from None
    if not math.isfinite(result) or result < minimum or (above and result == minimum):
        raise ScenarioError(field, f"{short(value)} is out of range; give a finite number {bound}")
    return result


def whole(value: object, field: str, *, minimum: int = 0) -> int:
    """``value`` as an int of at least ``minimum``; raises ScenarioError naming ``field``."""
    result = number(value, field, minimum=minimum)
    if result != int(result):
        raise ScenarioError(
            field, f"{short(value)} is not a whole number; give one of {minimum} or more"
        )
    return int(result)


def flag(value: object, field: str) -> bool:
    """``value`` as a bool; raises ScenarioError naming ``field``."""
    if not isinstance(value, bool):
        raise ScenarioError(field, f"{value!r} is not true or false")
    return value


def nearest(name: str, valid: Iterable[str]) -> str:
    """A phrase that offers the valid names nearest to ``name``, or lists all of them."""
    names = sorted(set(valid))
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"valid: {', '.join(names)}"


def known_keys(given: Mapping[Any, Any], valid: Iterable[str], field: str) -> None:
    """Raises ScenarioError for the first key of ``given`` that is not among ``valid``."""
    names = list(valid)
    for key in given:
        if key not in names:
            raise ScenarioError(join(field, str(key)), f"unknown key; {nearest(str(key), names)}")
