"""What a script of Python was found to do, and what is known beforehand of what it may call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rollcast.simulator.launches.pieces import Text
from rollcast.simulator.launches.python.values import Made
from rollcast.simulator.stacks.settings import Place


@dataclass(frozen=True, slots=True)
class Command:
    """A command that a script runs. maybe: why it may not be reached."""

    words: tuple[Text, ...]
    place: Place
    maybe: str = ""


@dataclass
class Script:
    """What a script was found to do. calls: in the order of reading. imports: dotted names. hydra:
    folder and name of the configuration that it takes by itself. commands: that it runs. notes:
    sentences for the user."""

    calls: list[Made] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)
    hydra: tuple[str, str] | None = None
    commands: list[Command] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Shipped:
    """What stacks give to scripts that launch them, by patterns of dotted names. starts: functions
    that start the stack's program, with the names of their arguments for the script (``script``,
    ``default`` where it is not given) and for its own arguments (``arguments``). classes: the
    fields of classes that scripts inherit from, with their defaults. constants: of its modules."""

    starts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    classes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)

    def start(self, name: str) -> Mapping[str, str] | None:
        """How a function starts a stack, None where it does not."""
        found: Mapping[str, str] | None = _matching(self.starts, name)
        return found

    def fields(self, name: str) -> Mapping[str, Any]:
        """The fields of a class, none for another's."""
        return _matching(self.classes, name) or {}

    def constant(self, name: str) -> Any:
        """A constant of a stack's modules, None for another's."""
        return _matching(self.constants, name)


def _matching(table: Mapping[str, Any], name: str) -> Any:
    for pattern, found in table.items():
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"*.{pattern}"):
            return found
    return None
