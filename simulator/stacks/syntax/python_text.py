"""Python's way of printing mappings, read without running anything."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rollcast.simulator.stacks.syntax.scalars import VALUE, number

_PAIR = re.compile(
    rf"""(?P<q>['"])(?P<key>[^'"\n]{{1,300}})(?P=q)\s*:\s*
                        (?P<t>['"]?)(?P<value>{VALUE})(?P=t)\s*
                        (?=[,}}\n]|$)""",
    re.VERBOSE,
)
MOST_TEXT = 4_000_000


def flat(text: str) -> tuple[dict[str, float], bool]:
    """The numbers of a printed mapping of one level, by key, and whether it is whole (its last
    bracket is there). Values that are no numbers are left out; numbers in quotes count."""
    values: dict[str, float] = {}
    for pair in _PAIR.finditer(text[:MOST_TEXT]):
        value = number(pair["value"])
        if value is not None:
            values[pair["key"]] = value
    return values, text.rstrip().endswith("}")


def opens(text: str) -> int:
    """Brackets that a line opens, less those that it closes; those within quotes do not count."""
    depth, quote, escaped = 0, "", False
    for letter in text:
        if escaped:
            escaped = False
        elif quote:
            if letter == "\\":
                escaped = True
            elif letter == quote:
                quote = ""
        elif letter in "'\"":
            quote = letter
        elif letter in "{[(":
            depth += 1
        elif letter in ")]}":
            depth -= 1
    return depth


def nested(lines: Sequence[str]) -> list[tuple[str, Any, int]]:
    """The values of a printed mapping of mappings: dotted key, value, and the line from 0.

    Empty for text that is no mapping. Objects are taken for their first argument, as in
    ``PosixPath('/a')``.
    """
    text = "\n".join(lines)
    if len(text) > MOST_TEXT:
        return []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if not isinstance(tree, ast.Dict):
        return []
    return list(_walk(tree, "", 0))


def _walk(node: ast.Dict, prefix: str, depth: int) -> Iterator[tuple[str, Any, int]]:
    for key, value in zip(node.keys, node.values, strict=True):
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            continue
        dotted = f"{prefix}.{key.value}" if prefix else key.value
        if isinstance(value, ast.Dict) and depth < 50:
            yield from _walk(value, dotted, depth + 1)
            continue
        known, plain = _value(value)
        if known:
            yield dotted, plain, value.lineno - 1


def _value(node: ast.expr) -> tuple[bool, Any]:
    if isinstance(node, ast.Call) and node.args:
        return _value(node.args[0])
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return False, None
