"""How long a colocated engine takes to sleep and to wake.

Fitted to phases published as sleep and wake alone: vLLM 0.11 on A100 (blog.vllm.ai, sleep mode,
2025-10-26), which keep the weights in host memory: Qwen3-0.6B, Qwen3-Coder-30B on one GPU and
Qwen3-235B-A22B in 8 bits on four. Phi-3-vision on one is held out, and Qwen3-8B with adapters.
"""

from __future__ import annotations

import math
from typing import Literal

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import figures

Sleep = Literal["offload", "discard", "none"]


def engine_switch_s(model: Model, gpu: Gpu, tensor_parallel: int, level: Sleep) -> float:
    """Seconds that one replica's engine takes to sleep, and again to wake.

    ``offload`` moves the weights to host memory and back, at a rate that grows with the square root
    of the replica's GPUs, which share that memory. ``discard`` drops them: the next sync brings new
    ones, so only the KV pool is unmapped and mapped. With ``none`` the engine stays awake.
    """
    if level == "none":
        return 0.0
    sleep = figures("sleep")
    fixed_s: float = sleep.fixed_s
    if level == "discard":
        return fixed_s
    rate: float = sleep.link_share * gpu.host_link_bytes_per_s * math.sqrt(tensor_parallel)
    return fixed_s + model.weight_bytes / rate
