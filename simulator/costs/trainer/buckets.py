"""Buffers in which DeepSpeed's ZeRO gathers gradients, fetches weights and steps, and how many
weights Megatron's FSDP fetches ahead and lets wait.

As in deepspeed/runtime/zero, and in megatron/core/distributed/fsdp.
"""

from __future__ import annotations

import math

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, TrainerOptions
from rollcast.simulator.costs.trainer.states import gradient_bytes, master_bytes

_ZERO = ("zero1", "zero2", "fsdp", "hybrid")
_NORM_BYTES = 8  # of a gradient's element: its norm is taken in 64 bit
_UNIT = 1_000_000_000  # elements of Megatron's suggested_communication_unit_size, or two layers
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


def summed_bytes(options: TrainerOptions, owned: float) -> float:
    """Bytes of a microbatch's own gradients of a rank's part, ``owned`` weights, beside those that
    stages 1 and 2 have summed before (stage_1_and_2.py: copy_grads_in_partition); none where the
    optimiser, and so the sum, is on the host."""
    if not has_buckets(options) or keeps_buckets(options) or options.optimizer_on_host:
        return 0.0
    return COMPUTE_BYTES * owned


def sent_bytes(options: TrainerOptions, largest: float) -> float:
    """Bytes of the buffer through which stages 1 and 2 send gradients to the host, of the
    ``largest`` weight (stage_1_and_2.py: temp_grad_buffer_for_gpu_offload)."""
    sends = has_buckets(options) and not keeps_buckets(options) and options.optimizer_on_host
    return COMPUTE_BYTES * largest * sends


def reduced_bytes(
    options: TrainerOptions, model: Model, trained: float, owned: float, largest: float
) -> float:
    """Bytes of what reducing a bucket makes for a while. Stage 3 copies it with each rank's part
    together (coalesced_collectives.py), stages 1 and 2 copy the parts of several ranks into one,
    of a weight that is larger than a bucket too, and with the optimiser on the host take the norm
    of a rank's own part of a gradient in 64 bit (stage_1_and_2.py: allreduce_bucket,
    set_norm_for_param_grad_in_gpu). trained: parameters whose gradients are reduced, owned: those
    of a rank, largest: those of the largest weight."""
    if not has_buckets(options):
        return 0.0
    bucket = options.reduce_bucket or model.hidden**2
    if keeps_buckets(options):
        return COMPUTE_BYTES * min(bucket, trained)
    copied = COMPUTE_BYTES * min(max(bucket, largest), trained) if owned < trained else 0.0
    return max(copied, _normed_bytes(owned, largest) if options.optimizer_on_host else 0.0)


def _normed_bytes(owned: float, largest: float) -> float:
    """Bytes of a gradient in 64 bit while stages 1 and 2 take its norm."""
    return _NORM_BYTES * min(owned, largest)


def queues(options: TrainerOptions) -> bool:
    """Whether gradients of layers wait in a queue that is let run full (Megatron's FSDP)."""
    return options.backend == "megatron" and options.kept in ("fsdp", "hybrid")


def waiting_layers(options: TrainerOptions, model: Model, layer: float) -> int:
    """Layers whose gradients, whole, are there at once while they are reduced: they are freed where
    another one follows and more than the unit waits (param_and_grad_buffer.py,
    wait_for_previous_grad_reduce)."""
    if not queues(options):
        return 1
    return min(model.layers, math.floor(max(_UNIT, 2 * layer) / layer) + 1)


def fetched_parameters(options: TrainerOptions, model: Model, layer: float) -> float:
    """Parameters that are gathered ahead of a layer at work: those of the next one; by ZeRO-3, at
    most these, matrices until they are more than its bucket (partitioned_param_coordinator.py); by
    Megatron's FSDP layers until they are half the unit (param_and_grad_buffer.py)."""
    if queues(options):
        return layer * min(model.layers - 1, math.ceil(max(_UNIT, 2 * layer) / 2 / layer))
    if not keeps_buckets(options):
        return layer
    bucket = options.prefetch_bucket or _PREFETCHED * model.hidden**2
    return min(layer, bucket + model.hidden * (model.intermediate or model.moe_intermediate))


def step_bytes(options: TrainerOptions, updated: float, largest: float) -> float:
    """Bytes of what a step makes of ``updated`` weights of a rank for a while: of gradients one
    flat copy, and of that one in the precision of the optimiser's weights, beside which its own
    kernels work. Stages 1 and 2 step all weights at once and have freed the summed gradients by
    then; before, they take the norm of each gradient, of the ``largest`` weight in the end, in
    64 bit. Stage 3 keeps the gradients and steps a group after the other (stage_1_and_2.py,
    stage3.py: step).
    """
    narrow, wide = gradient_bytes(options), master_bytes(options)
    kernels = wide * options.step_copies if options.foreach_optimizer else 0
    cast = narrow + (wide if wide > narrow else 0)
    if keeps_buckets(options):
        return min(updated, options.step_group) * max(cast, max(narrow, wide) + kernels)
    stepped = updated * max(cast, max(narrow, wide) - narrow + kernels)
    return max(stepped, _normed_bytes(updated, largest))
