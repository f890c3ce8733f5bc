"""Whether a model fits the devices of a scenario.

By the sizes of its files: a replica's weights in the engine's type; the trainer's weights,
gradients and AdamW's two moments in its own. And by the ledger of `rollcast check`, for models
whose family it knows: the peak of an update in full microbatches, which is within 10 % of what
torch's memory tracker counts of this trainer (``make memory-proof``). CUDA's context, NCCL's
buffers, fragmentation and the KV pool come on top: a model that passes may still be too large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from rollcast.engine.options import TrainerConfig, head_chunk, recomputes
from rollcast.simulator.costs import RooflineTrainer
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import Model, load_model
from rollcast.simulator.costs.trainer.memory import Use
from rollcast.simulator.errors import ScenarioError

_BYTES = {"float32": 4, "bfloat16": 2}
_TRAINER_COPIES = 4
_SLACK = 0.1  # of the ledger
_NOT_COUNTED = ("context", "fragmentation")
_LOGIT_BYTES = 12.0  # float32 logits, their softmax and gradient; those of 16 bit beside
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


def require_room(
    count: int, dtype: str, trainer: TrainerConfig, devices: Devices, folder: Path | None = None
) -> None:
    """Raises ScenarioError where a model of so many parameters cannot fit. dtype: the engine's.
    folder: the model's, for the ledger."""
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
    parts = None if folder is None else peak(folder, trainer, dtype, devices)
    if parts is None or (held := math.fsum(parts.values())) * (1 - _SLACK) <= room:
        return
    largest = sorted(((size, name) for name, size in parts.items()), reverse=True)[:3]
    told = ", ".join(f"{name.replace('_', ' ')} {_said(size)}" for size, name in largest)
    raise ScenarioError(
        "engine.trainer.microbatch_tokens",
        f"is {trainer.microbatch_tokens}: an update would take {_said(held)} of a GPU at its peak "
        f"({told}), of which the trainer has {_said(room)}; fewer tokens, checkpoint: all, more "
        "ranks or engine.trainer.offload would help",
    )


def require_split(folder: Path, width: int) -> None:
    """Raises ScenarioError where a model's attention heads cannot be split among so many GPUs."""
    try:
        config = json.loads((folder / "config.json").read_text())
        heads = config.get("text_config", config)["num_attention_heads"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # whoever loads it says it
    if isinstance(heads, int) and heads % width:
        raise ScenarioError(
            "cluster.tensor_parallel",
            f"is {width}, which does not divide the {heads} attention heads of {folder.name}",
        )


def peak(
    folder: Path, trainer: TrainerConfig, dtype: str, devices: Devices
) -> Mapping[str, float] | None:
    """Bytes of a rank's GPU by part, where an update needs most of them, by the ledger. dtype: the
    engine's. None for a model whose family is unknown."""
    try:
        model = load_model(folder)
        trainer_cost = priced(model, trainer, dtype, devices)
    except ScenarioError:
        return None
    tokens = trainer.microbatch_tokens
    phases = trainer_cost.phases(Use(tokens, tokens, 0, accumulates=True))
    every = [
        {
            f"{role} {name}".removeprefix("trainer "): size
            for role, parts in roles.items()
            for name, size in parts.items()
            if name not in _NOT_COUNTED
        }
        for roles in phases.values()
    ]
    return max(every, key=lambda parts: math.fsum(parts.values()))


def priced(model: Model, trainer: TrainerConfig, dtype: str, devices: Devices) -> RooflineTrainer:
    """The trainer of these settings as the simulator prices it, on GPUs whose memory never ends.
    dtype: the engine's."""
    tokens, lora, ranks = trainer.microbatch_tokens, trainer.lora, devices.ranks
    chunk = trainer.head_chunk_tokens
    if chunk is None:
        chunk = head_chunk(tokens, model.vocab)
    full = trainer.checkpoint == "all"
    if trainer.checkpoint == "auto":
        full = recomputes(model.hidden * model.layers * tokens, devices.device_bytes)
    passes = int(trainer.old_log_probs == "trainer")
    compares = trainer.loss.kl_coefficient is not None and lora is None
    return RooflineTrainer(
        model,
        replace(load_gpu("h100-sxm"), name="a GPU with room", memory_bytes=1e15),
        ranks,
        weights="full" if lora is None else "lora",
        lora_rank=1 if lora is None else lora.rank,
        base_bits=8 * _BYTES[dtype],
        master_dtype="bf16" if trainer.dtype == "bfloat16" else "fp32",
        sharding="none" if ranks == 1 else "fsdp",
        recompute="full" if full else "none",
        logits_chunk_tokens=chunk,
        logit_bytes=_LOGIT_BYTES + (2 if trainer.autocast or trainer.dtype == "bfloat16" else 0),
        log_prob_passes=2 if compares else passes,
        reference_on_host=trainer.reference_offload,
        states_on_host=trainer.offload,
        foreach_optimizer=False,  # ours is fused
    )


def state_bytes(count: int, trainer: TrainerConfig, ranks: int) -> float:
    """Bytes that a rank's GPU holds of a trainer's state in the optimiser's step: its shards,
    gradients included. With adapters, the model's own weights in 16 bits at least."""
    if trainer.offload:
        return 0.0
    if trainer.lora is not None:
        return _BYTES["bfloat16"] * count / ranks
    return _TRAINER_COPIES * _BYTES[trainer.dtype] * count / ranks


def _said(size: float) -> str:
    return f"{size / _GB:.1f} GB"
