"""The example scenarios that come with the package, wherever it is installed from.

A wheel holds them in ``rollcast/examples``; a checkout, and an editable install of one, in
``examples`` beside the packages.
"""

from __future__ import annotations

from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import nearest

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = (_ROOT / "rollcast" / "examples", _ROOT / "examples")


def folder() -> Path:
    """Where the examples lie, and the data files that they name by relative paths.

    Raises ScenarioError where the installation lacks them.
    """
    for path in _FOLDERS:
        if (path / "april.yaml").is_file():
            return path
    raise ScenarioError("examples", f"are missing from this installation ({_FOLDERS[0]})")


def names() -> list[str]:
    """The examples' names, in order of the alphabet."""
    return sorted(file.stem for file in folder().glob("*.yaml"))


def text(name: str) -> str:
    """The example as it is written, comments included. Raises ScenarioError for a name that is none
    of `names`, with the nearest one."""
    known = names()
    if name not in known:
        raise ScenarioError("example", f"there is no {name!r}; {nearest(name, known)}")
    return (folder() / f"{name}.yaml").read_text(encoding="utf-8")
