"""Matrix products of a forward pass on one GPU of a replica, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.model_options import FormatName, formats
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.costs.presets.routing import busiest_share

_F = figures("products")
FEWEST_ROWS: int = _F.fewest_rows  # an iteration asks often for these two
GROUPED_ROWS: int = _F.grouped_rows


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
    """Matrix products of one stage of a replica, each part in its precision.

    A routed expert is a product of its own: the experts that the tokens reach are read
    (:meth:`Model.experts_touched`), as many rows as it has tokens are added to each, at least
    ``fewest_rows`` and at most ``grouped_rows``, and the product reaches ``grouped_share`` of what
    a single one does, less where its experts are narrow (``narrow_width``). With
    ``expert_parallel`` the busiest GPU decides: its load is that of ``experts / gpus`` experts of
    the model's skew, and the largest of ``gpus`` such loads lies about sqrt(2 ln gpus) deviations
    above their mean.
    With ``data_parallel_attention`` each GPU reads the weights of attention whole, for its own
    rollouts.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout

    def _rates(self, name: FormatName) -> tuple[float, float]:
        """Bytes and flop a second that all GPUs reach."""
        gpu, gpus, kind = self.gpu, self.layout.tensor_parallel, formats()[name].product
        read = gpus * gpu.bandwidth_bytes_per_s * gpu.gemm_bandwidth_efficiency
        flop = gpus * gpu.bf16_flop_per_s * gpu.gemm_flop_efficiency
        if kind == "bf16" or self.model.weight_bytes_per_parameter is not None:
            return read, flop
        if kind == "fp8" and gpu.fp8_flop_per_s:
            fp8 = gpus * gpu.fp8_flop_per_s * gpu.gemm_flop_efficiency * _F.fp8_flop_share
            return read * _F.fp8_read_share, fp8
        if kind == "fp4" and gpu.fp4_flop_per_s:
            fp4 = gpus * gpu.fp4_flop_per_s * gpu.gemm_flop_efficiency * _F.fp4_flop_share
            return read * _F.fp4_read_share, fp4
        return read * _F.fp8_read_share, flop * _F.weight_only_share

    def _matrices(
        self, name: FormatName, read: float, flop: float, least_s: float = 0.0
    ) -> _Matrices:
        return _Matrices(read, flop, self.model.bytes_of(name), *self._rates(name), least_s)

    @cached_property
    def _shared(self) -> tuple[_Matrices, ...]:
        """What every token multiplies in the layers, by format."""
        model, parts, copies = self.model, self.model.parts, self.layout.tensor_parallel - 1
        attention, latent = model.attention_parameters, model.replicated_parameters
        routers = model.router_parameters
        by_format: dict[FormatName, tuple[int, int, float]] = {}
        apart = self.layout.data_parallel_attention
        half_s = _F.layer_products_s / 2 * model.dense_layers
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
        model, gpus = self.model, self.layout.tensor_parallel
        if not self.layout.expert_parallel or gpus == 1:
            return 1.0
        return busiest_share(model.experts, gpus, model.routing_skew)

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
            read /= _F.fp8_read_share
        width = model.moe_intermediate / (
            1 if self.layout.expert_parallel else self.layout.tensor_parallel
        )
        share = _F.grouped_share * width / (width + _F.narrow_width)
        row_s = 2.0 * weights / (flop * share)
        return (
            weights * model.bytes_of(name) / read,
            row_s,
            model.sparse_layers * _F.mixture_layer_s,
        )

    def layers_s(self, tokens: float) -> float:
        """The layers' matrix products over ``tokens`` tokens."""
        seconds = 0.0
        for matrices in self._shared:
            seconds += matrices.seconds(tokens)
        if self.model.experts:
            seconds += self._experts_s(tokens)
        return seconds

    def tower_s(self, prompt_tokens: float) -> float:
        """The vision tower over the images of ``prompt_tokens``, split over the GPUs."""
        return prompt_tokens * self.model.vision_flop_per_prompt_token / self._rates("bf16")[1]

    def head_s(self, rollouts: float) -> float:
        """The LM head for ``rollouts`` positions."""
        return self._head.seconds(rollouts)
