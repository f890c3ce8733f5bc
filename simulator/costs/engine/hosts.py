"""What an engine's host code adds to the GPU's time, by engine and version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rollcast.simulator.costs.presets.provenance import Provenance, preset_of, read_presets

Engine = Literal[
    "vllm-0.5",
    "vllm-0.8-v0",
    "vllm-0.8",
    "vllm-0.11",
    "vllm-0.19",
    "vllm-0.26",
    "sglang",
    "tensorrt-llm",
]


@dataclass(frozen=True, slots=True)
class EngineHost:
    """host_s: an iteration on the engine's host beside its GPUs, seconds. host_per_rollout_s: each
    running rollout in it, seconds. low, high: factors on both within which the truth is taken to
    lie. provenance: where the two come from."""

    host_s: float
    host_per_rollout_s: float
    low: float
    high: float
    provenance: Provenance


@cache
def engine_presets() -> Mapping[str, EngineHost]:
    """Every engine by name."""
    return {name: preset_of(EngineHost, e) for name, e in read_presets("engines.yaml").items()}


class Unsaid(float):
    """A default that a preset may replace: it tells what nobody gave from what is given."""

    __slots__ = ()


def host_of(
    engine: Engine | None, host_s: float, host_per_rollout_s: float, factor: float
) -> tuple[float, float]:
    """Both figures in seconds: each as it was given, or else ``factor`` times the engine's preset
    (times the default, where no engine is named)."""
    given = (host_s, host_per_rollout_s)
    preset = given
    if engine is not None:
        host = engine_presets()[engine]
        preset = (host.host_s, host.host_per_rollout_s)
    first, second = (
        float(preset_value) * factor if isinstance(asked, Unsaid) else asked
        for asked, preset_value in zip(given, preset, strict=True)
    )
    return first, second
