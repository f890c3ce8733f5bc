"""Roofline costs drawn from what is not known of them, for the uncertainty of a comparison.

Each figure is multiplied by a factor whose spread is what `benchmarks.validation` finds when it
holds the presets against published measurements, or the range of the values that would meet them.
Figures that err together share a factor. What a scenario sets to 0 stays 0.
`simulator.costs.roofline.cost.RooflineCost.drawn` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from rollcast.simulator.costs.engine.hosts import Engine, engine_presets
from rollcast.simulator.costs.engine.speculative_options import (
    DRAFT_HIGH,
    DRAFT_LOW,
    DRAFT_SOURCE,
    VERIFY_HIGH,
    VERIFY_LOW,
    VERIFY_SOURCE,
    Speculative,
)
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.stacks import STACKS, Stack
from rollcast.simulator.costs.sync.sleep import (
    HIGH,
    LOW,
    SLEEP_SOURCE,
    SWITCH_HIGH,
    SWITCH_LOW,
    SWITCH_SOURCE,
    Sleep,
)
from rollcast.simulator.costs.sync.state_copies import HIGH as COPIES_HIGH
from rollcast.simulator.costs.sync.state_copies import LOW as COPIES_LOW
from rollcast.simulator.costs.sync.state_copies import PAGEABLE_SOURCE
from rollcast.simulator.costs.trainer.options import Kernels
from rollcast.simulator.values.chance import Chance


@dataclass(frozen=True, slots=True)
class Spread:
    """A factor from ``low`` to ``high``, the logarithm of which is uniform. names: of the figures
    that it multiplies. source: what says so. cause: of uncertainty, to which it belongs."""

    low: float
    high: float
    names: tuple[str, ...]
    source: str
    cause: str = "trainer efficiency"

    def drawn(self, chance: Chance) -> dict[str, float]:
        """The factor by figure."""
        factor = chance.factor(f"{self.cause}/{self.names[0]}", self.low, self.high)
        return dict.fromkeys(self.names, factor)


DECODE, PREFILL, HOST = "decode efficiency", "prefill efficiency", "host time"
SYNC, SWITCH, REST = "sync", "switch", "rest"

_GRID = "engine grid and kernel tables, held-out halves: 3 to 7 % in decode, 4 to 11 % in prefill"
# Wider where all the figures are assumed: what boards taken to be like another were off by, once
# their own kernels were tabulated. RTX PRO 6000 as L40S: 14 and 21 % in bandwidth, 28 and 127 % in
# flop; B300 as B200: 0 to 3 and 11 %.
_LIKE = "boards taken to be like another, against their own kernel tables"
_BANDWIDTH = ("gemm_bandwidth_efficiency", "decode_attention_bandwidth_efficiency")
_FLOP = ("gemm_flop_efficiency", "prefill_attention_flop_efficiency")
_TRAINER = ("trainer_attention_flop_efficiency",)
GPU_SPREADS = (
    Spread(0.88, 1.14, _BANDWIDTH, _GRID, DECODE),
    Spread(0.82, 1.22, _FLOP, _GRID, PREFILL),
    Spread(0.8, 1.25, _TRAINER, "trainer baselines: 9 % on H200"),
)
ASSUMED_GPU_SPREADS = (
    Spread(0.78, 1.28, _BANDWIDTH, _LIKE, DECODE),
    Spread(0.6, 1.8, _FLOP, _LIKE, PREFILL),
    Spread(0.5, 2.0, _TRAINER, "kernels of one GPU, 0.13 to 0.48, and fits to four, 0.12 to 0.74"),
)
COST_SPREADS = (
    Spread(
        0.5, 2.0, ("host_s", "host_per_rollout_s"), "kernel tables alone to vLLM of mid-2024", HOST
    ),
    Spread(
        0.6, 2.0, ("launch_s_per_layer",), "0.26 to 0.8 ms a layer in published eager runs", HOST
    ),
    Spread(0.5, 2.0, ("sync_fixed_s",), "weight updates published for several mechanisms", SYNC),
    Spread(SWITCH_LOW, SWITCH_HIGH, ("switch_fixed_s",), SWITCH_SOURCE.source, SWITCH),
    Spread(
        0.25, 2.5, ("offload_bytes_per_s",), "refits of NeMo-RL; pageable and pinned memory", SWITCH
    ),
    Spread(1.0, 1.0, ("rest_s",), "given, or none", REST),
)
_FUSED = "FUSED_SHARE: 0.15 to 0.3 by training steps of Llama, 0.7 by NeMo-RL's whole steps"
_MIXTURES = "training steps of mixtures, held-out ones too: 28 % in the root mean square of the log"
_STEPS = "trainer baselines of GPUs that were not fitted (RTX A6000, B200)"
TRAINER_SPREADS = (
    Spread(
        0.45,
        1.6,
        ("traffic_per_activation_byte", "traffic_per_logit"),
        "the trainer of NeMo-RL, whose kernels are fused, to prime-rl's; and " + _STEPS,
    ),
    Spread(0.3, 2.5, ("traffic_per_adapted_byte",), _STEPS + ", with adapters and without"),
    Spread(0.6, 1.7, ("kernel_bytes_per_s",), _STEPS),
    Spread(0.4, 3.0, ("expert_launch_s",), "0.4 to 0.8 ms in the mixtures of B200, by model"),
    Spread(0.4, 2.5, ("launch_s_per_layer",), "eager engines, 0.4 ms, to TRL with adapters, 3 ms"),
    Spread(0.6, 1.7, ("expert_share",), _MIXTURES),
    Spread(0.6, 2.5, ("network_bytes_per_s",), _MIXTURES + "; links of 400 and 800 Gb/s, overlap"),
    Spread(COPIES_LOW, COPIES_HIGH, ("copies_scale",), PAGEABLE_SOURCE.source, SWITCH),
)

SPECULATIVE_SPREADS = (
    Spread(DRAFT_LOW, DRAFT_HIGH, ("draft_host_s",), DRAFT_SOURCE.source, HOST),
    Spread(VERIFY_LOW, VERIFY_HIGH, ("verify_host_s",), VERIFY_SOURCE.source, HOST),
)
NETWORK_SPREAD = Spread(
    0.8,
    1.15,
    ("network_bytes_per_s",),
    "DeepEP's tables between nodes are met within 9 %; its bandwidths differ by 35 % among them",
    DECODE,
)


def trainer_spreads(kernels: Kernels) -> tuple[Spread, ...]:
    """The spreads of a trainer's own figures: what fused kernels move is known less well."""
    traffic, *others = TRAINER_SPREADS
    if kernels == "fused":
        traffic = Spread(0.4, 2.5, traffic.names, _FUSED)
    return (traffic, *others)


