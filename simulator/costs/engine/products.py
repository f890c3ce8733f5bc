"""Matrix products of a forward pass on one GPU of a replica, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.precision import FormatName, formats

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
        gpu, gpus, kind = self.gpu, self.gpus, formats()[name].product
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
        if formats()[name].product != "bf16" and model.weight_bytes_per_parameter is None:
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
