"""Roofline costs drawn from what is not known of them, for the uncertainty of a comparison.

`RooflineCost.with_figures_drawn` multiplies each figure by the factor of its group in
``presets/spreads.yaml``; what a scenario sets to 0 stays 0. `RooflineCost.drawn` adds what the
roofline is off by beyond its figures, by kind of case (`model_errors`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeVar

from rollcast.simulator.costs.engine.hosts import Engine, engine_presets
from rollcast.simulator.costs.engine.speculative_options import Speculative
from rollcast.simulator.costs.phase_figures import FixedSeconds, PhaseFactors
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures, read_presets
from rollcast.simulator.costs.scaled import PHASES, SOURCES
from rollcast.simulator.costs.stacks import STACKS, Stack, loop_of
from rollcast.simulator.costs.sync.sleep import Sleep
from rollcast.simulator.costs.trainer.step_options import Kernels
from rollcast.simulator.values import given
from rollcast.simulator.values.chance import Chance

SMALL_PARAMETERS = 2.5e9
FOUR_BIT = frozenset({"int4", "mxfp4", "nvfp4"})
EIGHT_BIT = frozenset({"fp8", "fp8_block", "int8"})
SYNCS = frozenset({"sync", "switch", "rest"})
"""Sources of uncertainty that are as wide where all settings are known; fixed seconds, of syncs as
of others, are of the rest."""


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
        known if gpu.measured(known.names) else assumed
        for known, assumed in zip(spreads("gpu"), spreads("gpu_assumed"), strict=True)
    )


def cost_spreads(engine: Engine | None, sleep: Sleep | None = None) -> tuple[Spread, ...]:
    """Of a cost model's own figures: its host's by ``engine``, its switches' by the engine's
    ``sleep``."""
    host, *others = spreads("roofline")
    if engine is not None:
        host = replace(host, low=engine_presets()[engine].low, high=engine_presets()[engine].high)
    if sleep is not None:
        (slept,) = spreads("engine_sleep")
        others = [slept if spread.names == slept.names else spread for spread in others]
    return (host, *others)


def stack_spreads(stack: Stack, holder: object) -> tuple[Spread, ...]:
    """Of the figures that a cost model (``holder``) has of its stack; one that was given in the
    place of the stack's is taken to be known."""
    preset, loop = STACKS[stack], loop_of(stack, getattr(holder, "engine", None))
    factor = getattr(holder, "host_factor", None) or 1.0
    rest = ("rest_s", "rest_per_token_s") if preset.rest_per_token_s else ("rest_s",)
    groups = (
        (Spread(rest, *preset.rest_spread, "rest"), preset, 1.0),
        (Spread(("loop_s", "loop_per_rollout_s"), *loop.loop_spread, "host time"), loop, factor),
    )
    known = []
    for spread, whose, times_s in groups:
        names = tuple(
            name for name in spread.names if getattr(holder, name) == times_s * getattr(whose, name)
        )
        if names:
            known.append(replace(spread, names=names))
    return tuple(known)


def drawn_fixed(stack: Stack, fixed: FixedSeconds, chance: Chance) -> FixedSeconds:
    """The fixed seconds of the phases drawn anew, but for those that were given."""
    preset = STACKS[stack]
    drawn = given(fixed.times(chance.factor("rest/fixed", *preset.fixed_spread)))
    own = given(preset.fixed)
    return replace(
        fixed, **{key: drawn[key] for key, its in given(fixed).items() if its == own[key]}
    )


def drawn_speculative(speculative: Speculative | None, chance: Chance) -> Speculative | None:
    """Speculation with its host's times drawn anew; nothing is drawn where there is none."""
    if speculative is None:
        return None
    return moved(speculative, times(speculative, spreads("speculative"), chance))


def drawn_gpu(gpu: Gpu, chance: Chance, whose: str = "") -> Gpu:
    """The GPU with its efficiencies drawn anew. whose: after the names of the draws."""
    drawn = times(gpu, gpu_spreads(gpu), chance, whose)
    return moved(gpu, {name: min(value, 1.0) for name, value in drawn.items()})


def drawn_links(gpu: Gpu, gpus: int, chance: Chance, whose: str = "") -> Gpu:
    """The GPU with what its host makes of links drawn anew, where ``gpus`` of a node talk over
    PCIe: the share of a link that collectives reach, the seconds of a small one, and for more than
    two GPUs, where nobody says it, whether they share a link. whose: after the draws' names."""
    if gpus == 1 or not gpu.over_pcie:
        return gpu
    hosts, cause = figures("pcie"), "decode efficiency"
    shares = [hosts.least_share, hosts.most_share]
    floors = [hosts.least_floor_s, hosts.most_floor_s]
    drawn: dict[str, Any] = {}
    for name, ends in (("interconnect_efficiency", shares), ("all_reduce_floor_s", floors)):
        value = getattr(gpu, name)
        low, high = (end / value if value else 1.0 for end in ends)
        factor = chance.factor(f"{cause}/{name}{whose}", min(low, 1.0), max(high, 1.0))
        drawn[name] = factor * value
    shared = gpu.interconnect_shared
    if shared is None and gpus > 2:
        beyond = NormalDist().inv_cdf(1 - hosts.sharing)
        shared = chance.normal(f"{cause}/interconnect_shared{whose}") > beyond
    return moved(gpu, {"interconnect_shared": shared, **drawn})


