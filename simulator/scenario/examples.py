"""The example scenarios: in ``rollcast/examples`` of a wheel, ``examples`` of a checkout."""

from __future__ import annotations

from pathlib import Path

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import nearest

_ROOT = Path(__file__).resolve().parents[2]
_FOLDERS = (_ROOT / "rollcast" / "examples", _ROOT / "examples")


def folder() -> Path:
    """The folder of the examples and their data. Raises ScenarioError if the installation lacks
    them."""
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
