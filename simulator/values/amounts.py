"""Amounts that people write with a unit: ``16k`` tokens, ``5d``, ``$16,000``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
