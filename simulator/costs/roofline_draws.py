"""Roofline costs drawn from what is not known of them, for the uncertainty of a comparison.

Each figure is multiplied by a factor whose spread is what `python -m calibration.jury` finds when
it holds the presets against published measurements (calibration/data/jury/jury.md), or the range of
the values that would meet them. Figures that err together share a factor. What a scenario sets to 0
stays 0. `simulator.costs.roofline.RooflineCost.drawn` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulator.costs.hardware import Gpu


@dataclass(frozen=True, slots=True)
class Spread:
    """A factor from ``low`` to ``high``, the logarithm of which is uniform. names: of the figures
    that it multiplies. source: what says so."""

    low: float
    high: float
    names: tuple[str, ...]
    source: str


_GRID = "engine grid and kernel tables, held-out halves: 3 to 7 % in decode, 4 to 11 % in prefill"
GPU_SPREADS = (
    Spread(0.88, 1.14, ("gemm_bandwidth_efficiency", "decode_attention_bandwidth_efficiency"),
           _GRID),
    Spread(0.82, 1.22, ("gemm_flop_efficiency", "prefill_attention_flop_efficiency"), _GRID),
    Spread(0.8, 1.25, ("trainer_attention_flop_efficiency",), "trainer baselines: 9 % on H200"),
)  # fmt: skip
COST_SPREADS = (
    Spread(0.5, 2.0, ("host_s", "host_per_rollout_s"), "kernel tables alone to vLLM of mid-2024"),
    Spread(0.6, 2.0, ("launch_s_per_layer",), "0.26 to 0.8 ms a layer in published eager runs"),
    Spread(0.5, 2.0, ("sync_fixed_s",), "weight updates published for several mechanisms"),
    Spread(0.2, 4.0, ("switch_fixed_s",), "an engine alone, 1 to 2 s, to NeMo-RL and verl, 30 s"),
)
_STEPS = "trainer baselines of GPUs that were not fitted (RTX A6000, B200)"
TRAINER_SPREADS = (
    Spread(0.45, 1.6, ("traffic_per_activation_byte", "traffic_per_logit"),
           "the trainer of NeMo-RL, whose kernels are fused, to prime-rl's; and " + _STEPS),
    Spread(0.5, 5.0, ("traffic_per_adapted_byte",), _STEPS + ", with adapters and without"),
    Spread(0.6, 1.7, ("kernel_bytes_per_s",), _STEPS),
    Spread(0.4, 3.0, ("expert_launch_s",), "0.4 to 0.8 ms in the mixtures of B200, by model"),
    Spread(0.4, 2.5, ("launch_s_per_layer",), "eager engines, 0.4 ms, to TRL with adapters, 3 ms"),
)  # fmt: skip


def drawn_gpu(gpu: Gpu, rng: np.random.Generator) -> Gpu:
    """The GPU with its efficiencies drawn anew."""
    found = factors(GPU_SPREADS, rng)
    return replace(gpu, **{n: min(f * getattr(gpu, n), 1.0) for n, f in found.items()})


def factors(spreads: tuple[Spread, ...], rng: np.random.Generator) -> Mapping[str, float]:
    """A factor for each figure that the spreads name."""
    found = {}
    for spread in spreads:
        factor = float(np.exp(rng.uniform(np.log(spread.low), np.log(spread.high))))
        found.update(dict.fromkeys(spread.names, factor))
    return found
