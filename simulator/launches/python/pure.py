"""Operators, functions and methods of Python's whose result follows from plain values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

from rollcast.simulator.launches.interpolate import bounded
from rollcast.simulator.launches.values import Unknown

MOST_LENGTH = 10_000
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
}
_COMPARED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le},
    **{ast.Gt: operator.gt, ast.GtE: operator.ge},
    **{ast.Is: operator.is_, ast.IsNot: operator.is_not},
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"int": int, "float": float, "str": str, "bool": bool, "max": max, "min": min},
    **{
        "len": len,
        "round": round,
        "abs": abs,
        "list": list,
        "os.path.expanduser": str,
        "os.path.abspath": str,
    },
}
_TEXTS = {
    *("lower", "upper", "title", "strip", "lstrip", "rstrip", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "replace", "split", "rsplit", "partition", "rpartition"),
    *("isdigit", "isdecimal", "count", "find"),
}


def method(held: Any, name: str, arguments: list[Any]) -> Any:
    """What a method of a text or a mapping gives. Raises ValueError for one that is not known."""
    if isinstance(held, dict) and name in ("get", "keys", "values", "items", "copy"):
        if name == "get" and 1 <= len(arguments) <= 2:
            return held.get(*arguments)
        if name == "copy":
            return dict(held)
        found = getattr(held, name)()
        return [list(one) if isinstance(one, tuple) else one for one in found]
    plain = all(isinstance(one, str | int | list) and one is not None for one in arguments)
    if not isinstance(held, str) or name not in _TEXTS or not plain or len(held) > MOST_LENGTH:
        raise ValueError
    result = getattr(str(held), name)(*(_tuples(one) for one in arguments))
    if isinstance(result, str) and len(result) > MOST_LENGTH:
        raise ValueError
    return list(result) if isinstance(result, tuple | list) else result


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def computed(node: ast.expr, values: list[Any]) -> Any:
    """An operator on known values. Raises TypeError, ValueError, ArithmeticError."""
    if isinstance(node, ast.BinOp):
        left, right = values
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
            if len(left) + len(right) > MOST_LENGTH:
                raise ValueError
            return left + right
        if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Div):
            return f"{left.rstrip('/')}/{right}"  # of paths
        if isinstance(left, list) and isinstance(right, list) and isinstance(node.op, ast.Add):
            if len(left) + len(right) > MOST_LENGTH:
                raise ValueError
            return [*left, *right]
        if not all(isinstance(one, int | float) for one in values):
            raise TypeError
        if isinstance(node.op, ast.Pow):
            if abs(right) > 64 or abs(left) > 10**6:
                raise ValueError
            return bounded(left**right)
        if type(node.op) not in _OPERATORS:
            raise TypeError
        return bounded(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            return not values[0]
        if not isinstance(values[0], int | float):
            raise TypeError
        return -values[0] if isinstance(node.op, ast.USub) else values[0]
    if isinstance(node, ast.BoolOp):
        result = values[0]
        for value in values[1:]:
            if bool(result) != isinstance(node.op, ast.And):
                break
            result = value
        return result
    assert isinstance(node, ast.Compare)
    for op, left, right in zip(node.ops, values, values[1:], strict=False):
        if isinstance(op, ast.In | ast.NotIn):
            holds = (left in right) == isinstance(op, ast.In)
        else:
            holds = bool(_COMPARED[type(op)](left, right))
        if not holds:
            return False
    return True


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of names; of anything else its last parts."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts))


def spelt(value: Any) -> str:
    """A value as messages call it."""
    return value.text if isinstance(value, Unknown) else str(value)[:100]
