"""What processes and the driver hold of a GPU beside tensors."""

from __future__ import annotations

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.provenance import figures

MULTICAST_BYTES_PER_S = 4e11  # a link of Hopper or later; NCCL's multicast needs its switches


def communicator_bytes(gpu: Gpu) -> float:
    """Buffers of one NCCL communicator on one of its GPUs, outside torch's allocator: more
    channels, and those of multicast, where links are faster."""
    known = figures("memory")
    fast = gpu.interconnect_bytes_per_s >= MULTICAST_BYTES_PER_S
    size: float = known.fast_communicator_bytes if fast else known.communicator_bytes
    return size


def usable_bytes(gpu: Gpu) -> float:
    """What CUDA says that a GPU has: all but what its driver reserves."""
    reserved: float = figures("memory").driver_bytes
    return max(gpu.memory_bytes / 2, gpu.memory_bytes - reserved)
