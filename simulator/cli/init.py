"""``rollcast init``: an example scenario to start from."""

from __future__ import annotations

import sys
from pathlib import Path

from rollcast.simulator.cli.console import console
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import nearest

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = (_ROOT / "rollcast" / "examples", _ROOT / "examples")


def folder() -> Path:
    """The folder of the examples and their data. Raises ScenarioError where it is missing."""
    for path in _FOLDERS:
        if (path / "april.yaml").is_file():
            return path
    raise ScenarioError("examples", f"are missing from this installation ({_FOLDERS[0]})")


def names() -> list[str]:
    """The examples' names, in order of the alphabet."""
    return sorted(file.stem for file in folder().glob("*.yaml"))


def text(name: str) -> str:
    """An example's text. Raises ScenarioError for an unknown name, with the nearest one."""
    known = names()
    if name not in known:
        raise ScenarioError("example", f"there is no {name!r}; {nearest(name, known)}")
    return (folder() / f"{name}.yaml").read_text(encoding="utf-8")


def show(name: str | None) -> None:
    """Prints an example, or the list of examples. Raises ScenarioError for an unknown name."""
    if name is not None:
        sys.stdout.write(text(name))
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for example in names():
        grid.add_row(Text(example, style="bold"), Text(_about(text(example))))
    console().print(grid)
    print("rollcast init NAME > scenario.yaml", file=sys.stderr)


def _about(text: str) -> str:
    """The first sentence of an example's comment."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    return " ".join(comment).split(". ")[0].rstrip(".")
