"""What an expression of a script may be, beside plain values and `Unknown`."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.stacks.settings import Place


@dataclass(eq=False)
class Made:
    """What a call returns. name: of what is called, dotted. given: its arguments, by position or
    name, each with its place. attributes: set on it afterwards."""

    name: str
    place: Place
    given: dict[int | str, tuple[Any, Place]] = field(default_factory=dict)
    attributes: dict[str, tuple[Any, Place]] = field(default_factory=dict)

    def argument(self, key: int | str) -> Any:
        """An argument's value, None where it is not given."""
        return self.given[key][0] if key in self.given else None


@dataclass(eq=False)
class Defined:
    """A function or a class of the script. fields: of a class, with their defaults."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Parsed:
    """Arguments of the command line: values by their names. open: whether there may be others."""

    values: dict[str, Any]
    open: bool = False
