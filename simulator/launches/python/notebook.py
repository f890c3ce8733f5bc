"""Notebooks: the code of Jupyter's as a script of Python's, and what is a cell of marimo's."""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.python.pure import dotted
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, parse

SUFFIX = ".ipynb"
SCRIPTS = (".py", SUFFIX)
_OTHERS = re.compile(r"\s*%%(?!capture|time)\w")
"""Begins a cell in another language, or of a file."""
_SHELL = re.compile(r"^([ \t]*)[!%](?:[^\n]*\\\n)*[^\n]*$", re.MULTILINE)


def code_of(text: str, name: str) -> str:
    """The cells with code one after another, each line where the notebook's file has it if that
    has one line for each, as Jupyter writes them. Raises ScenarioError for what is no notebook."""
    try:
        notebook = parse(text)
    except NotJsonError as error:
        raise ScenarioError(name, f"is no notebook: it is {error}") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        raise ScenarioError(name, "is no notebook: it has no cells")
    written: dict[str, list[int]] = {}
    for number, line in enumerate(text.split("\n")):
        written.setdefault(line.strip().removesuffix(","), []).append(number)
    found: list[str] = []
    for line in (line for cell in cells for line in _lines(cell)):
        for spelt in (json.dumps(line), json.dumps(line, ensure_ascii=False)):
            numbers = written.get(spelt, [])
            at = bisect_left(numbers, len(found))
            found.extend([""] * (numbers[at] - len(found) if at < len(numbers) else 0))
        found.append(line.rstrip("\r\n"))
    return "\n".join([*found, ""])


def _lines(cell: Any) -> Sequence[str]:
    """Of a cell with Python's code."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return ()
    source = cell.get("source")
    text = "".join(map(str, source)) if isinstance(source, list) else str(source or "")
    return text.splitlines(keepends=True) if not _OTHERS.match(text) and _is_python(text) else ()


def _is_python(text: str) -> bool:
    """Whether this Python can read a cell."""
    try:
        ast.parse(without_shell(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def without_shell(text: str) -> str:
    """A notebook's code with ``pass`` for its lines of the shell, as long."""
    return _SHELL.sub(lambda line: f"{line[1]}pass" + "\n" * line[0].count("\n"), text)


def shell_of(text: str) -> list[tuple[str, int]]:
    """The lines of a notebook's code that a shell runs (``!python train.py``), each with its
    number; a variable of Python's in braces is one of the shell's."""
    return [
        (re.sub(r"(?<!\$)\{([A-Za-z_]\w*)\}", r"${\1}", line[0].lstrip()[1:]), number)
        for line in _SHELL.finditer(text)
        if line[0].lstrip().startswith("!") and (number := text.count("\n", 0, line.start()) + 1)
    ]


def is_cell(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is a cell of a marimo notebook, whose variables are the notebook's."""
    marks = (one.func if isinstance(one, ast.Call) else one for one in node.decorator_list)
    return any(dotted(mark) == "app.cell" for mark in marks)
