"""What a script of Python was found to do, and what is known beforehand of what it may call."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.launches.names import by_name
from rollcast.simulator.launches.pieces import Text, shown
from rollcast.simulator.launches.values import Unknown
from rollcast.simulator.stacks.settings import Place


@dataclass(eq=False)
class Made:
    """What a call returns. name: of what is called, dotted. given: its arguments, by position or
    name, each with its place. attributes: set on it afterwards. of: the script's class, if it is
    one."""

    name: str
    place: Place
    given: dict[int | str, tuple[Any, Place]] = field(default_factory=dict)
    attributes: dict[str, tuple[Any, Place]] = field(default_factory=dict)
    of: Defined | None = None

    def argument(self, key: int | str) -> Any:
        """An argument's value, None where it is not given."""
        return self.given[key][0] if key in self.given else None


@dataclass(eq=False)
class Defined:
    """A function or a class of the script. fields: of a class, with their defaults. methods: its
    functions, with those of its bases."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    fields: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Defined] = field(default_factory=dict)

    @property
    def is_property(self) -> bool:
        """Whether it is a function that an attribute stands for."""
        names = [one.id for one in self.node.decorator_list if isinstance(one, ast.Name)]
        return bool({"property", "cached_property"} & set(names))


@dataclass(eq=False)
class Parsed:
    """Arguments of the command line: values by their names. open: whether there may be others. of:
    the class whose fields they are, if it is one."""

    values: dict[str, Any]
    open: bool = False
    of: Defined | None = None


class Written(str):
    """A text that may be of a command, all of it known. pieces: its parts, each with the line that
    it was written in."""

    pieces: Text

    def __new__(cls, pieces: Text) -> Written:
        """The text of its pieces."""
        made = super().__new__(cls, shown(pieces))
        made.pieces = pieces
        return made


@dataclass(frozen=True, slots=True)
class Partly(Unknown):
    """A text that may be of a command, of which parts are not known."""

    pieces: Text


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
        return by_name(self.starts, name)

    def fields(self, name: str) -> Mapping[str, Any]:
        """The fields of a class, none for another's."""
        return by_name(self.classes, name) or {}

    def constant(self, name: str) -> Any:
        """A constant of a stack's modules, None for another's."""
        return by_name(self.constants, name)
