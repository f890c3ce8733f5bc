"""16 bit casts of fp32 weights under autocast, and when they are there.

torch.autocast casts a weight at its first use and keeps the cast until the context ends
(`cached_cast` of aten/src/ATen/autocast_mode.cpp); the graph keeps it for the backward of its
product. Layers that are computed again keep none: their saved tensors are those of the second
forward, which casts anew within a context of its own. FSDP casts what it gathers instead,
DeepSpeed and Megatron keep 16 bit weights beside: neither has such casts.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, MASTER_BYTES, TrainerOptions


def autocasts(options: TrainerOptions) -> bool:
    """Whether passes cast fp32 weights themselves, and their residual stream is in fp32, as the
    embeddings are, which no cast reaches."""
    return (
        options.weights == "full"
        and options.master_dtype == "fp32"
        and options.precision != "fp32"
        and options.kept == "none"
        and not options.working_copy
        and options.backend not in ("megatron", "deepspeed")
    )


def casts_for_adapters(options: TrainerOptions) -> bool:
    """Whether each adapter casts the input of its matrix for itself: adapters are in fp32 whatever
    their base is in (peft, autocast_adapter_dtype), and DeepSpeed or FSDP does not cast them."""
    return (
        options.weights == "lora"
        and options.precision != "fp32"
        and options.kept == "none"
        and options.backend == "ddp"
    )


@dataclass(frozen=True)
class Casts:
    """Bytes of casts. whole: of a forward until its context ends. graph: of them, those that the
    graph holds afterwards. layer: of a layer at work. head: of the LM head. graded: what the
    gradient of a weight in the head takes while its cast's becomes one in fp32."""

    whole: float = 0.0
    graph: float = 0.0
    layer: float = 0.0
    head: float = 0.0
    graded: float = COMPUTE_BYTES


def casts_of(
    options: TrainerOptions, model: Model, parameters: float, layer: float, head: float
) -> Casts:
    """Of a GPU with so many parameters, in a layer and in the head; none where nothing is cast."""
    if not autocasts(options):
        return Casts()
    looked_up = 0.0 if model.tied_embeddings else head  # an embedding is no product
    whole, repeated = parameters - looked_up, options.recompute_layers
    again = 1.0 if repeated is None else repeated / model.layers
    if options.recompute != "full":
        again = 0.0
    graph = whole - again * (whole - head)
    return Casts(
        whole=COMPUTE_BYTES * whole,
        graph=COMPUTE_BYTES * graph,
        layer=COMPUTE_BYTES * layer,
        head=COMPUTE_BYTES * head,
        graded=COMPUTE_BYTES + MASTER_BYTES,
    )
