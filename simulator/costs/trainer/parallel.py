"""A model split over the GPUs of a trainer: what each holds, and what they send each other.

Ranks are laid out as Megatron does: tensor parallel innermost, then context, data, pipeline
(arXiv 2104.04473); expert parallel groups take GPUs of the first three. Sequence parallel groups
(Ulysses, arXiv 2309.14509) stand where context parallel ones do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.one_layer import trained_parameters
from rollcast.simulator.costs.presets.routing import busiest_share
from rollcast.simulator.costs.trainer.options import COMPUTE_BYTES, TrainerOptions
from rollcast.simulator.costs.trainer.step_options import FIELD
from rollcast.simulator.errors import ScenarioError

GRADIENT_BYTES = 4  # of an fp32 gradient
_SPLITS = ("tensor_parallel", "context_parallel", "sequence_parallel", "pipeline_parallel")


class Talk(NamedTuple):
    """Seconds of communication in one microbatch's forward on one GPU: by the layers' attention, by
    their MLPs, and between pipeline stages."""

    attention: float
    mlp: float
    between: float


@dataclass(frozen=True)
class Layout:
    """``model`` on ``gpus`` GPUs, split as ``options`` say.

    Raises ScenarioError, naming the key, where the split does not divide the GPUs, the heads, the
    layers or the experts.
    """

    model: Model
    gpu: Gpu
    gpus: int
    options: TrainerOptions

    def __post_init__(self) -> None:
        options, model = self.options, self.model
        tensor, split = options.tensor_parallel, options.sequence_split
        stages, by_heads = options.pipeline_parallel, options.sequence_parallel
        if self.gpus % (tensor * split * stages):
            keys = _SPLITS
            key = next(key for key in keys if getattr(options, key) > 1)
            raise ScenarioError(
                f"{FIELD}.{key}",
                f"tensor {tensor} x context {options.context_parallel} x sequence {by_heads} x "
                f"pipeline {stages} does not divide {self.gpus} trainer GPUs "
                "(cluster.trainer_gpus)",
            )
        if model.heads % (tensor * by_heads):
            key, parts = "tensor_parallel", str(tensor)
            if by_heads > 1:
                key = "sequence_parallel"
                parts = f"{by_heads} x tensor {tensor}" if tensor > 1 else str(by_heads)
            raise ScenarioError(
                f"{FIELD}.{key}",
                f"{parts} does not divide the {model.heads} attention heads of {model.name}",
            )
        if stages * options.virtual_stages > model.layers:
            key = "virtual_stages" if stages <= model.layers else "pipeline_parallel"
            raise ScenarioError(
                f"{FIELD}.{key}",
                f"{stages} stages x {options.virtual_stages} parts are more than the "
                f"{model.layers} layers of {model.name}",
            )
        self._check_experts()

    def _check_experts(self) -> None:
        experts, group = self.options.expert_parallel, self.gpus // self.stages
        field = f"{FIELD}.expert_parallel"
        if experts == 1:
            return
        if not self.model.experts:
            raise ScenarioError(field, f"{self.model.name} has no experts; give 1")
        if self.model.experts % experts:
            raise ScenarioError(
                field, f"{experts} does not divide the {self.model.experts} experts of a layer"
            )
        if group % experts:
            raise ScenarioError(
                field, f"{experts} does not divide the {group} GPUs that hold the same layers"
            )

    # --- who holds what ---

    @property
    def stages(self) -> int:
        """Pipeline stages."""
        return self.options.pipeline_parallel

    @property
    def share(self) -> int:
        """GPUs that share the tokens and products of one microbatch in one stage."""
        return self.options.tensor_parallel * self.options.sequence_split

    @property
    def data_parallel(self) -> int:
        """Copies of the model, each with microbatches of its own."""
        return self.gpus // (self.share * self.stages)

    @property
    def _dense_copies(self) -> int:
        return self.data_parallel * self.options.sequence_split

    @property
    def expert_split(self) -> int:
        """GPUs that share the routed experts of a layer: an expert parallel group, or without one
        those of tensor parallel."""
        options = self.options
        return options.expert_parallel if options.expert_parallel > 1 else options.tensor_parallel

    @cached_property
    def busiest(self) -> float:
        """Tokens that routing sends to the busiest GPU of an expert parallel group, over the mean:
        nothing is dropped, and in each layer the others wait for it (arXiv 2606.11867)."""
        model = self.model
        return busiest_share(model.experts, self.options.expert_parallel, model.routing_skew)

    @property
    def _expert_copies(self) -> int:
        return self.gpus // (self.stages * self.expert_split)

    @cached_property
    def parts(self) -> tuple[tuple[float, int], ...]:
        """(weights of one GPU without data parallelism, GPUs that hold the same): the weights that
        every token uses, and routed experts. Recurrent layers that each GPU computes in whole, and
        a tied head that each has, are not split."""
        dense, routed = trained_parameters(self.model)
        split = self.options.tensor_parallel * self.stages
        dense += self.recurrent_copies * self.model.recurrent_parameters
        dense += (self.options.tensor_parallel // self.head_split - 1) * self.model.head_parameters
        if self._dense_copies == self._expert_copies:
            whole = dense / split + routed / (self.expert_split * self.stages)
            if split == 1 and self.expert_split == 1:
                whole = dense + routed
            return ((whole, self._dense_copies),)
        return (
            (dense / split, self._dense_copies),
            (routed / (self.expert_split * self.stages), self._expert_copies),
        )

    @property
    def head_split(self) -> int:
        """GPUs of a tensor parallel group that share the LM head."""
        whole = self.model.tied_embeddings and not self.options.split_tied_head
        return 1 if whole else self.options.tensor_parallel

    @property
    def stream_copies(self) -> int:
        """GPUs of a tensor parallel group that each compute norms and the residual stream of the
        same token, and send it to the next stage: one where they share the tokens
        (megatron/core/pipeline_parallel/schedules.py, get_tensor_shapes), else all."""
        return 1 if self.options.tensor_sequence_parallel else self.options.tensor_parallel

    @property
    def recurrent_copies(self) -> int:
        """Copies of recurrent layers in a tensor parallel group, beside one that it would share: of
        all other GPUs where each computes them in whole."""
        options = self.options
        whole = not options.split_recurrent and options.weights == "full"
        return options.tensor_parallel - 1 if whole else 0

    @property
    def recurrent_again(self) -> int:
        """Times that the GPUs of a microbatch compute its recurrent layers, beside once: in whole
        by each of a tensor parallel group, or for all tokens by each of a context parallel one."""
        options = self.options
        whole = not options.split_recurrent_context and options.weights == "full"
        times = options.context_parallel if whole else 1
        return (self.recurrent_copies + 1) * times - 1

    def sharers(self, copies: int) -> int:
        """Of ``copies`` GPUs with the same weights, those that share their states."""
        kept = self.options.kept
        if kept == "none":
            return 1
        if kept == "hybrid":
            node = max(1, self.options.gpus_per_node // self.options.tensor_parallel)
            return math.gcd(copies, self.options.shard_gpus or node)
        return copies

    @property
    def owned_parameters(self) -> float:
        """Weights that one GPU's optimiser updates."""
        return math.fsum(weights / self.sharers(copies) for weights, copies in self.parts)

    @property
    def communicators(self) -> int:
        """Groups in which one GPU talks to others, each with buffers of its own: all GPUs, those of
        each split, those that hold the same weights. Megatron has one more for the gradient norm
        of a split model, and one for copies of the same experts."""
        options = self.options
        if self.gpus == 1:
            return 0
        splits = sum(getattr(options, key) > 1 for key in (*_SPLITS, "expert_parallel"))
        groups: int = 1 + splits + (splits > 0 and self.data_parallel > 1)
        if options.backend == "megatron":
            groups += options.tensor_parallel * self.stages > 1
            groups += options.expert_parallel > 1
        return groups

    # --- how fast it talks ---

    def rate_bytes_per_s(self, span: int, rings: int = 1) -> float:
        """Of each GPU in a collective over ``span`` neighbouring GPUs, which leaves a node over the
        network links of ``rings`` of its GPUs."""
        options = self.options
        share = options.collective_efficiency
        near = self.gpu.link_bytes_per_s(min(span, options.gpus_per_node))
        near *= min(share, self.gpu.pcie_share)
        if span > options.gpus_per_node:
            return min(near, rings * options.network_bytes_per_s * share)
        return near

    @property
    def _data_span(self) -> int:
        return self.gpus // self.stages

    @cached_property
    def gather_s(self) -> float:
        """All weights, gathered once for one pass; 0 where they are not shared."""
        if self.options.kept not in ("fsdp", "hybrid"):
            return 0.0
        return math.fsum(self._ring_s(COMPUTE_BYTES * w, self.sharers(n), n) for w, n in self.parts)

    def _ring_s(self, size_bytes: float, sharers: int, copies: int) -> float:
        """An all-gather or reduce-scatter among ``sharers`` of ``copies`` GPUs: (n - 1) / n of the
        bytes leave each GPU. Rings begin at each of the sharers in a node and share its links, so
        that all bytes leave a node once (NCCL, one ring a network card)."""
        options, span = self.options, self._data_span
        if options.kept == "hybrid":
            span = min(span, options.gpus_per_node)
        near = max(1, options.gpus_per_node * copies // self._data_span)
        return gather_s(size_bytes, sharers, self.rate_bytes_per_s(span, min(near, sharers)))

    def exchange_s(self, microbatches: int) -> float:
        """Gradients of a step: reduce-scatters where states are shared (and with ``zero1`` a gather
        of the new weights), an all-reduce where not, and between the nodes of ``hybrid``."""
        options, total = self.options, 0.0
        for weights, copies in self.parts:
            size = options.exchange_bytes_per_parameter * weights
            shared = self.sharers(copies)
            times = microbatches if options.reduce_every_microbatch else 1
            if options.kept == "none":
                total += 2 * self._ring_s(size, copies, copies)
            elif options.kept in ("zero1", "zero2"):
                total += self._ring_s(size + COMPUTE_BYTES * weights, copies, copies)
            else:
                total += times * self._ring_s(size, shared, copies)
            if options.kept == "hybrid" and copies > shared:
                nodes, rate = copies // shared, self.rate_bytes_per_s(self._data_span)
                total += times * all_reduce_s(size / shared, nodes, rate)
        return total

    def talk_s(self, tokens: int) -> Talk:
        """Seconds of one microbatch's forward on one GPU."""
        options, model = self.options, self.model
        layers = model.layers / self.stages
        tensor, context = options.tensor_parallel, options.context_parallel
        here = tokens / options.sequence_split
        state_bytes = COMPUTE_BYTES * model.hidden
        attention = mlp = between = 0.0
        if tensor > 1:  # two all-reduces a layer, or as many halves (arXiv 2205.05198)
            rate, floor_s = self.rate_bytes_per_s(tensor), self.gpu.all_reduce_floor_s
            attention = mlp = layers * all_reduce_s(state_bytes * here, tensor, rate, floor_s)
            if options.weights == "lora" and options.backend == "megatron":
                # what adapters of row-parallel matrices make is gathered in whole, beside what the
                # matrices make (Megatron-Bridge, peft/utils.py: lin_out_gather_output)
                made = layers * gather_s(state_bytes * here, tensor, rate)
                attention += made
                mlp += made * model.dense_layers / model.layers
        if context > 1:  # keys and values of all the others (ring attention, arXiv 2310.01889)
            kv_bytes = COMPUTE_BYTES * model.kv_width / tensor
            rate = self.rate_bytes_per_s(tensor * context)
            keyed = model.attention_layers / self.stages
            attention += keyed * kv_bytes * here * (context - 1) / rate
        if options.sequence_parallel > 1:  # tokens for heads, and back (arXiv 2309.14509)
            sent = COMPUTE_BYTES * self._dealt_width / tensor * here
            group = options.sequence_split * tensor
            attention += model.attention_layers / self.stages * self._dealt_s(sent, group)
        if options.expert_parallel > 1:  # to the experts and back: k copies of a token
            sent = model.experts_per_token * state_bytes * here / tensor * self.busiest
            mlp += 2 * model.sparse_layers / self.stages * self._all_to_all_s(sent)
        if self.stages > 1:
            sent = self.stream_copies * state_bytes * here / tensor * options.virtual_stages
            between = sent / self.rate_bytes_per_s(self.gpus)
        return Talk(attention, mlp, between)

    @property
    def _dealt_width(self) -> float:
        """Elements of a token's queries, keys, values and outputs in a layer; keys and values are
        repeated where a sequence parallel group has more GPUs than they have heads."""
        model = self.model
        parts = self.options.sequence_parallel * self.options.tensor_parallel
        return 2 * model.heads * model.head_dim + model.kv_width * max(1, parts / model.kv_heads)

    def _dealt_s(self, sent_bytes: float, span: int) -> float:
        """What a GPU sends to its sequence parallel group, over ``span`` neighbouring GPUs."""
        parts = self.options.sequence_parallel
        return gather_s(sent_bytes, parts, self.rate_bytes_per_s(span))

    def _all_to_all_s(self, sent_bytes: float) -> float:
        """What a GPU sends to an expert parallel group or gets from it, alike from each: within its
        node and beyond it."""
        experts, node = self.options.expert_parallel, self.options.gpus_per_node
        near = min(experts, node)
        near_s = sent_bytes * (near - 1) / experts / self.rate_bytes_per_s(near)
        return near_s + sent_bytes * (experts - near) / experts / self.rate_bytes_per_s(experts)

    # --- the pipeline ---

    def stage_s(self, layers_s: float, head_s: float) -> float:
        """The slowest stage of a pass over one microbatch that takes ``layers_s`` in all layers and
        ``head_s`` in the LM head, which the last stage has beside its layers."""
        if self.stages == 1:
            return layers_s + head_s
        parts = self.stages * self.options.virtual_stages
        fullest = self.options.virtual_stages * math.ceil(self.model.layers / parts)
        last = self.options.virtual_stages * (self.model.layers // parts)
        each_s = layers_s / self.model.layers
        return max(fullest * each_s, last * each_s + head_s)

    def bubble(self, microbatches: int) -> float:
        """Time that a stage idles, over the time of one microbatch: (p - 1) / v, forward and
        backward alike (arXiv 2104.04473, section 2.2)."""
        return (self.stages - 1) / self.options.virtual_stages if microbatches else 0.0

    def stalls(self, seconds: Sequence[float]) -> float:
        """How many times as long a stage takes as its microbatches, which take so many seconds in
        this order: p stages hold p of them in a row, and none sends before the next one receives,
        so that all wait for the longest."""
        if self.stages == 1 or not seconds:
            return 1.0
        rows = (seconds[max(0, end - self.stages) : end] for end in range(1, len(seconds) + 1))
        return math.fsum(map(max, rows)) / math.fsum(seconds)


def gather_s(size_bytes: float, gpus: int, bytes_per_s: float) -> float:
    """An all-gather to ``size_bytes``, or a reduce-scatter: (n - 1) / n of them leave each GPU."""
    return size_bytes * (gpus - 1) / gpus / bytes_per_s


def all_reduce_s(size_bytes: float, gpus: int, bytes_per_s: float, floor_s: float = 0.0) -> float:
    """An all-reduce of ``size_bytes``, a reduce-scatter and an all-gather, after ``floor_s``."""
    return floor_s + 2 * gather_s(size_bytes, gpus, bytes_per_s)
