"""Speeds of trainers' attention kernels, forward and backward together, by generation of GPUs.

A share is of the dense bf16 peak, as `simulator.costs.trainer.trainer` counts: a backward as two
forwards, though it multiplies two and a half times as much. Kernels that run at f and b flop/s
then reach 3 / (1 / f + 2.5 / b). Heads of 128, causal, 8,192 tokens and more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.provenance import Provenance, preset_of, read_presets
from rollcast.simulator.errors import ScenarioError

FIGURE = "trainer_attention_flop_efficiency"
OTHERS = "others"
"""The generation of GPUs that are of none."""


@dataclass(frozen=True, slots=True)
class KernelSpeed:
    """A share of the bf16 peak, and where it is from; None: the GPU's own figure."""

    share: float | None
    provenance: Provenance


@cache
def kernel_presets() -> Mapping[tuple[str, str], KernelSpeed]:
    """Speeds by kernel and generation of GPUs, where they are known."""
    kernels = read_presets("attention_kernels.yaml")["kernels"]
    return {
        (kernel, generation): preset_of(KernelSpeed, entry)
        for kernel, speeds in kernels.items()
        for generation, entry in speeds.items()
    }


if TYPE_CHECKING:
    AttentionKernel = str
else:
    AttentionKernel = Literal[tuple(dict.fromkeys(kernel for kernel, _ in kernel_presets()))]


def with_kernel(gpu: Gpu, kernel: AttentionKernel, field: str) -> Gpu:
    """The GPU as that kernel finds it. Raises ScenarioError naming ``field`` where no speed of the
    kernel on it is known."""
    presets, generations = kernel_presets(), read_presets("attention_kernels.yaml")["generations"]
    generation = next((name for name, gpus in generations.items() if gpu.name in gpus), OTHERS)
    speed = presets.get((kernel, generation))
    if speed is None:
        known = [
            name for (name, where), its in presets.items() if where == generation and its.share
        ]
        raise ScenarioError(
            field,
            f"no speed of {kernel} on {gpu.name} is known, known there: {', '.join(known)}; or "
            f"give gpu.{FIGURE}",
        )
    if speed.share is None:
        return gpu
    provenance = {**gpu.provenance, FIGURE: speed.provenance}
    return replace(gpu, trainer_attention_flop_efficiency=speed.share, provenance=provenance)
