"""Values of a dumped record, checked as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast


class RecordError(ValueError):
    """A record that does not have the form of its kind; the message is the end of a sentence."""


def digest(text: object) -> int:
    """A 56-bit hash of a text, equal in every process."""
    return _digest(text if isinstance(text, bytes) else str(text))


@lru_cache(maxsize=4)  # the rollouts of a group follow each other
def _digest(text: bytes | str) -> int:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")


def length(value: object) -> int:
    """Number of entries of a list or tensor. Raises RecordError."""
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        raise RecordError(f"a list was expected, not {type(value).__name__}") from None


def total(value: object) -> int:
    """Number of set flags in a list or tensor. Raises RecordError."""
    try:
        count = int(sum(cast(Iterable[Any], value)))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise RecordError("a list of numbers was expected") from None
    if not 0 <= count <= length(value):
        raise RecordError("a list of flags was expected")
    return count


def whole(value: object, name: str) -> int:
    """An integer. Raises RecordError, which calls the value ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise RecordError(f"{name} is no number")
    if not -1e15 < value < 1e15 or value != int(value):
        raise RecordError(f"{name} is no whole number")
    return int(value)


def tokens(value: object, name: str) -> int:
    """An integer of at least 0. Raises RecordError."""
    count = whole(value, name)
    if count < 0:
        raise RecordError(f"{name} is negative")
    return count


def real(value: object) -> float | None:
    """A finite number, or the only entry of a list; None for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e15 else None


def number_in(name: str) -> int | None:
    """The last number in a file's name, such as 12 of ``train_data_step12.jsonl``."""
    digits = ""
    for letter in reversed(name.partition(".")[0]):
        if letter.isdecimal() and letter.isascii():
            digits = letter + digits
        elif digits:
            break
    return int(digits) if 0 < len(digits) < 12 else None
