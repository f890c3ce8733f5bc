"""A ledger of memory: bytes of each part on one GPU, by phase of a step and by who holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

MemoryPhase = Literal[
    "start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"
]
MEMORY_PHASES: tuple[MemoryPhase, ...] = (
    *("start", "generation", "switch", "log_prob", "update", "optimizer_step", "sync"),
)
MemoryPart = Literal[
    "weights",  # as the engine or the passes read them, kept between phases
    "master_weights",  # of the optimiser, beside those
    "gradients",
    "optimizer",  # its states, and what its step needs for a while
    "gathered_weights",  # whole layers and the LM head, while they are at work
    "activations",
    "logits",
    "kv_pool",
    "graphs",  # captured CUDA graphs
    "reserve",  # the engine's workspace and activations
    "communication",  # buffers of collectives
    "context",  # CUDA's own, and libraries'
    "fragmentation",  # reserved by the allocator, in use by nobody
]


@dataclass(frozen=True, slots=True)
class Holding:
    """What one role holds on each GPU of a pool in a phase. role: trainer, engine, critic,
    reference or reward. bytes: by `MemoryPart`, those at 0 left out."""

    phase: MemoryPhase
    role: str
    pool: str
    bytes: Mapping[str, float]

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return math.fsum(self.bytes.values())


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs that hold the same. name: colocated, trainer, engine, critic, reference or reward."""

    name: str
    gpu: str
    gpus: int
    capacity_bytes: float


class Peak(NamedTuple):
    """The phase and pool that come closest to their capacity. role: who holds most there beyond
    what it holds between phases. part: the largest part of that role."""

    phase: MemoryPhase
    role: str
    part: str
    pool: str
    bytes: float
    capacity_bytes: float

    @property
    def left_bytes(self) -> float:
        """What remains; negative where it does not fit."""
        return self.capacity_bytes - self.bytes
