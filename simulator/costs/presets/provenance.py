"""Where a figure of a preset comes from, and the reader of the presets' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rollcast.simulator.stacks.yaml_file import read_yaml

Kind = Literal["measured", "fitted", "datasheet", "assumed"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a figure comes from: its kind, and the source in words."""

    kind: Kind
    source: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.source}"


def read_presets(file: str) -> dict[str, Any]:
    """The content of a file of this folder."""
    content: dict[str, Any] = read_yaml(Path(__file__).parent / file)
    return content


def preset_of(kind: Callable[..., T], entry: Mapping[str, Any]) -> T:
    """A preset as a dataclass: the keys of its ``entry`` are fields, but for ``kind`` and
    ``source``, which are its ``provenance``."""
    figures = {key: value for key, value in entry.items() if key not in ("kind", "source")}
    return kind(**figures, provenance=Provenance(entry["kind"], entry["source"]))
