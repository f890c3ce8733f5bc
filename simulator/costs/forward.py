"""Parts of a forward pass on one GPU of a replica, in seconds: matrix products and attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.costs.base import Iteration
from simulator.costs.hardware import Gpu
from simulator.costs.models import Model
from simulator.costs.precision import FORMATS, FormatName

# Measured in aiconfigurator 0.12.0 (vLLM, SGLang and TensorRT-LLM tables of H100, H200 and L40S;
# sides of 4,096 to 28,672), each relative to what 16 bit products of the same GPU reach.
FP8_READ_SHARE = 0.85  # of bandwidth, at 1 to 64 tokens: 0.64 to 1.0
FP8_FLOP_SHARE = 0.78  # of the fp8 peak, at 1,024 to 8,192 tokens: 0.67 to 0.88
WEIGHT_ONLY_SHARE = 0.75  # of the 16 bit peak: 8 bit weights at 1,024 to 8,192 tokens, 0.68 to 0.73
# NVFP4 of the same tables on B200. Not used: GB200, B300, GB300 and RTX PRO 6000 Server Edition.
FP4_READ_SHARE = 0.53  # 0.32 to 0.55 by engine; the others 0.33 to 0.64
FP4_FLOP_SHARE = 0.67  # of the fp4 peak: 0.62 to 0.69; GB200 0.58 to 0.66, Blackwell Ultra 0.40 to
# 0.43 (its higher peak is not reached), RTX PRO 6000 0.83 to 0.89
# Grouped products: of four pairs the one that meets Qwen3-30B-A3B's prefill on one GPU in those
# tables and the calibration half of TensorRT-LLM's Mixtral best. Not used: two GPUs, and the other
# half, which it meets better than 0.7 at any width (H100 fp8 8.9 % for 9.2 %).
GROUPED_SHARE = 0.75  # of what a product of all tokens at once reaches, by wide experts
NARROW_WIDTH = 200  # width of an expert on one GPU at which it reaches half of that
GROUPED_ROWS = 64  # added to each expert's tokens: tiles that are not full
FEWEST_ROWS = 16  # of a tile, where an expert has no more tokens than that
# The least that the four products of a dense layer take: Qwen3-0.6B's decoding in those tables on
# H100 and B200. Not used: 1.7B, and 0.6B elsewhere (4 to 19 % off on average, 9 to 30 % without).
LAYER_PRODUCTS_S = 20e-6
MIXTURE_LAYER_S = 20e-6  # router, permutation and reduction at batch 1: 16 to 30 us


class _Matrices(NamedTuple):
    """Weights multiplied together: what a pass reads and computes of them, over all GPUs."""

    read_parameters: float
    flop_parameters: float
    bytes_per_parameter: float
    bytes_per_s: float
    flop_per_s: float
    least_s: float

    def seconds(self, tokens: float) -> float:
        """The longest of reading the weights once, computing ``tokens`` and the least."""
        read_s = self.read_parameters * self.bytes_per_parameter / self.bytes_per_s
        return max(read_s, 2.0 * self.flop_parameters * tokens / self.flop_per_s, self.least_s)


@dataclass(frozen=True)
class Products:
    """Matrix products of a replica of ``gpus`` GPUs, each part in its precision.

    A routed expert is a product of its own: the experts that the tokens reach are read
    (:meth:`Model.experts_touched`), as many rows as it has tokens are added to each, at least
    ``FEWEST_ROWS`` and at most ``GROUPED_ROWS``, and the product reaches ``GROUPED_SHARE`` of what
    a single one does, less where its experts are narrow (``NARROW_WIDTH``). With
    ``expert_parallel`` the busiest GPU decides: its load is that of ``experts / gpus`` experts of
    the model's skew, and the largest of ``gpus`` such loads lies about sqrt(2 ln gpus) deviations
    above their mean.
    With ``data_parallel_attention`` each GPU reads the weights of attention whole, for its own
    rollouts.
    """

    model: Model
    gpu: Gpu
    gpus: int
    expert_parallel: bool = False
    data_parallel_attention: bool = False

    def _rates(self, name: FormatName) -> tuple[float, float]:
        """Bytes and flop a second that all GPUs reach."""
        gpu, gpus, kind = self.gpu, self.gpus, FORMATS[name].product
        read = gpus * gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency
        flop = gpus * gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency
        if kind == "bf16" or self.model.weight_bytes_per_parameter is not None:
            return read, flop
        if kind == "fp8" and gpu.fp8_flop_per_s:
            fp8 = gpus * gpu.fp8_flop_per_s * gpu.gemm_flop_efficiency * FP8_FLOP_SHARE
            return read * FP8_READ_SHARE, fp8
        if kind == "fp4" and gpu.fp4_flop_per_s:
            fp4 = gpus * gpu.fp4_flop_per_s * gpu.gemm_flop_efficiency * FP4_FLOP_SHARE
            return read * FP4_READ_SHARE, fp4
        return read * FP8_READ_SHARE, flop * WEIGHT_ONLY_SHARE

    def _matrices(
        self, name: FormatName, read: float, flop: float, least_s: float = 0.0
    ) -> _Matrices:
        return _Matrices(read, flop, self.model.bytes_of(name), *self._rates(name), least_s)

    @cached_property
    def _shared(self) -> tuple[_Matrices, ...]:
        """What every token multiplies in the layers, by format."""
        model, parts, copies = self.model, self.model.parts, self.gpus - 1
        attention, latent = model.attention_parameters, model.replicated_parameters
        routers = model.router_parameters
        by_format: dict[FormatName, tuple[int, int, float]] = {}
        apart = self.data_parallel_attention
        half_s = LAYER_PRODUCTS_S / 2 * (model.layers - model.sparse_layers)
        for name, read, flop, least_s in (
            (
                parts.attention,
                attention + copies * (attention if apart else latent),
                attention + copies * (0 if apart else latent),
                half_s,
            ),
            (parts.mlp, *2 * (model.dense_mlp_parameters - routers,), half_s),
            (parts.router, *2 * (routers,), 0.0),
        ):
            so_far = by_format.get(name, (0, 0, 0.0))
            by_format[name] = (so_far[0] + read, so_far[1] + flop, so_far[2] + least_s)
        return tuple(self._matrices(name, *sums) for name, sums in by_format.items())

    @cached_property
    def _head(self) -> _Matrices:
        weights = self.model.head_parameters
        return self._matrices(self.model.parts.head, weights, weights)

    @cached_property
    def _imbalance(self) -> float:
        """Load of the busiest GPU over the mean."""
        model, gpus = self.model, self.gpus
        if not self.expert_parallel or gpus == 1:
            return 1.0
        deviation = model.routing_skew / math.sqrt(max(1.0, model.experts / gpus))
        return 1.0 + deviation * math.sqrt(2 * math.log(gpus))

    def _experts_s(self, tokens: float) -> float:
        """Routed experts of all sparse layers, and what a layer with experts takes beside them."""
        model = self.model
        read_s, row_s, layers_s = self._routed
        touched, busiest = model.experts_touched(tokens), self._imbalance
        rows = model.experts_per_token * tokens * busiest
        rows += min(max(rows, touched * FEWEST_ROWS), touched * GROUPED_ROWS)
        return max(min(model.experts, touched * busiest) * read_s, rows * row_s) + layers_s

    @cached_property
    def _routed(self) -> tuple[float, float, float]:
        """Seconds of reading one expert of every sparse layer, of one row of it, and beside."""
        model, name = self.model, self.model.parts.experts
        weights = model.sparse_layers * model.expert_parameters
        read, flop = self._rates(name)
        if FORMATS[name].product != "bf16" and model.weight_bytes_per_parameter is None:
            read /= FP8_READ_SHARE
        width = model.moe_intermediate / (1 if self.expert_parallel else self.gpus)
        share = GROUPED_SHARE * width / (width + NARROW_WIDTH)
        row_s = 2.0 * weights / (flop * share)
        return weights * model.bytes_of(name) / read, row_s, model.sparse_layers * MIXTURE_LAYER_S

    def layers_s(self, tokens: float) -> float:
        """The layers' matrix products over ``tokens`` tokens."""
        seconds = 0.0
        for matrices in self._shared:
            seconds += matrices.seconds(tokens)
        if self.model.experts:
            seconds += self._experts_s(tokens)
        return seconds

    def head_s(self, rollouts: float) -> float:
        """The LM head for ``rollouts`` positions."""
        return self._head.seconds(rollouts)


