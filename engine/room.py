"""Whether a model fits the devices of a scenario, by the sizes of its files.

Counted is what is needed for any batch: a replica's weights in the engine's type; the trainer's
weights, gradients and AdamW's two moments in its own, as the ledger of `rollcast check` has them.
Activations, gathered layers and the KV pool come on top: a model that passes may still be too
large.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

from rollcast.engine.options import TrainerConfig
from rollcast.simulator.errors import ScenarioError

_BYTES = {"float32": 4, "bfloat16": 2}
_TRAINER_COPIES = 4
_GB = 1e9


def parameters(folder: Path) -> int:
    """The number of parameters in a model's safetensors, from their headers
    (huggingface.co/docs/safetensors: eight bytes of length, then JSON). 0 where they cannot be
    read."""
    count = 0
    try:
        for path in folder.glob("*.safetensors"):
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, path.stat().st_size)))
            tensors = (entry for name, entry in header.items() if name != "__metadata__")
            count += sum(prod(entry["shape"]) for entry in tensors)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return 0
    return count


@dataclass(frozen=True, slots=True)
class Devices:
    """A scenario's devices for a model. share: of each GPU's bytes, vLLM's. width: GPUs of a
    replica. ranks: of the trainer. shared: the trainer has the rest of the same GPU."""

    device_bytes: int
    share: float
    width: int = 1
    ranks: int = 1
    shared: bool = False


def require_room(count: int, dtype: str, trainer: TrainerConfig, devices: Devices) -> None:
    """Raises ScenarioError where a model of so many parameters cannot fit. dtype: the engine's."""
    weights = count * _BYTES[dtype]
    held, room = weights / devices.width, devices.share * devices.device_bytes
    if held > room:
        raise ScenarioError(
            "cluster.tensor_parallel",
            f"is {devices.width}: a replica's GPU would hold {_said(held)} of weights, but vLLM "
            f"has {_said(room)} of it (engine.gpu_memory_utilization {devices.share:g}); raise "
            "either",
        )
    held = state_bytes(count, trainer, devices.ranks)
    room = devices.device_bytes * (1 - devices.share if devices.shared else 1)
    if held > room:
        raise ScenarioError(
            "cluster.trainer_gpus",
            f"is {devices.ranks}: weights, gradients and optimiser in {trainer.dtype} take "
            f"{_said(held)} of a GPU, of which the trainer has {_said(room)}; more ranks, "
            "engine.trainer.offload (with two or more), a smaller model or larger GPUs would fit",
        )


def state_bytes(count: int, trainer: TrainerConfig, ranks: int) -> float:
    """Bytes that a rank's GPU holds of a trainer's state: its shards, gradients included; without
    ranks and with bfloat16 passes over float32 weights, the cast weights too."""
    if trainer.offload:
        return 0.0
    cast = _BYTES["bfloat16"] * count if ranks == 1 and trainer.autocast else 0
    return _TRAINER_COPIES * _BYTES[trainer.dtype] * count / ranks + cast


def _said(size: float) -> str:
    return f"{size / _GB:.1f} GB"
