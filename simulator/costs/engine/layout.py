"""How the GPUs of a replica share a model."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollcast.simulator.costs.presets.provenance import figures

NODE_GPUS = 8


@dataclass(frozen=True)
class EngineLayout:
    """``pipeline_parallel`` stages, each of ``tensor_parallel`` GPUs.

    expert_parallel: each GPU of a stage holds whole experts rather than a slice of each.
    data_parallel_attention: each holds all of attention, and the KV of its own rollouts.
    gpus_per_node: GPUs joined by the interconnect; beyond it each has ``network_bytes_per_s``, and
    a message waits ``network_floor_s`` more, a collective of n nodes log2(n) times that.
    """

    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    data_parallel_attention: bool = False
    gpus_per_node: int = NODE_GPUS
    network_bytes_per_s: float = figures("roofline").network_bytes_per_s
    network_floor_s: float = figures("roofline").network_floor_s

    @property
    def gpus(self) -> int:
        """Of the replica."""
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def far_hops(self) -> int:
        """Of the messages from stage to stage, and from the last to the first, those that cross
        nodes."""
        nodes = math.ceil(self.gpus / self.gpus_per_node)
        return 0 if nodes == 1 else min(nodes, self.pipeline_parallel)

    @property
    def stage_nodes_share(self) -> float:
        """Of the other GPUs of a stage, those that are on other nodes."""
        gpus = self.tensor_parallel
        return max(0, gpus - self.gpus_per_node) / max(1, gpus - 1)
