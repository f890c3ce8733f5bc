"""Activations on one GPU of a trainer: a layer's, split as its layout says, and those of images.

What a layer's backward keeps is counted by operation, as PyTorch's autograd saves it: a linear
layer saves its input, a product both factors, flash attention its four arguments (Dao, arXiv
2205.14135), a norm its input. A norm of several kernels (transformers' and torchtune's) works in
fp32: it saves that copy and the normalised 16 bit one beside. Under autocast (`casts`) the residual
stream and its norms are in fp32 throughout, and each product casts its input for itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from rollcast.simulator.costs.memory.training import ACTIVATION_BYTES, Recompute, layer_bytes
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.vision import VisionTower
from rollcast.simulator.costs.trainer.casts import autocasts, casts_for_adapters
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, TrainerOptions
from rollcast.simulator.costs.trainer.parallel import Layout
from rollcast.simulator.costs.trainer.step_options import ALL_MATRICES, matrices_of

NORM_BYTES = 6  # of an element of an eager norm: its input in fp32, its normalised output in 16 bit
SCALED_BYTES = 8
INPUTS_CAST = 5  # under autocast: those of queries, keys and values, of gate and values
# bytes of a score of eager attention (transformers' eager_attention_forward: a softmax in fp32):
SCORES_KEPT = 6  # its probability in 32 and in 16 bit
SCORES_GRADED = 8  # gradients of both and of the score
SCORES_MADE = 8  # the score, its probability in 32 and in 16 bit
# bytes of those of PyTorch's unfused scaled_dot_product_attention, which is in fp32 throughout:
TOWER_SCORES_KEPT = 4  # the probability
TOWER_SCORES_MADE = 8  # score and probability in a forward, gradients of both in a backward
# of what an MLP keeps, as gradients: of its gate, its values, their product
WIDTHS_AT_WORK = 0.75
# of fused ones that write one of them where the last is (torch.compile's inplace_buffers), as Liger
# writes two where gate and values are (ops/swiglu.py, _swiglu_backward_kernel):
WIDTHS_IN_PLACE = 0.5


class KeptLayer(NamedTuple):
    """Bytes of one token in a mean layer.

    norms: inputs and outputs of both, and of those of queries and keys. attention: queries, keys,
    values, output. mlp: gate, values, their product before and after the activation, of which a
    fused kernel keeps three; of a mixture the copies sent to its experts too. graded: gradients of
    the MLP's widths, while it works. selected: of attention and mlp, outputs of every second
    product and of attention (torchtitan's selective checkpoints). entry: the layer's own input.
    inputs: how many such stay where all of it is computed again, one for each part that is
    checkpointed by itself.
    """

    norms: float
    attention: float
    mlp: float
    graded: float
    selected: float
    entry: float
    inputs: int = 1

    @property
    def whole(self) -> float:
        """All of it."""
        return self.norms + self.attention + self.mlp

    def kept(self, recompute: Recompute) -> float:
        """Bytes that stay until the backward."""
        if recompute == "full":
            return self.inputs * self.entry
        if recompute == "selective":
            return self.entry + self.selected
        if recompute == "none":
            return self.whole
        part = self.attention if recompute == "attention" else self.mlp
        return self.whole - part - self.norms / 4

    def kept_stream(self, recompute: Recompute) -> float:
        """Of those, bytes of norms and of the residual stream."""
        if recompute in ("full", "selective"):
            return (self.inputs if recompute == "full" else 1) * self.entry
        return self.norms if recompute == "none" else 0.75 * self.norms

    @property
    def at_work(self) -> float:
        """Bytes of the gradients of activations while the layer's backward runs."""
        return self.graded + 4 * self.entry


class TowerScoresHeld(NamedTuple):
    """Bytes of scores of all pairs of patches that a vision tower's attention has: until its
    backward, in the layer whose backward runs, in that of a forward without gradients."""

    kept: float
    working: float
    forward: float


def kept_layer(
    model: Model,
    kernels: Literal["eager", "fused"] = "eager",
    *,
    graded_in_place: bool = False,
    scaled_in_fp32: bool = True,
    scaled_inside: bool = False,
    busiest: float = 1.0,
    stream: Literal["16 bit", "autocast", "fp32"] = "16 bit",
    inputs: int = 1,
    adapters: Literal["16 bit", "cast"] | None = None,
    base_bits: int = 16,
    adapted: str = ALL_MATRICES,
    repeats_kv: bool = False,
    recurrent_unfused: bool = False,
) -> KeptLayer:
    """Of a model whose elementwise operations run one by one, or fused. graded_in_place: whether
    the activation's backward writes where its gradient is. scaled_in_fp32: whether
    outputs of routed experts are in fp32 while their scores scale them (torchtitan, prime-rl).
    scaled_inside: whether the activation is scaled instead, and no output kept (Megatron).
    busiest: tokens of the GPU whose experts get most, over the mean. stream: what the
    residual stream is in: as the products, in fp32 between those of 16 bit, or in fp32 as they are,
    of which bytes are counted as if all were in 16 bit. inputs: as in `KeptLayer`. adapters: on
    each of the matrices ``adapted`` (``lora_matrices``), in 16 bit, or casting its input; frozen
    weights have base_bits each.
    repeats_kv: whether attention gets keys and values copied for each of its heads.
    recurrent_unfused: whether gated delta nets are Megatron's."""
    made = layer_bytes(model)
    hidden = ACTIVATION_BYTES * model.hidden
    queries = ACTIVATION_BYTES * model.heads * model.head_dim
    keys = ACTIVATION_BYTES * model.kv_heads * model.head_dim
    attending = model.attention_layers / model.layers
    recurrent = model.recurrent_elements_kept - model.recurrent_elements_per_token
    if recurrent_unfused:
        recurrent += model.recurrent_elements_unfused
    attention = made.attention + ACTIVATION_BYTES * recurrent / model.layers
    if not model.kv_lora_rank:  # rotation saves nothing: one copy of queries and keys less each
        attention -= attending * (queries + 2 * keys)
    if repeats_kv and not model.kv_lora_rank:
        attention += attending * 2 * (queries - keys)
    norms = made.stream
    if model.qk_norm:
        norms += attending * (queries + keys)
    if kernels == "eager":
        # the copies take the place of the input; what is in fp32 already is not copied
        eager = 1.0 if stream == "fp32" else NORM_BYTES / ACTIVATION_BYTES - 1
        norms += 2 * eager * hidden
        if model.qk_norm:
            norms += attending * eager * (queries + keys)
    if adapters is not None and kernels == "eager" and stream != "fp32":
        norms -= 2 * hidden  # what a norm's frozen weight is multiplied with
        if model.qk_norm:
            norms -= attending * (queries + keys)
    mlp = made.mlp + (busiest - 1) * made.routed
    sparse = model.sparse_layers / model.layers
    if model.experts and scaled_in_fp32:  # before and after
        mlp += busiest * sparse * model.experts_per_token * SCALED_BYTES * model.hidden
    graded = (WIDTHS_IN_PLACE if graded_in_place else WIDTHS_AT_WORK) * mlp
    again, again_of_mlp = _adapted_inputs(model, adapters, base_bits, adapted)
    attention += again
    mlp += again_of_mlp
    sent = busiest * sparse * model.experts_per_token
    if kernels == "fused" or model.mlp_matrices < 3:  # those without a gate make no third one
        widths = sparse * model.shared_expert_intermediate + sent * model.moe_intermediate
        mlp -= ACTIVATION_BYTES * (widths + model.dense_layers / model.layers * model.intermediate)
    if scaled_inside:
        mlp -= sent * hidden
    entry = hidden
    if stream == "autocast":
        entry *= 2
        norms += 2 * hidden + (INPUTS_CAST - 2) * hidden
    selected = attending * (2 * queries + keys) + hidden + made.mlp / (model.mlp_matrices + 1)
    selected = min(selected, attention + mlp)
    return KeptLayer(norms, attention, mlp, graded, selected, entry, inputs)


def _adapted_inputs(
    model: Model, adapters: Literal["16 bit", "cast"] | None, base_bits: int, adapted: str
) -> tuple[float, float]:
    """Bytes of one token in a mean layer that inputs of adapted matrices take beside those that are
    kept anyway, of attention and of dense MLPs. Each adapter keeps its cast; a frozen 16 bit matrix
    keeps no input, one of 4 or 8 bits does (bitsandbytes, autograd/_functions.py), of 8 bits the
    quantised one too."""
    if adapters is None or model.kv_lora_rank:
        return 0.0, 0.0
    attention, mlp = _inputs_of(model, adapted)
    each = float(ACTIVATION_BYTES) if adapters == "cast" else 0.0
    if base_bits < 16:
        quantised = float(base_bits == 8)
        of_attention, of_mlp = _inputs_of(model, ALL_MATRICES)
        return each * attention + quantised * of_attention, each * mlp + quantised * of_mlp
    attending, dense = model.attention_layers / model.layers, model.dense_layers / model.layers
    kept = dense * (
        model.hidden * (mlp > 0) + model.intermediate * ("down" in matrices_of(adapted))
    )
    return (
        each * max(attention - attending * model.hidden, 0.0),
        each * max(mlp - kept, 0.0),
    )


def _inputs_of(model: Model, adapted: str) -> tuple[float, float]:
    """Elements of the inputs of these matrices in a mean layer, of attention and of dense MLPs."""
    chosen = matrices_of(adapted)
    attending, dense = model.attention_layers / model.layers, model.dense_layers / model.layers
    entered = sum(name in chosen for name in ("gate", "up")[3 - model.mlp_matrices :])
    of_attention = sum(name in chosen for name in ("q", "k", "v")) * model.hidden
    of_attention += ("o" in chosen) * model.heads * model.head_dim
    of_mlp = entered * model.hidden + ("down" in chosen) * model.intermediate
    return attending * of_attention, dense * of_mlp


def tower_layer_bytes(tower: VisionTower) -> float:
    """Bytes that one layer of a vision tower keeps of one patch."""
    return float(ACTIVATION_BYTES * tower.kept_elements)


@dataclass(frozen=True)
class ActivationMemory:
    """Bytes of activations on one GPU of ``model`` split as ``layout`` says, per token of a
    microbatch or of its images."""

    model: Model
    layout: Layout
    options: TrainerOptions

    @cached_property
    def _layer(self) -> KeptLayer:
        """Where experts of this GPU get most."""
        return self._of(self.layout.busiest)

    @cached_property
    def _usual(self) -> KeptLayer:
        """A layer in the mean over all: the busiest GPU is another one in each."""
        return self._of(1 + (self.layout.busiest - 1) / math.sqrt(max(self.model.sparse_layers, 1)))

    def _of(self, busiest: float) -> KeptLayer:
        options = self.options
        megatron = options.backend == "megatron"  # whose norms are fused
        fused = megatron or options.kernels == "fused"
        return kept_layer(
            self.model,
            "fused" if fused else "eager",
            graded_in_place=fused and not megatron,
            # torchtitan's grouped experts do, as prime-rl runs them; a loop over experts does not
            scaled_in_fp32=not megatron and not options.expert_launch_s,
            scaled_inside=megatron,
            busiest=busiest,
            stream=self._stream,
            inputs=self.options.checkpointed_inputs,
            adapters=self._adapters,
            base_bits=self.options.base_bits,
            adapted=self.options.lora_matrices,
            repeats_kv=self.options.repeats_kv,
            recurrent_unfused=megatron and (options.split_recurrent or options.weights == "lora"),
        )

    @property
    def _adapters(self) -> Literal["16 bit", "cast"] | None:
        if self.options.weights != "lora":
            return None
        return "cast" if casts_for_adapters(self.options) else "16 bit"

    @property
    def _stream(self) -> Literal["16 bit", "autocast", "fp32"]:
        if self.options.precision == "fp32":
            return "fp32"
        quantised = self.options.weights == "lora" and self.options.base_bits < 16
        widened = self.options.fp32_norms and quantised
        return "autocast" if widened or autocasts(self.options) else "16 bit"

    def _here(self, whole: float, stream: float) -> float:
        """Of bytes of a whole layer, of which ``stream`` are of norms and the residual stream,
        those on one GPU."""
        tensor, share = self.options.tensor_parallel, self.layout.share / self._wide
        if self.options.tensor_sequence_parallel:
            return whole / share
        return (whole + (tensor - 1) * stream) / share

    @property
    def _wide(self) -> float:
        """Bytes of an activation over those in 16 bit."""
        return self.options.compute_bytes / COMPUTE_BYTES

    @cached_property
    def kept(self) -> float:
        """Of one token, what stays until its backward in all layers. A pipeline's first stage holds
        as many microbatches as stages, of its share of the layers, and (p - 1) / (p v) more where
        they are interleaved (arXiv 2104.04473, section 2.2)."""
        options, layer = self.options, self._usual
        layers, repeated = self.model.layers, options.recompute_layers
        repeated = layers if repeated is None else repeated
        kept = repeated * self._here(
            layer.kept(options.recompute), layer.kept_stream(options.recompute)
        )
        kept += (layers - repeated) * self._here(layer.whole, layer.norms)
        whole = layers if options.recompute in ("none", "mlp") else layers - repeated
        kept += whole * self._recurrent_again
        again = repeated if options.recompute in ("full", "selective", "attention") else 0
        kept += (layers - again) * self._gathered_inputs
        if options.virtual_stages > 1:
            stages = options.pipeline_parallel
            kept *= 1 + (stages - 1) / (stages * options.virtual_stages)
        if options.offload_activations:
            kept *= min(1.0, 2 / layers)
        return kept

    @property
    def _gathered_inputs(self) -> float:
        """Of one token in a mean layer, what torch's tensor parallelism keeps of its attention's
        input beside the part of its GPU: where norms are split along the sequence, each of three
        products gathers it for itself and saves it whole (ColwiseParallel, input_layouts)."""
        options = self.options
        if options.backend != "dtensor" or not options.tensor_sequence_parallel:
            return 0.0
        whole = (options.tensor_parallel - 1) * 3 * ACTIVATION_BYTES * self.model.hidden
        return (
            self._wide * whole * self.model.attention_layers / self.model.layers / self.layout.share
        )

    @property
    def _recurrent_again(self) -> float:
        """Of one token in a mean layer, what recurrent layers make that its GPU computes though
        others of its tensor or context parallel group do, too."""
        made = ACTIVATION_BYTES * self.model.recurrent_elements_kept / self.model.layers
        return self._wide * self.layout.recurrent_again * made / self.layout.share

    @cached_property
    def working(self) -> float:
        """Of one token, in the layer whose backward runs."""
        layer, recompute = self._layer, self.options.recompute
        again = layer.whole - layer.kept(recompute)
        stream = max(0.0, layer.norms - layer.kept_stream(recompute)) + 4 * layer.entry
        recurrent = self._recurrent_again * (recompute not in ("none", "mlp"))
        return self._here(again + layer.at_work, stream) + recurrent

    @cached_property
    def forward(self) -> float:
        """Of one token, in the layer that a forward without gradients computes."""
        return self._here(self._layer.at_work, 4 * self._layer.entry)

    @cached_property
    def scores_kept(self) -> float:
        """Of one pair of tokens, what eager attention keeps of its scores until the backward."""
        made = 0.0 if self.options.recompute in ("full", "attention") else SCORES_KEPT
        return made * self.model.attention_layers * self._score_share

    @cached_property
    def scores_working(self) -> float:
        """Of one pair, in the layer whose backward runs."""
        again = SCORES_KEPT if self.options.recompute in ("full", "attention") else 0
        return (again + SCORES_GRADED) * self._score_share

    @cached_property
    def scores_forward(self) -> float:
        """Of one pair, in the layer that a forward without gradients computes."""
        return SCORES_MADE * self._score_share

    @property
    def _score_share(self) -> float:
        """Heads on one GPU."""
        return self.model.heads * self._wide / self.options.tensor_parallel

    @cached_property
    def image_kept(self) -> float:
        """Of one image token, what stays until the backward of the vision tower."""
        tower = self.model.vision
        if tower is None or self._tower_is_frozen:
            return 0.0
        each = tower_layer_bytes(tower)
        if self.options.recompute == "full":
            each = 2 * tower.hidden
        kept = tower.patches_per_token * tower.layers * each / self.options.tensor_parallel
        return self._wide * kept

    @property
    def _tower_is_frozen(self) -> bool:
        return self.options.freeze_tower or self.options.weights == "lora"

    def tower_scores(self, image_tokens: float) -> TowerScoresHeld:
        """Of so many image tokens at once."""
        tower, of = self.model.vision, self.options.tower_scores
        if tower is None or of == "none":
            return TowerScoresHeld(0.0, 0.0, 0.0)
        beside = min(image_tokens, self.model.image_tokens) if of == "image" else image_tokens
        pairs = image_tokens * beside * tower.patches_per_token**2
        each = pairs * tower.heads / self.options.tensor_parallel
        kept, made = TOWER_SCORES_KEPT * each, TOWER_SCORES_MADE * each
        if self._tower_is_frozen:
            return TowerScoresHeld(0.0, made, made)
        if self.options.recompute == "full":
            return TowerScoresHeld(0.0, kept + made, made)
        return TowerScoresHeld(tower.layers * kept, made, made)

    @cached_property
    def image_working(self) -> float:
        """Of one image token, in the tower's layer that is at work."""
        tower = self.model.vision
        if tower is None:
            return 0.0
        made = tower.patches_per_token * tower_layer_bytes(tower) / self.options.tensor_parallel
        return self._wide * made
