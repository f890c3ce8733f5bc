"""Room for KV: what weights leave of the memory of a replica's GPUs."""

from __future__ import annotations

import math

from rollcast.simulator.costs.engine.hosts import Engine
from rollcast.simulator.costs.memory.training import ACTIVATION_BYTES
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Above, number

LOGIT_BYTES = 12  # of a rollout's next token: 16 and 32 bit, probabilities


def unsaid_reserve_bytes(model: Model, engine: Engine | None) -> float:
    """``reserve_bytes`` where nobody gives it: more for large models in vLLM (taken where no engine
    is named)."""
    known = figures("kv_pool")
    if model.parameters >= known.large_parameters and (engine or "vllm").startswith("vllm"):
        return float(known.large_reserve_bytes)
    return float(figures("roofline").reserve_bytes)


def workspace_bytes(model: Model, tensor_parallel: int, batched_tokens: int, seqs: int) -> float:
    """The least that an engine needs of its share beside weights and KV: of an iteration of
    ``batched_tokens`` the widths of one MLP and of the stream, and ``seqs`` rollouts' logits.
    CUDA's context is there before vLLM looks what is free (``MemorySnapshot``, ``init_device``)."""
    width = max(model.intermediate, model.experts_per_token * model.moe_intermediate)
    mlp = model.mlp_matrices * width / tensor_parallel
    stream = ACTIVATION_BYTES * (mlp + 4 * model.hidden)
    logits = LOGIT_BYTES * model.vocab / tensor_parallel
    return batched_tokens * stream + seqs * logits


def weight_bytes_per_gpu(
    model: Model,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
    data_parallel_attention: bool = False,
    draft_weight_bytes: float = 0.0,
) -> float:
    """Bytes of a replica's weights on each of its GPUs: its share, and what each holds whole."""
    whole = model.attention_weight_bytes if data_parallel_attention else model.replicated_bytes
    weights = model.weight_bytes + draft_weight_bytes
    return (weights + (tensor_parallel - 1) * whole) / (tensor_parallel * pipeline_parallel)


def kv_bytes_per_token(
    model: Model,
    tensor_parallel: int,
    pipeline_parallel: int = 1,
    rollout_tokens: int = 8192,
    data_parallel_attention: bool = False,
    draft: Model | None = None,
) -> float:
    """Bytes of a token of a replica's pool on each of its GPUs."""
    if draft is not None:
        shape = (tensor_parallel, pipeline_parallel, rollout_tokens, data_parallel_attention)
        return kv_bytes_per_token(model, *shape) + kv_bytes_per_token(draft, *shape)
    if data_parallel_attention:
        held = model.kv_bytes_per_token_of(rollout_tokens) / tensor_parallel
    else:
        held = model.kv_bytes_per_token_of(rollout_tokens, tensor_parallel)
    return held / pipeline_parallel


def kv_pool_tokens(
    model: Model,
    gpu: Gpu,
    tensor_parallel: int,
    memory_utilization: float = 0.9,
    reserve_bytes: float = 2e9,
    rollout_tokens: int = 8192,
    data_parallel_attention: bool = False,
    pipeline_parallel: int = 1,
    draft: Model | None = None,
    draft_weight_bytes: float = 0.0,
) -> int:
    """Tokens that the KV pool of one replica holds.

    Each GPU has ``memory_utilization`` of its memory, less its share of the weights, less
    ``reserve_bytes`` for activations and captured graphs. More GPUs than KV heads hold copies of
    the heads; the latent cache of MLA is held whole by each GPU, but with
    ``data_parallel_attention``, where each holds its own rollouts. Layers with a window hold no
    more than it, linear layers their state, of rollouts of ``rollout_tokens``. Each of
    ``pipeline_parallel`` stages holds its layers' weights and KV. A ``draft`` for speculative
    decoding keeps weights and KV of its own.

    Raises ScenarioError (``cluster.tensor_parallel``) where the weights leave no room, with the
    number that would fit.
    """
    number(memory_utilization, "cost.roofline.kv_memory_utilization", Above(0, 1))
    budget = gpu.memory_bytes * memory_utilization - reserve_bytes
    stages = pipeline_parallel

    def room(gpus: int) -> float:
        return budget - weight_bytes_per_gpu(
            model, gpus, stages, data_parallel_attention, draft_weight_bytes
        )

    token_bytes = kv_bytes_per_token(
        model, tensor_parallel, stages, rollout_tokens, data_parallel_attention, draft
    )
    tokens = math.floor(room(tensor_parallel) / token_bytes)
    if tokens >= 1:
        return tokens
    enough = [n for n in (2**i for i in range(1, 11)) if room(n) > 0.1 * budget]
    advice = f"tensor_parallel {enough[0]} would fit" if enough else "no number of them holds it"
    raise ScenarioError(
        "cluster.tensor_parallel",
        f"{model.name} has {model.weight_bytes / 1e9:.0f} GB of weights, which leaves no room for "
        f"KV on {tensor_parallel * stages} x {gpu.name} ({gpu.memory_bytes / 1e9:.0f} GB each); "
        f"{advice}",
    )
