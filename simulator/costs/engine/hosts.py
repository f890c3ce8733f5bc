"""What an engine's host code adds to the GPU's time, by engine and version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from rollcast.simulator.costs.presets.provenance import Provenance, preset_of, read_presets

MANY_GPUS = 4  # as sglang/srt/server_args.py has it


@dataclass(frozen=True, slots=True)
class EngineHost:
    """Host time in seconds, beside the GPUs: of an iteration, and of each running rollout in it.

    low, high: factors on both within which the truth is taken to lie. overlaps: it prepares an
    iteration while the GPUs run the one before. swaps: whether it sets host memory aside for KV
    that it swaps out (vLLM before its V1). graphs: the rollouts of the largest CUDA graph that it
    captures, by a GPU's memory, ascending: ``few`` in a replica of fewer than `MANY_GPUS`, else
    ``many``; without rows it captures one for any number.
    """

    host_s: float
    host_per_rollout_s: float
    low: float
    high: float
    provenance: Provenance
    overlaps: bool = False
    swaps: bool = False
    graphs: Sequence[Mapping[str, float]] = ()

    def graph_rollouts(self, memory_bytes: float, gpus: int) -> float:
        """Of the largest CUDA graph of a replica of ``gpus``."""
        for row in self.graphs:
            if memory_bytes < row.get("below_bytes", math.inf):
                return row["few" if gpus < MANY_GPUS else "many"]
        return math.inf


@cache
def engine_presets() -> Mapping[str, EngineHost]:
    """Every engine by name."""
    return {name: preset_of(EngineHost, e) for name, e in read_presets("engines.yaml").items()}


if TYPE_CHECKING:
    Engine = str
else:
    Engine = Literal[tuple(engine_presets())]


class Unsaid(float):
    """A default that a preset may replace."""

    __slots__ = ()
