"""What a layer's backward keeps, by operation, as PyTorch's autograd saves it.

A linear layer saves its input, a product both factors, flash attention its four arguments (Dao,
arXiv 2205.14135), a norm its input. A norm of several kernels (transformers' and torchtune's) works
in fp32: it saves that copy and the normalised 16 bit one beside.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from rollcast.simulator.costs.memory.training import ACTIVATION_BYTES, Recompute, layer_bytes
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.vision import VisionTower

NORM_BYTES = 6  # of an element of an eager norm: its input in fp32, its normalised output in 16 bit
SCALED_BYTES = 8
WIDTHS_AT_WORK = 0.75  # of what an MLP keeps, as gradients: of its gate, its values, their product


class KeptLayer(NamedTuple):
    """Bytes of one token in a mean layer.

    norms: inputs and outputs of both, and of those of queries and keys. attention: queries, keys,
    values, output. mlp: gate, values, their product before and after the activation, of which a
    fused kernel keeps three; of a mixture the copies sent to its experts too. graded: gradients of
    the MLP's widths, while it works. selected: of attention and mlp, outputs of every second
    product and of attention (torchtitan's selective checkpoints). entry: the layer's own input.
    """

    norms: float
    attention: float
    mlp: float
    graded: float
    selected: float
    entry: float

    @property
    def whole(self) -> float:
        """All of it."""
        return self.norms + self.attention + self.mlp

    def kept(self, recompute: Recompute) -> float:
        """Bytes that stay until the backward."""
        if recompute == "full":
            return self.entry
        if recompute == "selective":
            return self.entry + self.selected
        if recompute == "none":
            return self.whole
        part = self.attention if recompute == "attention" else self.mlp
        return self.whole - part - self.norms / 4

    def kept_stream(self, recompute: Recompute) -> float:
        """Of those, bytes of norms and of the residual stream."""
        if recompute in ("full", "selective"):
            return self.entry
        return self.norms if recompute == "none" else 0.75 * self.norms

    @property
    def at_work(self) -> float:
        """Bytes of the gradients of activations while the layer's backward runs."""
        return self.graded + 4 * self.entry


def kept_layer(
    model: Model,
    kernels: Literal["eager", "fused"] = "eager",
    *,
    scaled_in_fp32: bool = True,
    scaled_inside: bool = False,
    busiest: float = 1.0,
) -> KeptLayer:
    """Of a model whose elementwise operations run one by one, or fused. scaled_in_fp32: whether
    outputs of routed experts are in fp32 while their scores scale them (torchtitan, prime-rl).
    scaled_inside: whether the activation is scaled instead, and no output kept (Megatron).
    busiest: tokens of the GPU whose experts get most, over the mean."""
    made = layer_bytes(model)
    hidden = ACTIVATION_BYTES * model.hidden
    queries = ACTIVATION_BYTES * model.heads * model.head_dim
    keys = ACTIVATION_BYTES * model.kv_heads * model.head_dim
    attending = model.attention_layers / model.layers
    attention = made.attention
    if not model.kv_lora_rank:  # rotation saves nothing: one copy of queries and keys less each
        attention -= attending * (queries + 2 * keys)
    norms = made.stream
    if model.qk_norm:
        norms += attending * (queries + keys)
    if kernels == "eager":
        eager = NORM_BYTES / ACTIVATION_BYTES - 1  # the copies take the place of the input
        norms += 2 * eager * hidden
        if model.qk_norm:
            norms += attending * eager * (queries + keys)
    mlp = made.mlp + (busiest - 1) * made.routed
    sparse = model.sparse_layers / model.layers
    if model.experts and scaled_in_fp32:  # before and after
        mlp += busiest * sparse * model.experts_per_token * SCALED_BYTES * model.hidden
    graded = WIDTHS_AT_WORK * mlp
    sent = busiest * sparse * model.experts_per_token
    if kernels == "fused":
        widths = sparse * model.shared_expert_intermediate + sent * model.moe_intermediate
        mlp -= ACTIVATION_BYTES * (widths + model.dense_layers / model.layers * model.intermediate)
    if scaled_inside:
        mlp -= sent * hidden
    selected = attending * (2 * queries + keys) + hidden + made.mlp / (model.mlp_matrices + 1)
    return KeptLayer(norms, attention, mlp, graded, min(selected, attention + mlp), hidden)


def tower_layer_bytes(tower: VisionTower) -> float:
    """Bytes that one layer of a vision tower keeps of one patch: norms and residuals, queries,
    keys, values and output of attention, and the widths of its MLP."""
    widths = 4 if tower.gated_mlp else 2
    return ACTIVATION_BYTES * (8.0 * tower.hidden + widths * tower.intermediate)
