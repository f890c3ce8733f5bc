"""Presets of rollouts with turns, each figure with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rollcast.simulator.values.yaml_file import read_yaml

TURN_PRESETS_FILE = Path(__file__).parent / "presets" / "turns.yaml"


@dataclass(frozen=True, slots=True)
class TurnPreset:
    """A named kind of environment.

    turns: as ``workload.turns`` writes them; lengths: of a turn's response, as ``workload.lengths``
    does; turn_s: as ``environment.turn_s`` does. figures: of each figure where it comes from: its
    kind (``published``, or ``assumed``) and its source.
    """

    name: str
    note: str
    turns: Mapping[str, Any]
    lengths: Mapping[str, Any]
    turn_s: Mapping[str, Any]
    figures: Mapping[str, str]


@lru_cache(maxsize=1)
def turn_presets() -> dict[str, TurnPreset]:
    """Every preset by name, in the order of the file."""
    keys = ("note", "turns", "lengths", "turn_s", "figures")
    return {
        name: TurnPreset(name, *(record[key] for key in keys))
        for name, record in read_yaml(TURN_PRESETS_FILE).items()
    }
