"""Buffers in which DeepSpeed's ZeRO gathers gradients and fetches weights.

As in deepspeed/runtime/zero.
"""

from __future__ import annotations

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, TrainerOptions

_ZERO = ("zero1", "zero2", "fsdp", "hybrid")
_PREFETCHED = 0.9  # of a hidden width squared, where transformers or accelerate fill "auto" in


def has_buckets(options: TrainerOptions) -> bool:
    """Whether gradients are gathered in buckets, whose size no layer decides."""
    return options.backend == "deepspeed" and options.kept in _ZERO


def keeps_buckets(options: TrainerOptions) -> bool:
    """Whether they are there between updates too (stage3.py); other stages make them in each
    backward (stage_1_and_2.py, setup_buckets)."""
    return has_buckets(options) and options.kept in ("fsdp", "hybrid")


def bucket_bytes(options: TrainerOptions, model: Model) -> float:
    """Bytes of the buckets, in 16 bit: two where stage 1 or 2 reduces one while the next fills."""
    if not has_buckets(options):
        return 0.0
    two = options.overlap_comm and not keeps_buckets(options)
    return COMPUTE_BYTES * (options.reduce_bucket or model.hidden**2) * (2 if two else 1)


def reduced_bytes(options: TrainerOptions, model: Model, trained: float) -> float:
    """Bytes of the copy that stage 3 makes of a bucket, with each rank's part together
    (coalesced_collectives.py). trained: parameters whose gradients are reduced, at most a bucket
    of them at once."""
    if not keeps_buckets(options):
        return 0.0
    return COMPUTE_BYTES * min(options.reduce_bucket or model.hidden**2, trained)


def fetched_parameters(options: TrainerOptions, model: Model, layer: float) -> float:
    """Parameters of the next layer that are gathered ahead, at most all: stage 3 fetches matrices
    until they are more than its bucket (partitioned_param_coordinator.py)."""
    if not keeps_buckets(options):
        return layer
    bucket = options.prefetch_bucket or _PREFETCHED * model.hidden**2
    return min(layer, bucket + model.hidden * (model.intermediate or model.moe_intermediate))
