"""Dotted names of what a launch calls, of which a pattern may give the last parts."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

T = TypeVar("T")


def is_called(name: str, pattern: str) -> bool:
    """Whether a dotted name, or its last parts, are of this pattern."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}")


def by_name(table: Mapping[str, T], name: str) -> T | None:
    """What the first pattern of a name has; None for a name of none."""
    return next((found for pattern, found in table.items() if is_called(name, pattern)), None)
