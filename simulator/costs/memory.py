"""Activation memory of a trainer, dense or with a shared prefix (arXiv 2606.01143)."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

from simulator.costs.models import Model
from simulator.errors import ScenarioError

Recompute = Literal["full", "none"]

ACTIVATION_BYTES = 2  # bf16


def layer_activation_bytes(model: Model) -> float:
    """Bytes that one layer keeps for its backward, per token: norms and residuals, queries, keys
    and values before and after rotation, attention output, and four MLP widths. Attention scores
    are not kept (flash attention); a mixture also keeps the copies sent to its experts."""
    attention = (3 * model.heads + 4 * model.kv_heads) * model.head_dim
    sparse = model.sparse_layers / model.layers
    routed = model.experts_per_token * (4 * model.moe_intermediate + 2 * model.hidden)
    mlp = (1 - sparse) * 4 * model.intermediate
    mlp += sparse * (routed + 4 * model.shared_expert_intermediate)
    return ACTIVATION_BYTES * (4 * model.hidden + attention + mlp)


def activation_bytes_per_token(model: Model, recompute: Recompute = "full") -> float:
    """Peak activation bytes of a microbatch, per token: what all layers keep, and the layer at work
    twice over (its activations or their recomputation, and their gradients)."""
    layer = layer_activation_bytes(model)
    if recompute == "full":
        return model.layers * model.hidden * ACTIVATION_BYTES + 2 * layer
    return (model.layers + 1) * layer


def shared_kv_bytes_per_token(model: Model) -> float:
    """Bytes per prompt token that stay hot through phase B: K, V and their accumulated gradients,
    2 x 2 x layers x kv_heads x head_dim elements."""
    return 4 * model.layers * model.kv_heads * model.head_dim * ACTIVATION_BYTES


class PhaseB(NamedTuple):
    """Peak activation bytes of a trainer GPU: dense, and in phase B of shared-prefix training."""

    dense_bytes: float
    reuse_bytes: float

    @property
    def saving(self) -> float:
        """Share of the dense peak that phase B does without."""
        return 1 - self.reuse_bytes / self.dense_bytes


def phase_b_memory(
    model: Model,
    prompt_tokens: int,
    response_tokens: int,
    microbatch_rollouts: int = 1,
    recompute: Recompute = "none",
    fixed_bytes: float = 0.0,
) -> PhaseB:
    """Peak of a microbatch of ``microbatch_rollouts`` rollouts of P + S tokens: dense holds the
    activations of them all, phase B K/V and gK/gV of one prompt and the activations of the
    responses (arXiv 2606.01143; the prompt's own activations are offloaded meanwhile).
    ``fixed_bytes`` (weights, states) counts in both."""
    per_token = activation_bytes_per_token(model, recompute)
    dense = per_token * microbatch_rollouts * (prompt_tokens + response_tokens)
    shared = shared_kv_bytes_per_token(model) * prompt_tokens
    reuse = shared + per_token * microbatch_rollouts * response_tokens
    return PhaseB(fixed_bytes + dense, fixed_bytes + reuse)


class Frontier(NamedTuple):
    """Largest prompt + response, in tokens, that fits: dense, and with a shared prefix."""

    dense_tokens: int
    reuse_tokens: int


def capacity_frontier(
    model: Model,
    budget_bytes: float,
    prompt_share: float,
    recompute: Recompute = "none",
) -> Frontier:
    """Largest P + S of one rollout that ``budget_bytes`` of activations hold, ``prompt_share`` of
    it prompt. With a shared prefix the largest phase decides: A and C hold the prompt's activations
    and its gK/gV, B its K/V and gK/gV and the response's activations.

    Raises ScenarioError for a share outside 0 to 1.
    """
    if not 0 <= prompt_share <= 1:
        raise ScenarioError("prompt_share", f"{prompt_share:g} is no share; give one from 0 to 1")
    per_token = activation_bytes_per_token(model, recompute)
    shared = shared_kv_bytes_per_token(model)
    phase_a_c = (per_token + shared / 2) * prompt_share
    phase_b = shared * prompt_share + per_token * (1 - prompt_share)
    hot = max(phase_a_c, phase_b)
    return Frontier(math.floor(budget_bytes / per_token), math.floor(budget_bytes / hot))
