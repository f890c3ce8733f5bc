"""What an engine's host code adds to the GPU's time, by engine and version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simulator.costs.hardware import Provenance

Engine = Literal[
    "vllm-0.5", "vllm-0.8-v0", "vllm-0.8", "vllm-0.11", "vllm-0.19", "vllm-0.26", "sglang",
    "tensorrt-llm",
]  # fmt: skip


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


_GRID = Provenance(
    "fitted",
    "LLM-Inference-Bench, vLLM of mid-2024: middle of seven fits (0 to 2.4 ms, 62 to 102 us a "
    "rollout; A100, H100, GH200), whose held-out halves are met within 3 to 7 %",
)
_TRACE = Provenance(
    "fitted",
    "first 150 requests of a run of vLLM 0.19 on an RTX PRO 6000 (LLMServingSim); the time per "
    "token of each of the other 150 is met within 1 % on average. Sampling and other kernels that "
    "no kernel table holds are in it",
)
_OLD = Provenance("assumed", "between the fits of vLLM of mid-2024 and of 0.19")
_SAME_RUN = Provenance(
    "assumed",
    "as vLLM 0.19: vLLM 0.28 served the same requests on the same board in 65.7 s, 0.19 in 65.9 s",
)
_SGLANG = Provenance(
    "fitted",
    "every second of nine points of DeepSeek-R1 on eight H200 (InferenceX, May 2026), 4 to 64 "
    "requests at a time; the others are met within 3 %",
)
_TRTLLM = Provenance(
    "fitted",
    "half of the rows of TensorRT-LLM v0.15's performance overview; the other half is met within 8 "
    "% on average, and DeepSeek-R1 on H200 under the version of November 2025, which takes up to 5 "
    "ms an iteration, within 11 %",
)
ENGINES: Mapping[Engine, EngineHost] = {
    "vllm-0.5": EngineHost(1.6e-3, 77e-6, 0.5, 1.6, _GRID),
    "vllm-0.8-v0": EngineHost(1.2e-3, 60e-6, 0.4, 2.0, _OLD),
    "vllm-0.8": EngineHost(0.9e-3, 50e-6, 0.4, 2.0, _OLD),
    "vllm-0.11": EngineHost(0.54e-3, 37e-6, 0.4, 2.2, Provenance("assumed", "as vLLM 0.19")),
    "vllm-0.19": EngineHost(0.54e-3, 37e-6, 0.6, 1.6, _TRACE),
    "vllm-0.26": EngineHost(0.54e-3, 37e-6, 0.4, 1.6, _SAME_RUN),
    "sglang": EngineHost(1.3e-3, 11e-6, 0.5, 1.6, _SGLANG),
    "tensorrt-llm": EngineHost(3.0e-3, 0.6e-6, 0.3, 1.8, _TRTLLM),
}


def listed() -> str:
    """The engines with their figures and kinds, in words."""
    return "; ".join(
        f"{name} {1e3 * host.host_s:g} ms and {1e6 * host.host_per_rollout_s:g} us a rollout, "
        f"{host.provenance}"
        for name, host in ENGINES.items()
    )


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
        preset = (ENGINES[engine].host_s, ENGINES[engine].host_per_rollout_s)
    first, second = (
        float(own) * factor if isinstance(asked, Unsaid) else asked
        for asked, own in zip(given, preset, strict=True)
    )
    return first, second