Piece = tuple[int, float, float]


@dataclass(frozen=True)
class Attention:
    """Attention scores of a replica of ``gpus`` GPUs.

    Decoding takes the longer of reading the KV cache and multiplying it; the latter only where MLA
    shares one latent vector among many heads, or where a rollout has several ``queries`` at once
    (drafted tokens that are verified), which read the cache together. Layers with a window see no
    more than it of each rollout. Which rollout has how much of the context is not known here, so
    each counts as having ``context / rollouts`` tokens: exact for equal ones, and an upper bound
    for others, since the time is concave in the tokens of a rollout.

    With ``data_parallel`` each GPU has rollouts of its own, dealt evenly, and the others wait for
    the one that has most of them: with one rollout left, all wait for its GPU.
    """

    model: Model
    gpu: Gpu
    gpus: int
    data_parallel: bool = False
    queries: int = 1

    @cached_property
    def _shards(self) -> int:
        return self.gpus if self.data_parallel else self.model.kv_shards(self.gpus)

    @cached_property
    def _rate(self) -> float:
        return self.gpu.bandwidth_bytes_per_s * self.gpu.decode_attention_bandwidth_efficiency

    @cached_property
    def _flop_rate(self) -> float:
        gpu = self.gpu
        return self.gpus * gpu.bf16_flop_per_s * gpu.prefill_attention_flop_efficiency

    @cached_property
    def token_s(self) -> float:
        """One token of context within the window, of all layers."""
        model = self.model
        read_s = model.kv_bytes_per_token / (self._shards * self._rate)
        if not model.kv_lora_rank and self.queries == 1:
            return read_s
        flop = self.queries * model.attention_layers * model.absorbed_flop_per_layer
        return max(read_s, flop / self._flop_rate)

    @cached_property
    def _full_token_s(self) -> float:
        """The same beyond the window, of the layers that have none."""
        model = self.model
        return self.token_s * (model.full_layers / max(1, model.attention_layers))

    @cached_property
    def state_s(self) -> float:
        """Reading and writing the states of one rollout's linear layers."""
        return 2 * self.model.state_bytes / (self.gpus * self._rate)

    def busiest(self, rollouts: int) -> float:
        """Load of the GPU with most of ``rollouts`` over the mean."""
        if not self.data_parallel or not rollouts:
            return 1.0
        return math.ceil(rollouts / self.gpus) * self.gpus / rollouts

    def decode_s(self, context_tokens: int, rollouts: int) -> float:
        """``rollouts`` that decode, with ``context_tokens`` in all."""
        seconds = self._read_s(context_tokens, rollouts)
        return seconds * self.busiest(rollouts) if self.data_parallel else seconds

    def pieces(self, rollouts: int) -> list[Piece]:
        """:meth:`decode_s` as the pieces of a curve."""
        token_s = self.token_s * self.busiest(rollouts)
        pieces = [(0, 0.0, token_s)]
        if self.model.windowed_layers:
            start = rollouts * self.model.window_tokens
            full_s = self._full_token_s * self.busiest(rollouts)
            pieces.append((start, start * token_s, full_s))
        return pieces

    @cached_property
    def _pair_flop(self) -> int:
        return self.model.attention_flop_per_pair

    def prefill_s(self, work: Iteration) -> float:
        """Prompts: the longer of the pairs at peak compute and reading their KV. They are taken to
        be dealt evenly to the GPUs."""
        model = self.model
        pairs, context = work.prefill_pairs, work.prefill_context_tokens
        flop: float = pairs * self._pair_flop
        if model.windowed_layers:
            seen = min(pairs, work.prefill_tokens * model.window_tokens)
            layers = model.full_layers * pairs + model.windowed_layers * seen
            flop = layers * model.attention_flop_per_layer
        return max(flop / self._flop_rate, self._read_s(context, work.prefill_rollouts))

    def _read_s(self, context_tokens: int, rollouts: int) -> float:
        """The KV of ``rollouts`` read once, dealt evenly."""
        if not self.model.windowed_layers:
            return context_tokens * self.token_s
        seen = min(context_tokens, rollouts * self.model.window_tokens)
        return seen * self.token_s + (context_tokens - seen) * self._full_token_s


