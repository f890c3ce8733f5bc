"""What functions, classes and objects of a module keep from before a run: clocks and locks as
default arguments, in closures and as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from rollcast.simulator.virtual.report import is_stdlib

_known: dict[str, tuple[int, int, list[FunctionType], list[Any]]] = {}


def keepers(names: dict[str, Any]) -> tuple[list[FunctionType], list[Any]]:
    """Of the module with these names: its functions and methods that keep something of C; its
    classes, and objects of these. Not of Python's own modules, which look clocks up."""
    module = str(names.get("__name__"))
    known = _known.get(module)
    if known is None or known[:2] != (id(names), len(names)):
        known = _known[module] = (id(names), len(names), *_keepers_of(module, names))
    return known[2], known[3]


def _keepers_of(module: str, names: dict[str, Any]) -> tuple[list[FunctionType], list[Any]]:
    """Functions of a module and methods of its classes that keep something of C; its classes, and
    objects of these."""
    file = names.get("__file__")
    if not isinstance(file, str) or not file.endswith(".py") or is_stdlib(file):
        return [], []
    functions, owners = [*names.values()], []
    for owner in names.values():
        kind = owner if type(owner) is type else type(owner)
        if type(kind) is type and kind.__module__ == module and (own := own_of(owner)) is not None:
            owners.append(owner)
            if owner is kind:
                functions += own.values()
    return [
        function
        for function in functions
        if type(function) is FunctionType
        and function.__module__ == module
        and any(type(value) in (BuiltinFunctionType, type) for value in _kept(function))
    ], owners


def own_of(owner: Any) -> Mapping[str, Any] | None:
    """The attributes of a class or an object, of which nothing is run: some warn at any access.
    None where it has none."""
    if type(owner) is type:
        return vars(owner)
    try:
        own = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return own if type(own) is dict else None


def _kept(function: FunctionType) -> list[Any]:
    """What a function keeps from before it is called."""
    cells = [content_of(cell) for cell in function.__closure__ or ()]
    return [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *cells]


def content_of(cell: Any) -> Any:
    """What a cell of a closure holds; None where it holds nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None
