"""What an inference engine holds on each of its GPUs: awake, asleep, and at the least."""

from __future__ import annotations

from rollcast.simulator.costs.memory.kv_pool import kv_bytes_per_token, weight_bytes_per_gpu
from rollcast.simulator.costs.memory.processes import communicator_bytes
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.roofline.cost import RooflineCost
from rollcast.simulator.costs.stacks import STACKS


def engine_weights(cost: RooflineCost) -> float:
    """Bytes of a replica's weights on each GPU, with those of a draft."""
    speculative = cost.speculative
    return weight_bytes_per_gpu(
        cost.model,
        cost.tensor_parallel,
        cost.pipeline_parallel,
        cost.data_parallel_attention,
        speculative.draft_weight_bytes(cost.model) if speculative else 0.0,
    )


def borrowed_weights(cost: RooflineCost) -> float:
    """Bytes of weights that an engine of the stack's own, which reads the trainer's, needs beside
    these on each GPU: all of them in 16 bit where ZeRO-3 gathers them to generate (deepspeed's
    GatheredParameters), else the layers at work."""
    trainer = cost.trainer_of
    if trainer.backend == "deepspeed" and trainer.kept in ("fsdp", "hybrid"):
        return engine_weights(cost)
    return trainer.working_weights


def kv_bytes(cost: RooflineCost, tokens: float) -> float:
    """Bytes on each GPU of a pool of ``tokens``."""
    speculative = cost.speculative
    return tokens * kv_bytes_per_token(
        cost.model,
        cost.tensor_parallel,
        cost.pipeline_parallel,
        cost.kv_rollout_tokens,
        cost.data_parallel_attention,
        speculative.draft_of(cost.model) if speculative else None,
    )


def has_a_pool(cost: RooflineCost) -> bool:
    """Whether the engine takes its share of the memory for KV at once; an engine of the stack's own
    takes what its rollouts need."""
    return cost.engine is not None or cost.stack is None or STACKS[cost.stack].engine is not None


def asleep(cost: RooflineCost, awake: dict[str, float]) -> dict[str, float]:
    """What a colocated engine keeps on the GPU while the trainer works, of what it holds awake."""
    if cost.engine_sleep == "none" or not has_a_pool(cost):
        return awake if has_a_pool(cost) else {}
    known = figures("memory")
    kept = {"context": known.context_bytes}
    if cost.engine_gpus > 1:
        kept["context"] += communicator_bytes(cost.gpu)
    return kept | ({"graphs": known.graphs_bytes} if cost.with_graphs else {})