Holder = TypeVar("Holder")


def moved(holder: Holder, values: Mapping[str, Any]) -> Holder:
    """`replace`; the holder itself, with all that it has computed, where it has these values."""
    if all(getattr(holder, name) == value for name, value in values.items()):
        return holder
    return replace(holder, **values)  # type: ignore[type-var]


def times(
    holder: object, known: Iterable[Spread], chance: Chance, whose: str = ""
) -> dict[str, Any]:
    """The figures of ``holder`` that the spreads name, each times its factor drawn anew."""
    drawn: dict[str, Any] = {}
    for spread in known:
        name = f"{spread.cause}/{spread.names[0]}{whose}"
        factor = chance.factor(name, spread.low, spread.high)
        of = {name: getattr(holder, name) for name in spread.names}
        drawn.update({name: factor * value for name, value in of.items() if value is not None})
    return drawn


def case_errors() -> Mapping[str, float]:
    """Standard deviations of the log that a case adds to its model's (`model_errors`)."""
    errors: Mapping[str, float] = read_presets("spreads.yaml")["case_errors"]
    return errors


def drawn_errors(errors: Mapping[str, float], chance: Chance) -> dict[str, float]:
    """Factors by phase, drawn with these standard deviations of the log. What a trainer's
    log-probabilities are off by, its updates are too, up to ``trainer_correlation``."""
    together: float = read_presets("spreads.yaml")["trainer_correlation"]
    trainer = chance.normal(f"{SOURCES['update']}/trainer, model error")
    drawn = {}
    for phase, sd in errors.items():
        normal = chance.normal(f"{SOURCES[phase]}/{phase}, model error")
        if phase in ("log_prob", "update"):
            normal = math.sqrt(together) * trainer + math.sqrt(1.0 - together) * normal
        drawn[phase] = math.exp(sd * normal)
    return drawn


def unusual(model: Model) -> bool:
    """Whether a model is a mixture, or has recurrent layers: forecasts of these are further off."""
    return model.experts > 0 or model.recurrent_layers > 0


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


def narrowing(stack: Stack | None, settings_known: bool) -> float:
    """Of the logs of what is drawn of a stack's run, but of its syncs."""
    factor: float = read_presets("spreads.yaml")["settings_known"]
    return factor if stack is not None and settings_known else 1.0


def of_the_case(
    factors: PhaseFactors,
    stack: Stack | None,
    model: Model,
    gpu: Gpu,
    backend: str | None = None,
    narrowed: float = 1.0,
) -> PhaseFactors:
    """With the standard deviations of their stack as they are for such a model, of which unusual
    ones and a GPU whose figures are assumed have more, and ``narrowed`` (`narrowing`); one that was
    given in the place of the stack's is taken to be known. backend: of the trainer."""
    if stack is None:
        return factors
    kinds = {(True, False): "models", (False, True): "gpus", (True, True): "both"}
    kind = kinds.get((unusual(model), gpu.assumed))
    added: Mapping[str, float] = read_presets("spreads.yaml")["unusual"].get(kind, {})
    own, changed = STACKS[stack].factors_on(backend), {}
    for phase in PHASES:
        sd: float | None = getattr(factors, f"{phase}_sd", None)
        if sd is not None and sd == getattr(own, f"{phase}_sd"):
            factor = 1.0 if SOURCES[phase] in SYNCS else narrowed
            changed[f"{phase}_sd"] = factor * math.hypot(sd, added.get(phase, 0.0))
    return replace(factors, **changed)


def residual_spreads(
    model: Model,
    factors: PhaseFactors | None = None,
    *,
    speculates: bool = False,
    several_gpus: bool = False,
    narrowed: float = 1.0,
) -> dict[str, float]:
    """By phase of `simulator.costs.scaled`: standard deviation of the log.

    factors: of the stack; its deviations add to decoding's and prefill's, take the place of the
    trainer's, and are all there is of the other phases'. speculates: whether tokens are drafted.
    several_gpus: whether a replica has more than one. narrowed: factor on all but the stack's.
    """
    own, case = (
        {name: narrowed * sd for name, sd in errors.items()}
        for errors in (model_errors(model), case_errors())
    )
    stack = factors or PhaseFactors()
    parts = (
        own["decode"],
        stack.decode_sd or 0.0,
        case["speculation"] if speculates else 0.0,
        case["tensor_parallel"] if several_gpus else 0.0,
    )
    return {
        "decode": math.hypot(*parts),
        "prefill": math.hypot(own["prefill"], stack.prefill_sd or 0.0),
        "log_prob": case["log_prob"] if stack.log_prob_sd is None else stack.log_prob_sd,
        "update": case["update"] if stack.update_sd is None else stack.update_sd,
        "sync": stack.sync_sd or 0.0,
        "switch": stack.sync_sd or 0.0,
        "rest": stack.rest_sd or 0.0,
    }
