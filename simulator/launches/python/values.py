"""What an expression of a script may be, beside plain values and `Unknown`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

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
