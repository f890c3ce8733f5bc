"""What the GPUs of a replica send each other in an iteration, in seconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from rollcast.simulator.costs.engine.layout import EngineLayout
from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.model_options import formats
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures

ACTIVATION_BYTES = 2.0
_F = figures("messages")


@dataclass(frozen=True)
class Exchange:
    """Messages between the GPUs of ``layout``; nothing is hidden behind computation.

    Tensor parallelism has two all-reduces of the hidden states a layer, 2 (n - 1) / n of their
    bytes each, by the faster of two algorithms. With ``data_parallel_attention`` attention needs
    none: what follows it gathers the tokens of all GPUs and scatters the sums, the bytes of one
    all-reduce; or, with ``expert_parallel`` too, sparse layers have an all-to-all: each token goes
    to the GPUs of its experts, in 8 bit where their weights have no more, and comes back in 16 bit.
    Every expert's copy is sent, as kernels for decoding do. The GPU with most tokens decides,
    ``busiest`` times the mean. Stages of a pipeline send the hidden states on.

    Where a stage spans nodes, a ring's bytes cross the network once a node, by the links of all its
    GPUs together; and each collective waits for the network too, once for each level of a tree of
    nodes (NCCL, src/graph/tuning.cc). Hosts that share NVLink (NVL72) are such a tree, too.
    """

    model: Model
    gpu: Gpu
    layout: EngineLayout

    @cached_property
    def _algorithms(self) -> tuple[tuple[float, float], ...]:
        """(seconds, seconds a byte that each GPU sends) of a collective of one stage."""
        gpu, layout = self.gpu, self.layout
        inside = min(layout.tensor_parallel, layout.gpus_per_node)
        link = gpu.link_bytes_per_s(inside)
        rails, far_s = math.inf, 0.0
        if gpu.grace and inside > _F.grace_host_gpus:
            far_s = _F.host_level_s * math.log2(inside / _F.grace_host_gpus)
        if layout.tensor_parallel > layout.gpus_per_node:
            rails = _F.network_share * layout.network_bytes_per_s * inside
            nodes = layout.tensor_parallel / layout.gpus_per_node
            far_s += layout.network_floor_s * max(1.0, math.log2(nodes))
        floor_s, rate = gpu.all_reduce_floor_s, link * gpu.interconnect_efficiency
        small = (floor_s + far_s, 1 / min(rate, rails))
        if link <= _F.nvlink_bytes_per_s or gpu.interconnect_efficiency >= _F.large_share:
            return (small,)
        large_s = max(_F.large_floor_s, floor_s)
        return small, (large_s + far_s, 1 / min(_F.large_share * link, rails))

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
        far_s = far / (_F.network_share * layout.network_bytes_per_s)
        floor_s = _F.all_to_all_far_floor_s if far else _F.all_to_all_floor_s
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

    def hops_s(self, tokens: float) -> float:
        """The hidden states of ``tokens`` from each stage of a pipeline to the next, and back to
        the first; each GPU sends its slice of them. One hop a node crosses the network."""
        gpu, layout = self.gpu, self.layout
        inside = min(layout.gpus, layout.gpus_per_node)
        rate = gpu.link_bytes_per_s(inside) * gpu.interconnect_efficiency
        far_rate: float = min(rate, _F.network_share * layout.network_bytes_per_s)
        sent = ACTIVATION_BYTES * self.model.hidden * tokens / layout.tensor_parallel
        far = layout.far_hops
        near_s = (layout.pipeline_parallel - far) * sent / rate
        far_s = far * (layout.network_floor_s + sent / far_rate)
        return layout.pipeline_parallel * gpu.all_reduce_floor_s + near_s + far_s
