"""How fast a colocated trainer's states leave its GPUs for host memory, and come back.

Copies to pinned buffers run at the host link's rate. Stacks that call ``.to("cpu")`` tensor by
tensor get pageable memory, newly allocated each time, and an order of magnitude less.
"""

from __future__ import annotations

import math
from typing import Literal

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.provenance import Provenance

StateCopies = Literal["pinned", "pageable"]

PAGEABLE_DOWN_BYTES_PER_S = 2.1e9
PAGEABLE_UP_BYTES_PER_S = 5.0e9
LOW, HIGH = 0.6, 1.6
PAGEABLE_SOURCE = Provenance(
    "measured",
    "to the host 1.8 GB/s on H100 (NeMo-RL issue 3976), 1.9 of torch_memory_saver (vime issue 442) "
    "and 2.8 on H200 (sglang pull request 32032), back 5.0 (vime); held out: what of NeMo-RL's "
    "colocated refits is no transfer, 22 s with Qwen3-235B on 64 GPUs and 8 to 10 s with "
    "Qwen3-30B-A3B on 16 (pull request 3294), forecast as 21 and 11 s",
)


def copy_bytes_per_s(
    how: StateCopies, gpu: Gpu, pinned_bytes_per_s: float = math.inf
) -> tuple[float, float]:
    """Bytes a second of one GPU: (to host memory, back)."""
    link = gpu.host_link_bytes_per_s
    if how == "pinned":
        return min(link, pinned_bytes_per_s), min(link, pinned_bytes_per_s)
    return min(link, PAGEABLE_DOWN_BYTES_PER_S), min(link, PAGEABLE_UP_BYTES_PER_S)


def listed() -> str:
    """Where the rates are from, in words."""
    pinned = "offload_bytes_per_s, no more than the GPU's host link"
    return f"pinned: {pinned}; pageable: {PAGEABLE_SOURCE}"