def gpu_spreads(gpu: Gpu) -> tuple[Spread, ...]:
    """The spread of each group of the GPU's figures: wider where nobody measured or fitted one."""
    return tuple(
        known if gpu.kinds(known.names) & {"measured", "fitted"} else assumed
        for known, assumed in zip(GPU_SPREADS, ASSUMED_GPU_SPREADS, strict=True)
    )


def cost_spreads(
    engine: Engine | None, sleep: Sleep | None = None, stack: Stack | None = None
) -> tuple[Spread, ...]:
    """The spreads of a cost model's own figures: its host's by ``engine`` where one is named, its
    switches' narrower where the engine's ``sleep`` is, and by ``stack`` where that has figures of
    its own."""
    host, launch, sync, switch, offload, rest = COST_SPREADS
    if engine is not None:
        engine_preset = engine_presets()[engine]
        host = Spread(
            engine_preset.low, engine_preset.high, host.names, engine_preset.provenance.source, HOST
        )
    if sleep is not None:
        switch = Spread(LOW, HIGH, switch.names, SLEEP_SOURCE.source, SWITCH)
    if stack is not None:
        preset = STACKS[stack]
        rest = Spread(*preset.rest_spread, rest.names, preset.rest.source, REST)
        if preset.host is not None and engine == preset.engine:
            host = Spread(*preset.host_spread, host.names, preset.host.source, HOST)
    return (host, launch, sync, switch, offload, rest)


def drawn_speculative(speculative: Speculative | None, chance: Chance) -> Speculative | None:
    """Speculation with its host's times drawn anew; nothing is drawn where there is none."""
    if speculative is None:
        return None
    drawn = factors(SPECULATIVE_SPREADS, chance)
    return replace(
        speculative, **{name: f * getattr(speculative, name) for name, f in drawn.items()}
    )


def drawn_gpu(gpu: Gpu, chance: Chance) -> Gpu:
    """The GPU with its efficiencies drawn anew."""
    drawn = factors(gpu_spreads(gpu), chance)
    return replace(gpu, **{n: min(f * getattr(gpu, n), 1.0) for n, f in drawn.items()})


def factors(spreads: tuple[Spread, ...], chance: Chance) -> Mapping[str, float]:
    """A factor for each figure that the spreads name."""
    drawn = {}
    for spread in spreads:
        drawn.update(spread.drawn(chance))
    return drawn
