"""What the GPUs of a replica send each other in an iteration, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from simulator.costs.engine_layout import EngineLayout
from simulator.costs.hardware import Gpu
from simulator.costs.models import Model
from simulator.costs.precision import FORMATS

# All-to-all of experts, decoding: DeepEP's low-latency kernels. Inside a node the tables of
# aiconfigurator 0.12.0 on H100 (5 widths, 1 to 1,024 tokens a GPU): every second row gives 11.4
# us and 0.48 to 0.52 of NVLink, the others are met within 7 % (combine) and 14 % (dispatch); H200
# 10 us and 0.49 to 0.53, B200 18 us and 0.48 to 0.64. Between nodes DeepEP's own table on H800,
# EP 16 and 256; EP 32 to 128 are met within 9 %.
ALL_TO_ALL_FLOOR_S = 11.4e-6
NETWORK_FLOOR_S = 20e-6
NETWORK_SHARE = 0.82  # of the network's peak
ACTIVATION_BYTES = 2.0


@dataclass(frozen=True)
class Exchange:
    """Messages between the GPUs of ``layout``, which share ``model``.

    Tensor parallelism has two all-reduces of the hidden states a layer, 2 (n - 1) / n of their
    bytes each; whole experts change nothing of that, since every GPU sees every token. With
    ``data_parallel_attention`` attention needs none. What follows it then gathers the tokens of
    all GPUs and scatters the sums, the bytes of one all-reduce; or, with ``expert_parallel`` too,
    sparse layers have an all-to-all of their own: each token goes to the GPUs of its experts, in
    8 bit where their weights have no more, and comes back in 16 bit. Every expert's copy is sent,
    as kernels for decoding do; those for prompts send less. Nothing is taken to be hidden behind
    computation. The GPU with most tokens decides, ``busiest`` times the mean.

    Stages of a pipeline send the hidden states on.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout

    @cached_property
    def _link(self) -> tuple[float, float]:
        """(bytes a second, floor) of a collective of one stage."""
        gpu, layout = self.gpu, self.layout
        rate = gpu.link_bytes_per_s(layout.tensor_parallel) * gpu.interconnect_efficiency
        if layout.tensor_parallel > layout.gpus_per_node:
            network = NETWORK_SHARE * layout.network_bytes_per_s
            return min(rate, network), gpu.all_reduce_floor_s + NETWORK_FLOOR_S
        return rate, gpu.all_reduce_floor_s

    @cached_property
    def _all_reduces(self) -> tuple[float, float]:
        """(seconds, seconds a token) of the all-reduces and what stands for them."""
        n, model, layout = self.layout.tensor_parallel, self.model, self.layout
        rate, floor_s = self._link
        token_s = 2 * (n - 1) / n * ACTIVATION_BYTES * model.hidden / rate
        if not layout.data_parallel_attention:
            return 2 * model.layers * floor_s, 2 * model.layers * token_s
        layers = model.layers - (model.sparse_layers if layout.expert_parallel else 0)
        return 2 * layers * floor_s, layers * token_s

    @cached_property
    def _all_to_all(self) -> tuple[float, float]:
        """The same of dispatching tokens to experts and combining what comes back."""
        n, model, layout = self.layout.tensor_parallel, self.model, self.layout
        if not (layout.data_parallel_attention and layout.expert_parallel):
            return 0.0, 0.0
        sent = 2.0 if FORMATS[model.parts.experts].product == "bf16" else 1.0
        copies_bytes = model.experts_per_token * model.hidden * (sent + ACTIVATION_BYTES) / n
        far = layout.stage_nodes_share * (n - 1) / n
        near = (n - 1) / n - far
        gpu = self.gpu
        near_s = near / (gpu.link_bytes_per_s(n) * gpu.interconnect_efficiency)
        far_s = far / (NETWORK_SHARE * layout.network_bytes_per_s)
        floor_s = NETWORK_FLOOR_S if far else ALL_TO_ALL_FLOOR_S
        # Both ways run side by side.
        return (
            2 * model.sparse_layers * floor_s,
            model.sparse_layers * copies_bytes * max(near_s, far_s),
        )

    @cached_property
    def _parts(self) -> tuple[float, float, float]:
        """(seconds, seconds a token, seconds a token of the busiest GPU)."""
        if self.layout.tensor_parallel == 1:
            return 0.0, 0.0, 0.0
        (fixed, token_s), (all_to_all, copy_s) = self._all_reduces, self._all_to_all
        return fixed + all_to_all, token_s, copy_s

    @property
    def even_s(self) -> tuple[float, float]:
        """Seconds of the messages of all layers, and more for each token, of GPUs with as many."""
        fixed, token_s, copy_s = self._parts
        return fixed, token_s + copy_s

    def layers_s(self, tokens: float, busiest: float = 1.0) -> float:
        """Messages of all layers for ``tokens`` tokens."""
        fixed, token_s, copy_s = self._parts
        return fixed + tokens * (token_s + copy_s * busiest)

    def hop_s(self, tokens: float) -> float:
        """The hidden states of ``tokens`` from one stage of a pipeline to the next; each GPU sends
        its slice of them."""
        gpu, layout = self.gpu, self.layout
        rate, floor_s = gpu.link_bytes_per_s(layout.gpus) * gpu.interconnect_efficiency, 0.0
        if layout.gpus > layout.gpus_per_node:
            rate = min(rate, NETWORK_SHARE * layout.network_bytes_per_s)
            floor_s = NETWORK_FLOOR_S
        sent = ACTIVATION_BYTES * self.model.hidden * tokens / layout.tensor_parallel
        return gpu.all_reduce_floor_s + floor_s + sent / rate
