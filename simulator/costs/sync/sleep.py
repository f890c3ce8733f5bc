"""How long a colocated engine takes to sleep and to wake, by the bytes it moves.

Fitted to phases published as sleep and wake alone: vLLM 0.11 on A100 (blog.vllm.ai, sleep mode,
2025-10-26), which keep the weights in host memory: Qwen3-0.6B, Qwen3-Coder-30B on one GPU and
Qwen3-235B-A22B in 8 bits on four. Phi-3-vision on one is held out, and Qwen3-8B with adapters.
"""

from __future__ import annotations

import math
from typing import Literal

from rollcast.simulator.costs.presets.gpus import Gpu
from rollcast.simulator.costs.presets.models import Model
from rollcast.simulator.costs.presets.provenance import Provenance

Sleep = Literal["offload", "discard"]

FIXED_S = 0.21  # KV pool unmapped or mapped, calls to the engine
LINK_SHARE = 0.72  # of the host link's peak, by one GPU: 22.9e9 of 32e9 bytes/s
LOW, HIGH = 0.6, 2.6  # those held out wake 1.43 and 2.35 times as slowly
SLEEP_SOURCE = Provenance(
    "fitted",
    "vLLM 0.11 on A100 (blog.vllm.ai, sleep mode): 0.2 s and 72 % of the host link; four GPUs move "
    "twice what one does. Held out: Phi-3-vision wakes 1.4 times as slowly, Qwen3-8B with "
    "adapters 2.4 times; it falls asleep in 10.6 s, where host memory is not pinned before (vLLM "
    "pull request 48337)",
)
SWITCH_S = 0.9  # mean of falling asleep and waking up
SWITCH_LOW, SWITCH_HIGH = 0.2, 7.0
SWITCH_SOURCE = Provenance(
    "fitted",
    "an engine in TRL's loop falls asleep in 1.3 to 1.6 s and wakes in 0.3 s (TRL issue 4086, 52 "
    "GiB freed). Held out: vLLM on A100, Qwen3-8B with adapters, 0.3 s to sleep and 6.5 s to wake "
    "with its weights read anew, 10.6 and 2.2 s with them kept (vLLM pull request 48337)",
)


def engine_switch_s(model: Model, gpu: Gpu, tensor_parallel: int, level: Sleep) -> float:
    """Seconds that one replica's engine takes to sleep, and again to wake.

    ``offload`` moves the weights to host memory and back, at a rate that grows with the square root
    of the replica's GPUs, which share that memory. ``discard`` drops them: the next sync brings new
    ones, so only the KV pool is unmapped and mapped.
    """
    if level == "discard":
        return FIXED_S
    rate = LINK_SHARE * gpu.host_link_bytes_per_s * math.sqrt(tensor_parallel)
    return FIXED_S + model.weight_bytes / rate
