"""Host memory that torch pins, whose allocator rounds each block up to a power of two.

As in aten/src/ATen/core/CachingHostAllocator.h; what is freed stays with the process.
``tensor.to("cpu", non_blocking=True)`` of a GPU's tensor is pinned as well
(aten/src/ATen/native/TensorConversions.cpp), and so are the copies that vLLM makes of its weights
before it sleeps (vllm/device_allocator/cumem.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures

Blocks = Iterable[tuple[float, float]]
"""(blocks, bytes of each)."""


def pinned_bytes(size: float) -> float:
    """Bytes of one block of ``size`` bytes."""
    return 2.0 ** math.ceil(math.log2(size)) if size > 0 else 0.0


def rounding(blocks: Blocks) -> float:
    """Bytes of pinned blocks over those that they hold; that of mean sizes where there are none."""
    listed = [(count, size) for count, size in blocks if count > 0 and size > 0]
    held = math.fsum(count * size for count, size in listed)
    if not held:
        return mean_rounding()
    return math.fsum(count * pinned_bytes(size) for count, size in listed) / held


def mean_rounding() -> float:
    """The same over blocks whose sizes nobody knows."""
    known: float = figures("memory").pinned_rounding
    return known


def fused_matrices(model: Model, split: int, bytes_each: float) -> Blocks:
    """Blocks of an engine's large weights on one of ``split`` GPUs that share each matrix: queries,
    keys and values are one, and gate and up (vLLM's layers); all experts of a layer are one, too.
    Of latent and recurrent attention, one block a layer."""
    each = bytes_each / split
    embeddings = 1 if model.tied_embeddings else 2
    yield embeddings, each * model.head_parameters
    attention = model.attention_parameters / model.layers
    if model.kv_lora_rank or model.recurrent_layers or model.compressed:
        yield model.layers, each * attention
    else:
        out = model.hidden * model.heads * model.head_dim
        yield model.layers, each * out
        yield model.layers, each * (attention - out)
    gated, experts = model.mlp_matrices - 1, model.experts * model.hidden * model.moe_intermediate
    for layers, matrix in (
        (model.dense_layers, model.hidden * model.intermediate),
        (model.sparse_layers, experts),
    ):
        yield layers, each * gated * matrix
        yield layers, each * matrix