def at_least(pieces: list[Piece], least_s: float) -> list[Piece]:
    """The pieces of the larger of a rising curve and ``least_s``."""
    for number, (start, base_s, slope) in enumerate(pieces):
        until = pieces[number + 1][0] if number + 1 < len(pieces) else None
        flat_until = start
        if base_s < least_s:
            flat_until = start + math.ceil((least_s - base_s) / slope) if slope else start
            if not slope or (until is not None and flat_until >= until):
                continue
        if flat_until <= 0:
            return pieces
        rest = [(flat_until, base_s + slope * (flat_until - start), slope), *pieces[number + 1 :]]
        return [(0, least_s, 0.0), *rest]
    return [(0, least_s, 0.0)]


def plus(first: list[Piece], second: list[Piece]) -> list[Piece]:
    """The sum of two curves."""
    starts = sorted({start for start, _, _ in (*first, *second)})
    found = []
    for start in starts:
        (one_s, one), (other_s, other) = _at(first, start), _at(second, start)
        found.append((start, one_s + other_s, one + other))
    return found


def _at(pieces: list[Piece], context: int) -> tuple[float, float]:
    """A curve's value and slope from ``context`` on."""
    start, base_s, slope = next(p for p in reversed(pieces) if p[0] <= context)
    return base_s + slope * (context - start), slope


def scaled(pieces: list[Piece], factor: float, extra_s: float = 0.0) -> list[Piece]:
    """``extra_s`` more than a curve, ``factor`` times that."""
    return [(start, (base_s + extra_s) * factor, slope * factor) for start, base_s, slope in pieces]
