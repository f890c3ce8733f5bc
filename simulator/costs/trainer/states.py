"""Weights, gradients and optimiser states of a trainer on one GPU, by part and by who shards them.

Bytes of a parameter: FSDP keeps an fp32 weight, gradient and two moments, 16 in all; DeepSpeed and
Megatron a 16 bit weight beside them, 18 (deepspeed.ai, memory estimators of ZeRO-2 and ZeRO-3;
Megatron Core, distributed optimiser: 6 + 12 / d). A trainer of 16 bit weights alone keeps all in
16 bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, MASTER_BYTES, TrainerOptions
from rollcast.simulator.costs.trainer.parallel import GRADIENT_BYTES, Layout
from rollcast.simulator.costs.trainer.step_options import ALL_MATRICES, Optimizer, matrices_of

MOMENTS: Mapping[Optimizer, int] = {
    "adamw": 2,
    "adamw_bf16": 2,
    "adamw_kahan": 3,  # AnyPrecisionAdamW: momentum, variance and Kahan's compensation
    "adamw_8bit": 2,
    "muon": 1,
    "sgd": 0,
}
_MOMENT_BYTES: Mapping[Optimizer, int] = {  # else as the weight
    "adamw_bf16": 2,
    "adamw_kahan": 2,
    "adamw_8bit": 1,
}
SCALE_BITS = 0.13  # of a quantised weight, for its scale (QLoRA's, quantised twice: 0.127)
FP32_SCALE_BITS = 0.5  # of one in 4 bit whose scales are not: 32 for each 64 weights
_SHARDED_WEIGHTS = ("fsdp", "hybrid")
_SHARDED_GRADIENTS = ("fsdp", "hybrid", "zero2")
_SHARDED_MOMENTS = ("fsdp", "hybrid", "zero1", "zero2")


def moment_bytes(options: TrainerOptions) -> int:
    """Bytes of a parameter's moments."""
    each = _MOMENT_BYTES.get(options.optimizer, master_bytes(options))
    return MOMENTS[options.optimizer] * each


def resident_moment_bytes(options: TrainerOptions) -> int:
    """Bytes of a parameter's moments that its GPU must hold: of paged ones none, which CUDA moves
    to the host before an allocation fails (bitsandbytes' documentation of paged optimisers)."""
    return 0 if options.pages_moments else moment_bytes(options)


def master_bytes(options: TrainerOptions) -> int:
    """Bytes of a weight that the optimiser updates."""
    return COMPUTE_BYTES if options.master_dtype == "bf16" else MASTER_BYTES


def gradient_bytes(options: TrainerOptions) -> int:
    """Bytes of a gradient while it is summed."""
    narrow = "bf16" in (options.master_dtype, options.gradient_dtype)
    return COMPUTE_BYTES if narrow else GRADIENT_BYTES


def waiting_gradient_bytes(options: TrainerOptions) -> int:
    """Bytes of a gradient that is whole: FSDP1 leaves one that waits to be reduced as it was
    computed (torch's ``_post_backward_hook`` returns before it casts)."""
    waits = options.backend == "fsdp" and options.kept in _SHARDED_GRADIENTS
    return COMPUTE_BYTES if waits else gradient_bytes(options)


def has_working_copy(options: TrainerOptions) -> bool:
    """Whether a 16 bit weight is kept beside the one that the optimiser updates. ZeRO-1 and 2 keep
    all of the passes' weights on each GPU and update a clone of its part, in whatever precision
    (DeepSpeed, runtime/zero/stage_1_and_2.py)."""
    if options.kept in ("zero1", "zero2"):
        return True
    return options.working_copy and options.master_dtype != "bf16"


def state_parts(layout: Layout, options: TrainerOptions) -> dict[str, float]:
    """Bytes of the states of a trainer of all weights on each of its GPUs, gradients included."""
    parts: dict[str, float] = dict.fromkeys(
        ("weights", "master_weights", "gradients", "optimizer"), 0.0
    )
    if options.states_on_host:
        if options.kept in _SHARDED_WEIGHTS and not options.reduce_every_microbatch:
            whole = math.fsum(weights for weights, _ in layout.parts)
            parts["gradients"] = waiting_gradient_bytes(options) * whole
        return parts
    copy, here = has_working_copy(options), not options.optimizer_on_host
    sharded = options.kept in _SHARDED_WEIGHTS
    for weights, copies in layout.parts:
        shared = layout.sharers(copies)
        states = weights / (shared if options.kept in _SHARDED_MOMENTS else 1)
        if copy:
            parts["weights"] += COMPUTE_BYTES * (weights / shared if sharded else weights)
        if here or not copy:  # without a copy the passes read the master weights
            alone = options.master_dtype == "bf16" and not copy
            name = "weights" if alone else "master_weights"
            parts[name] += master_bytes(options) * states
        if here:
            parts["optimizer"] += resident_moment_bytes(options) * states
        if here or not (options.working_copy and options.kept in _SHARDED_GRADIENTS):
            split = options.kept in _SHARDED_GRADIENTS and options.reduce_every_microbatch
            each = gradient_bytes(options) if split else waiting_gradient_bytes(options)
            parts["gradients"] += each * (weights / shared if split else weights)
    return parts


def frozen_parts(layout: Layout, options: TrainerOptions, bytes_each: float) -> float:
    """Bytes of weights that are not trained on each GPU."""
    if options.states_on_host:
        return 0.0
    sharded = options.kept in _SHARDED_WEIGHTS
    return bytes_each * math.fsum(
        weights / (layout.sharers(copies) if sharded else 1) for weights, copies in layout.parts
    )


def base_bytes_each(model: Model, base_bits: int, nested_scales: bool = True) -> float:
    """Mean bytes of a frozen weight below adapters. Where those of layers are quantised, they have
    scales, quantised too or not (of 8 bits one a row), and embeddings and the head stay in 16 bit
    (bitsandbytes, GPTQ and AWQ replace the matrices of layers alone)."""
    if base_bits >= 8 * COMPUTE_BYTES:
        return base_bits / 8
    embeddings = model.head_parameters * (1 if model.tied_embeddings else 2)
    share = embeddings / model.parameters
    scale = SCALE_BITS if nested_scales or base_bits != 4 else FP32_SCALE_BITS
    return share * COMPUTE_BYTES + (1 - share) * (base_bits + scale) / 8


def adapter_parameters(model: Model, rank: int, adapted: str = ALL_MATRICES) -> float:
    """Parameters of adapters on some projections of all layers: ``rank`` x (inputs + outputs) of
    each (LoRA, arXiv 2106.09685); of latent attention as of grouped queries with as many heads.
    adapted: as ``lora_matrices``."""
    hidden, wide = model.hidden, model.heads * model.head_dim
    narrow = model.kv_heads * model.head_dim
    outputs = {"q": wide, "k": narrow, "v": narrow, "o": wide}
    chosen = matrices_of(adapted)
    attention = sum(hidden + outputs[name] for name in chosen if name in outputs)
    matrices = sum(name in chosen for name in ("gate", "up", "down")[3 - model.mlp_matrices :])
    dense = model.dense_layers * matrices * (hidden + model.intermediate)
    shared = matrices * (hidden + model.shared_expert_intermediate)
    shared *= bool(model.shared_expert_intermediate)
    routed = model.experts * matrices * (hidden + model.moe_intermediate)
    return rank * (model.layers * attention + dense + model.sparse_layers * (shared + routed))
