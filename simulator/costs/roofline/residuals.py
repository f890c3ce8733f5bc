"""How far the roofline is off by kind of case, beyond what its own figures leave open.

Each number is a standard deviation of the log, chosen so that with the figures of
`simulator.costs.roofline.draws` drawn too about nine of ten held-out rows of
`benchmarks.validation` lie inside (its `coverage` counts). All of those rows were in view:
none tests these numbers that had no part in them. int8 and int4 weights, which no row has, go with
the floats of as many bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollcast.simulator.costs.presets.models import Model

SMALL_PARAMETERS = 2.5e9
FOUR_BIT = frozenset({"int4", "mxfp4", "nvfp4"})
EIGHT_BIT = frozenset({"fp8", "fp8_block", "int8"})


@dataclass(frozen=True, slots=True)
class PhaseErrors:
    """Standard deviations of the log, beyond what figures leave open: of decoding and of what
    prompts add to an iteration."""

    decode: float
    prefill: float


DENSE = PhaseErrors(0.07, 0.12)
DENSE_EIGHT_BIT = PhaseErrors(0.10, 0.15)
SMALL = PhaseErrors(0.19, 0.46)
MIXTURE = PhaseErrors(0.17, 0.14)
MIXTURE_EIGHT_BIT = PhaseErrors(0.15, 0.45)
FOUR_BITS = PhaseErrors(0.25, 0.42)
SPECULATION = 0.15  # of the gain, with what is accepted known

# Of the trainer's phases inside a step: trainers measured alone are within 10 to 20 %, but stacks
# differ in kernels, padding and what they compute again (`benchmarks.validation.phases`).
LOG_PROB = 0.30
UPDATE = 0.28

# GPUs of several replicas, or of a trainer apart, differ in what a forecast leaves out from GPUs
# that share: ratios of one-step-off over on-policy steps are 10 % off where each is judged by the
# same figures.
APART = 0.10
TENSOR_PARALLEL = 0.07  # TensorRT-LLM's table: 10 to 15 % on several GPUs, 5 to 9 % on one


def engine_errors(model: Model) -> PhaseErrors:
    """Of an engine that serves ``model``: by its weights' precision, its experts and its size."""
    if model.formats & FOUR_BIT:
        return FOUR_BITS
    eight = bool(model.formats & EIGHT_BIT)
    if model.experts:
        return MIXTURE_EIGHT_BIT if eight else MIXTURE
    if model.parameters < SMALL_PARAMETERS:
        return SMALL
    return DENSE_EIGHT_BIT if eight else DENSE


def residual_spreads(
    model: Model, *, speculates: bool = False, several_gpus: bool = False
) -> dict[str, float]:
    """By phase of `simulator.costs.scaled`: standard deviation of the log.

    speculates: whether tokens are drafted. several_gpus: whether a replica has more than one.
    """
    errors = engine_errors(model)
    parts = (
        errors.decode,
        SPECULATION if speculates else 0.0,
        TENSOR_PARALLEL if several_gpus else 0.0,
    )
    return {
        "decode": math.hypot(*parts),
        "prefill": errors.prefill,
        "log_prob": LOG_PROB,
        "update": UPDATE,
    }
