"""A run's settings, by names of our own: keys of a scenario where there is one, else ``run.``..."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rollcast.simulator.values.yaml_file import read_yaml


@cache
def meanings() -> Mapping[str, str]:
    """What each of our keys means."""
    known: Mapping[str, str] = read_yaml(Path(__file__).with_name("meanings.yaml"))
    return known


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; of a binary file, a record, and 0 for the file as a whole."""

    file: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}" if self.line else self.file


@dataclass(frozen=True, slots=True)
class Setting:
    """A logged setting. key: of `meanings`. theirs: the stack's key. implied: follows from it.
    unsaid: one of the stack's defaults, or follows from one. assumed: no default either; theirs
    says why then."""

    key: str
    value: Any
    theirs: str
    place: Place
    implied: bool = False
    unsaid: bool = False
    assumed: bool = False

    @property
    def source(self) -> str:
        """Their key and where it stands."""
        return f"assumed: {self.theirs}" if self.assumed else f"{self.theirs} in {self.place}"

    def implies(self, key: str, value: Any) -> Setting:
        """Another setting, of ours, that follows from this one."""
        return Setting(key, value, self.theirs, self.place, True, self.unsaid)


Settings = Mapping[str, Setting]
"""By our key."""


def value(settings: Settings, key: str) -> Any:
    """What a setting says; None where the log does not give it."""
    return settings[key].value if key in settings else None


def whole(settings: Settings, key: str) -> int | None:
    """A setting as a positive whole number; None for anything else."""
    return whole_number(value(settings, key))


def whole_number(number: Any) -> int | None:
    """A positive whole number; None for anything else."""
    if isinstance(number, bool) or not isinstance(number, int | float) or number != number:
        return None
    return int(number) if 0 < number < 1e12 and number == int(number) else None
