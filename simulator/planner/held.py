"""Keys of caches for objects that cannot be hashed."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Held:
    """A key, and what is computed from: equal keys stand for equal results."""

    key: Hashable
    held: Any = field(compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Same:
    """Equal to another of the same object; keeps it, so that no other takes its place."""

    held: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)
