"""Where a figure of a preset comes from, and the reader of the presets' files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, TypeVar

from rollcast.simulator.values.yaml_file import read_yaml

Kind = Literal["measured", "fitted", "datasheet", "published", "assumed"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a figure comes from: its kind, and the source in words."""

    kind: Kind
    source: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.source}"


@cache
def read_presets(file: str) -> dict[str, Any]:
    """The content of a file of this folder."""
    content: dict[str, Any] = read_yaml(Path(__file__).parent / file)
    return content


def preset_of(kind: Callable[..., T], entry: Mapping[str, Any]) -> T:
    """A preset as a dataclass: ``kind`` and ``source`` of its ``entry`` are its ``provenance``, the
    other keys are fields."""
    figures = {key: value for key, value in entry.items() if key not in ("kind", "source")}
    return kind(**figures, provenance=Provenance(entry["kind"], entry["source"]))


@cache
def figures(part: str) -> SimpleNamespace:
    """The values of a part of ``figures.yaml``, by name."""
    entries = read_presets("figures.yaml")[part]
    return SimpleNamespace(**{name: entry["value"] for name, entry in entries.items()})


@cache
def sources(part: str) -> Mapping[str, Provenance]:
    """Where those values come from."""
    entries = read_presets("figures.yaml")[part]
    return {name: Provenance(entry["kind"], entry["source"]) for name, entry in entries.items()}
