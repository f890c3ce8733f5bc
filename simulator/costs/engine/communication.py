"""What the GPUs of a replica send each other in an iteration, in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.precision import formats

# All-to-all of experts, decoding: DeepEP's low-latency kernels. Inside a node the tables of
# aiconfigurator 0.12.0 on H100 (5 widths, 1 to 1,024 tokens a GPU): every second row gives 11.4
# us and 0.48 to 0.52 of NVLink, the others are met within 7 % (combine) and 14 % (dispatch); H200
# 10 us and 0.49 to 0.53, B200 18 us and 0.48 to 0.64. Between nodes DeepEP's own table on H800,
# EP 16 and 256; EP 32 to 128 are met within 9 %.
ALL_TO_ALL_FLOOR_S = 11.4e-6
NETWORK_FLOOR_S = 20e-6
NETWORK_SHARE = 0.82  # of the network's peak
ACTIVATION_BYTES = 2.0
# Large all-reduces (prompts) go by another algorithm, slower to begin and faster to end: NCCL's
# tables of the A100, 2 to 8 GPUs, 16 MiB to 256 MiB. Those of the H100 are met within 5 % for 2
# GPUs and 13 % for 4; of 8, whose switches add up, 30 % faster.
LARGE_FLOOR_S = 70e-6
LARGE_SHARE = 0.75  # of NVLink
NVLINK_BYTES_PER_S = 64e9  # more than a PCIe slot, over which no algorithm is faster


@dataclass(frozen=True)
class Exchange:
    """Messages between the GPUs of ``layout``, which share ``model``.

    Tensor parallelism has two all-reduces of the hidden states a layer, 2 (n - 1) / n of their
    bytes each, by the faster of two algorithms; whole experts change nothing of that, since every
    GPU sees every token. With ``data_parallel_attention`` attention needs none. What follows it
    then gathers the tokens of all GPUs and scatters the sums, the bytes of one all-reduce; or, with
    ``expert_parallel`` too, sparse layers have an all-to-all of their own: each token goes to the
    GPUs of its experts, in 8 bit where their weights have no more, and comes back in 16 bit. Every
    expert's copy is sent, as kernels for decoding do; those for prompts send less. Nothing is taken
    to be hidden behind computation. The GPU with most tokens decides, ``busiest`` times the mean.

    Stages of a pipeline send the hidden states on.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout

    @cached_property
    def _algorithms(self) -> tuple[tuple[float, float], ...]:
        """(seconds, seconds a byte that each GPU sends) of a collective of one stage."""
        gpu, layout = self.gpu, self.layout
        link = gpu.link_bytes_per_s(layout.tensor_parallel)
        rate = link * gpu.interconnect_efficiency
        if layout.tensor_parallel > layout.gpus_per_node:
            rate = min(rate, NETWORK_SHARE * layout.network_bytes_per_s)
            return ((gpu.all_reduce_floor_s + NETWORK_FLOOR_S, 1 / rate),)
        small = (gpu.all_reduce_floor_s, 1 / rate)
        if link <= NVLINK_BYTES_PER_S or gpu.interconnect_efficiency >= LARGE_SHARE:
            return (small,)
        return small, (max(LARGE_FLOOR_S, gpu.all_reduce_floor_s), 1 / (LARGE_SHARE * link))

    @cached_property
    def _all_reduces(self) -> tuple[tuple[float, float], ...]:
        """(seconds, seconds a token) of all layers' all-reduces and what stands for them, by each
        algorithm."""
        n, model, layout = self.layout.tensor_parallel, self.model, self.layout
        sent = 2 * (n - 1) / n * ACTIVATION_BYTES * model.hidden
        floors = shares = 2 * model.layers
        if layout.data_parallel_attention:
            layers = model.layers - (model.sparse_layers if layout.expert_parallel else 0)
            floors, shares = 2 * layers, layers
        return tuple((floors * floor_s, shares * sent * s) for floor_s, s in self._algorithms)

    @cached_property
    def _all_to_all(self) -> tuple[float, float]:
        """The same of dispatching tokens to experts and combining what comes back."""
        n, model, layout = self.layout.tensor_parallel, self.model, self.layout
        if not (layout.data_parallel_attention and layout.expert_parallel):
            return 0.0, 0.0
        sent = 2.0 if formats()[model.parts.experts].product == "bf16" else 1.0
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
    def _laws(self) -> tuple[float, ...]:
        """Seconds and seconds a token: of either algorithm (the same twice, where there is one),
        and of the all-to-all."""
        reduces = self._all_reduces
        return (*reduces[0], *reduces[-1], *self._all_to_all)

    def layers_s(self, tokens: float, busiest: float = 1.0) -> float:
        """Messages of all layers for ``tokens`` tokens."""
        if self.layout.tensor_parallel == 1:
            return 0.0
        small_s, small, large_s, large, fixed_s, copies_s = self._laws
        seconds, other = small_s + tokens * small, large_s + tokens * large
        if other < seconds:
            seconds = other
        return seconds + fixed_s + tokens * busiest * copies_s

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
