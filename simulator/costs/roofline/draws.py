"""Roofline costs drawn from what is not known of them, for the uncertainty of a comparison.

`RooflineCost.with_figures_drawn` multiplies each figure by the factor of its group in
``presets/spreads.yaml``; what a scenario sets to 0 stays 0. `RooflineCost.drawn` adds what the
roofline is off by beyond its figures, by kind of case (`model_errors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rollcast.simulator.costs.engine.hosts import Engine, engine_presets
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import read_presets
from rollcast.simulator.costs.stacks import STACKS, Stack
from rollcast.simulator.costs.sync.sleep import Sleep
from rollcast.simulator.costs.trainer.options import Kernels
from rollcast.simulator.values.chance import Chance

SMALL_PARAMETERS = 2.5e9
FOUR_BIT = frozenset({"int4", "mxfp4", "nvfp4"})
EIGHT_BIT = frozenset({"fp8", "fp8_block", "int8"})


@dataclass(frozen=True, slots=True)
class Spread:
    """A factor from ``low`` to ``high``, the logarithm of which is uniform.

    names: of the figures that it multiplies. cause: of uncertainty, to which it belongs.
    """

    names: tuple[str, ...]
    low: float
    high: float
    cause: str


def spreads(part: str) -> tuple[Spread, ...]:
    """Those of a part of ``spreads.yaml``."""
    return tuple(
        Spread(tuple(entry["names"]), entry["low"], entry["high"], entry["cause"])
        for entry in read_presets("spreads.yaml")[part]
    )


def trainer_spreads(kernels: Kernels) -> tuple[Spread, ...]:
    """Of a trainer's own figures: what fused kernels move is known less well."""
    traffic, *others = spreads("trainer")
    return (*spreads("trainer_fused"), *others) if kernels == "fused" else (traffic, *others)


def gpu_spreads(gpu: Gpu) -> tuple[Spread, ...]:
    """Of each group of the GPU's figures: wider where nobody measured or fitted one."""
    return tuple(
        known if gpu.kinds(known.names) & {"measured", "fitted"} else assumed
        for known, assumed in zip(spreads("gpu"), spreads("gpu_assumed"), strict=True)
    )


def cost_spreads(
    engine: Engine | None, sleep: Sleep | None = None, stack: Stack | None = None
) -> tuple[Spread, ...]:
    """Of a cost model's own figures: its host's by ``engine``, its switches' by the engine's
    ``sleep`` and by ``stack`` what has figures of its own there."""
    host, launch, sync, switch, offload, rest = spreads("roofline")
    if engine is not None:
        host = replace(host, low=engine_presets()[engine].low, high=engine_presets()[engine].high)
    if sleep is not None:
        (switch,) = spreads("engine_sleep")
    if stack is not None:
        preset = STACKS[stack]
        rest = replace(rest, low=preset.rest_spread[0], high=preset.rest_spread[1])
        if preset.host is not None and engine == preset.engine:
            host = replace(host, low=preset.host_spread[0], high=preset.host_spread[1])
    return (host, launch, sync, switch, offload, rest)


def drawn_speculative(speculative: Speculative | None, chance: Chance) -> Speculative | None:
    """Speculation with its host's times drawn anew; nothing is drawn where there is none."""
    if speculative is None:
        return None
    return replace(speculative, **times(speculative, spreads("speculative"), chance))


def drawn_gpu(gpu: Gpu, chance: Chance) -> Gpu:
    """The GPU with its efficiencies drawn anew."""
    drawn = times(gpu, gpu_spreads(gpu), chance)
    return replace(gpu, **{name: min(value, 1.0) for name, value in drawn.items()})


def times(holder: object, known: Iterable[Spread], chance: Chance) -> dict[str, Any]:
    """The figures of ``holder`` that the spreads name, each times its factor drawn anew."""
    drawn: dict[str, Any] = {}
    for spread in known:
        factor = chance.factor(f"{spread.cause}/{spread.names[0]}", spread.low, spread.high)
        drawn.update({name: factor * getattr(holder, name) for name in spread.names})
    return drawn


def case_errors() -> Mapping[str, float]:
    """Standard deviations of the log that a case adds to its model's (`model_errors`)."""
    errors: Mapping[str, float] = read_presets("spreads.yaml")["case_errors"]
    return errors


def model_errors(model: Model) -> Mapping[str, float]:
    """Standard deviations of the log of decode and prefill beyond the figures', of an engine that
    serves ``model``: by its weights' precision, its experts and its size."""
    eight = "_eight_bit" if model.formats & EIGHT_BIT else ""
    kind = f"mixture{eight}" if model.experts else f"dense{eight}"
    if model.formats & FOUR_BIT:
        kind = "four_bits"
    elif not model.experts and model.parameters < SMALL_PARAMETERS:
        kind = "small"
    errors: Mapping[str, float] = read_presets("spreads.yaml")["model_errors"][kind]
    return errors


def residual_spreads(
    model: Model, *, speculates: bool = False, several_gpus: bool = False
) -> dict[str, float]:
    """By phase of `simulator.costs.scaled`: standard deviation of the log.

    speculates: whether tokens are drafted. several_gpus: whether a replica has more than one.
    """
    own, case = model_errors(model), case_errors()
    parts = (
        own["decode"],
        case["speculation"] if speculates else 0.0,
        case["tensor_parallel"] if several_gpus else 0.0,
    )
    return {
        "decode": math.hypot(*parts),
        "prefill": own["prefill"],
        "log_prob": case["log_prob"],
        "update": case["update"],
    }
