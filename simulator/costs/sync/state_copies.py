"""How fast a colocated trainer's states leave its GPUs for host memory, and come back.

Copies to pinned buffers run at the host link's rate. Stacks that call ``.to("cpu")`` tensor by
tensor get pageable memory, newly allocated each time, and an order of magnitude less; with
``non_blocking=True`` PyTorch allocates pinned memory instead (aten, ``_to_copy``).
"""

from __future__ import annotations

import math
from typing import Literal

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.provenance import figures, sources

StateCopies = Literal["pinned", "pageable", "pageable_weights"]
"""Of all states; ``pageable_weights``: of the weights that passes read, the others pinned."""


def copy_bytes_per_s(
    pinned: bool, gpu: Gpu, pinned_bytes_per_s: float = math.inf
) -> tuple[float, float]:
    """Bytes a second of one GPU: (to host memory, back)."""
    link, pageable = gpu.host_link_bytes_per_s, figures("trainer")
    if pinned:
        return min(link, pinned_bytes_per_s), min(link, pinned_bytes_per_s)
    return min(link, pageable.pageable_down_bytes_per_s), min(
        link, pageable.pageable_up_bytes_per_s
    )


MAPPED_BYTES = 32 * 2**20
"""Of a block for which glibc's malloc maps new memory each time (DEFAULT_MMAP_THRESHOLD_MAX)."""


def tensor_down_bytes_per_s(gpu: Gpu, new_share: float) -> float:
    """Bytes a second to memory that malloc gives for one tensor after the other, of which a share
    in blocks of more than `MAPPED_BYTES`, new ones."""
    down, trainer = copy_bytes_per_s(False, gpu)[0], figures("trainer")
    again: float = min(gpu.host_link_bytes_per_s, trainer.rewritten_down_bytes_per_s)
    return 1 / (new_share / down + (1 - new_share) / again)


def listed() -> str:
    """Where the rates are from, in words."""
    pinned = "offload_bytes_per_s, no more than the GPU's host link"
    return f"pinned: {pinned}; pageable: {sources('trainer')['pageable_down_bytes_per_s']}"
