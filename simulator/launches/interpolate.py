"""Interpolations as OmegaConf has them: ``${a.b}``, ``${.c}``, ``${oc.env:X,1}``, ``${mul:2,3}``;
and plain arithmetic."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rollcast.simulator.launches.pieces import Text, plain, shown, why
from rollcast.simulator.launches.values import Leaf, Tree, Unknown, at, leaves, put
from rollcast.simulator.stacks.syntax.yaml_text import word

_DEEPEST, _MOST_STEPS, _LONGEST = 20, 20_000, 10_000
_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    **{"mul": operator.mul, "multiply": operator.mul, "add": operator.add, "sum": operator.add},
    **{"sub": operator.sub, "subtract": operator.sub, "minus": operator.sub},
    **{"div": operator.truediv},
    **{"divide": operator.truediv, "int_div": operator.floordiv, "floordiv": operator.floordiv},
    **{"max": max, "min": min, "pow": operator.pow, "mod": operator.mod},
}
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    **{ast.USub: operator.neg, ast.UAdd: operator.pos},
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{"int": int, "float": float, "max": max, "min": min, "round": round, "abs": abs}
}


class _UndecidedError(Exception):
    """Why there is no value."""


def resolve(tree: Tree, variables: Mapping[str, Text]) -> Tree:
    """The tree with a value in the place of each interpolation, `Unknown` where it has none.
    variables: of the environment."""
    resolver = _Resolver(tree, variables)
    result: Tree = {}
    for dotted, leaf in leaves_of(tree):
        put(result, dotted, resolver.leaf(leaf, dotted[:-1], 0))
    return result


def leaves_of(tree: Tree, above: tuple[str, ...] = ()) -> list[tuple[list[str], Leaf]]:
    """Every leaf with its path."""
    found: list[tuple[list[str], Leaf]] = []
    for key, item in tree.items():
        if isinstance(item, dict):
            found.extend(leaves_of(item, (*above, key)))
        else:
            found.append(([*above, key], item))
    return found


def arithmetic(text: str) -> float | int:
    """The value of an expression of plain numbers. Raises ValueError for any other."""
    if len(text) > 500:
        raise ValueError("too long")
    try:
        number: float | int = _number(ast.parse(text.strip(), mode="eval").body, 0)
        return number
    except (SyntaxError, ArithmeticError, RecursionError, MemoryError, TypeError) as error:
        raise ValueError(str(error)) from None


def _number(node: ast.expr, depth: int) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _number(node.left, depth + 1), _number(node.right, depth + 1)
        return bounded(_OPERATORS[type(node.op)](left, right))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        left, right = _number(node.left, depth + 1), _number(node.right, depth + 1)
        if abs(right) > 64 or abs(left) > 10**6:
            raise ValueError("a power too large")
        return bounded(left**right)
    if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_number(node.operand, depth + 1))
    called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.Call) and called in _FUNCTIONS:
        return _FUNCTIONS[called](*(_number(item, depth + 1) for item in node.args))
    raise ValueError("no plain arithmetic")


def bounded(number: Any) -> Any:
    """A number that is not beyond all use. Raises ValueError, also for a complex one."""
    if not isinstance(number, int | float) or abs(number) > 1e30:
        raise ValueError("a number too large")
    return number


class _Resolver:
    def __init__(self, tree: Tree, variables: Mapping[str, Text]) -> None:
        self._tree, self._variables, self._steps = tree, variables, 0
        self._known: dict[tuple[str, ...], Any] = {}

    def leaf(self, leaf: Leaf, above: list[str], depth: int) -> Leaf:
        value = leaf.value
        if value == "???":  # OmegaConf's mark of a value that must be given
            return replace(leaf, value=Unknown(value, "it must be given"))
        if isinstance(value, str) and "${" in value:
            try:
                return replace(leaf, value=self._text(value, above, depth))
            except _UndecidedError as error:
                return replace(leaf, value=Unknown(value, str(error)))
        if isinstance(value, list):
            return replace(leaf, value=[self._item(item, above, depth) for item in value])
        return leaf

    def _item(self, value: Any, above: list[str], depth: int) -> Any:
        if isinstance(value, str) and "${" in value:
            try:
                return self._text(value, above, depth)
            except _UndecidedError:
                return value
        return value

    def _text(self, text: str, above: list[str], depth: int) -> Any:
        """A text with its interpolations replaced; the value itself where it is one alone."""
        self._steps += 1
        if depth > _DEEPEST or self._steps > _MOST_STEPS or len(text) > _LONGEST:
            raise _UndecidedError("its interpolations have no end")
        parts: list[Any] = []
        at_ = 0
        while True:
            start = text.find("${", at_)
            if start < 0:
                break
            end = _closing(text, start + 2)
            if end < 0:
                raise _UndecidedError("${ has no }")
            if start > at_:
                parts.append(text[at_:start])
            parts.append(self._inside(text[start + 2 : end], above, depth + 1))
            at_ = end + 1
        if at_ < len(text):
            parts.append(text[at_:])
        if len(parts) == 1:
            return parts[0]
        joined = "".join("null" if part is None else str(part) for part in parts)
        if len(joined) > _LONGEST:
            raise _UndecidedError("its interpolations have no end")
        return joined

    def _inside(self, text: str, above: list[str], depth: int) -> Any:
        name, colon, rest = text.partition(":")
        if colon and "$" not in name:
            return self._called(name.strip(), rest, above, depth)
        key = str(self._text(text, above, depth)) if "${" in text else text
        return self._selected(key.strip(), above, depth)

    def _selected(self, key: str, above: list[str], depth: int) -> Any:
        path = key.replace("[", ".").replace("]", "")
        dots = len(path) - len(path.lstrip("."))
        base = above[: len(above) - (dots - 1)] if dots else []
        full = [*base, *(part for part in path.lstrip(".").split(".") if part)]
        found = at(self._tree, full)
        if found is None or not full:
            raise _UndecidedError(f"{'.'.join(full) or key} is not in what was read")
        if isinstance(found, dict):
            return {dotted: leaf.value for dotted, leaf in leaves(found)}
        if depth > _DEEPEST:
            raise _UndecidedError("its interpolations have no end")
        if tuple(full) not in self._known:
            self._known[tuple(full)] = self.leaf(found, full[:-1], depth).value
        value = self._known[tuple(full)]
        if isinstance(value, Unknown):
            raise _UndecidedError(value.why)
        return value

    def _called(self, name: str, rest: str, above: list[str], depth: int) -> Any:
        arguments = _arguments(rest)
        if name == "oc.env":
            return self._environment(arguments, above, depth)
        if name in ("oc.select", "oc.decode"):
            try:
                if name == "oc.decode":
                    return word(str(self._text(arguments[0], above, depth)))
                return self._selected(arguments[0], above, depth)
            except _UndecidedError:
                if len(arguments) < 2:
                    raise
                return self._value(arguments[1], above, depth)
        if name == "eval":
            expression = str(self._text(rest.strip().strip("'\""), above, depth))
            try:
                return arithmetic(expression)
            except ValueError:
                raise _UndecidedError(f"{expression[:60]} is no plain arithmetic") from None
        values = [self._value(argument, above, depth) for argument in arguments]
        if name in _NUMBERS and len(values) >= 2:
            if not all(type(value) in (int, float) for value in values):
                raise _UndecidedError(f"{name} is not of numbers alone")
            result = values[0]
            try:
                for number in values[1:]:
                    if name == "pow" and abs(number) > 64:
                        raise ValueError
                    result = bounded(_NUMBERS[name](result, number))
            except (ArithmeticError, ValueError):
                raise _UndecidedError(f"{name} has no value there") from None
            whole = isinstance(result, float) and result == int(result)
            return int(result) if whole and name in ("div", "divide") else result
        if name == "not" and len(values) == 1 and isinstance(values[0], bool):
            return not values[0]
        if name == "int" and len(values) == 1 and type(values[0]) in (int, float):
            return int(values[0])
        raise _UndecidedError(f"the resolver {name} is not known")

    def _environment(self, arguments: list[str], above: list[str], depth: int) -> Any:
        held = self._variables.get(arguments[0].strip("'\"") if arguments else "")
        if held is not None and plain(held) is not None:
            return word(shown(held)) if len(shown(held)) < 1_000 else shown(held)
        if held is None and len(arguments) > 1:
            return self._value(arguments[1], above, depth)
        if held is not None:
            raise _UndecidedError(why(held))
        raise _UndecidedError(
            f"{arguments[0] if arguments else 'it'} has no value in what was read"
        )

    def _value(self, text: str, above: list[str], depth: int) -> Any:
        text = text.strip()
        if "${" in text:
            value = self._text(text, above, depth)
            return word(value) if isinstance(value, str) else value
        if text[:1] in ("'", '"') and text[-1:] == text[:1]:
            return text[1:-1]
        return word(text)


def _closing(text: str, at_: int) -> int:
    """Where the bracket that was opened before closes; -1 if it does not."""
    depth = 1
    while at_ < len(text):
        depth += {"{": 1, "}": -1}.get(text[at_], 0)
        if depth == 0:
            return at_
        at_ += 1
    return -1


def _arguments(text: str) -> list[str]:
    """A resolver's arguments."""
    found, depth, now = list[str](), 0, ""
    for letter in text:
        depth += {"{": 1, "[": 1, "(": 1, "}": -1, "]": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(now.strip())
            now = ""
        else:
            now += letter
    return [*found, now.strip()]
