"""Saves of trainers, for tests: made, read as whole tensors, and changed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rollcast.engine.edges import TrainerSave
from rollcast.engine.trainer.shard_files import saved_file


def saved(trainer: Any, folder: Path) -> TrainerSave:
    """A save of a trainer, when this rank's part is written; ``files`` are those of all ranks."""
    plain = json.loads(json.dumps(trainer.save(folder)))
    mine = None
    while mine is None:
        mine = trainer.saved(1.0)
    files = {
        name: file for part in trainer._ranks.exchange(dict(mine)) for name, file in part.items()
    }
    return TrainerSave(folder, files, plain)


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Whole tensors, from the shards of all ranks."""
    pieces: dict[str, list[tuple[list[int], Tensor]]] = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            offsets = json.loads(file.metadata()["DCP_SHARDING_INFO"])
            for name in [*file.keys()]:
                at = offsets[name]["saved_offsets"]
                pieces.setdefault(name, []).append((at, file.get_tensor(name)))
    whole = {}
    for name, parts in pieces.items():
        parts.sort(key=lambda part: part[0])
        first = parts[0][1]
        whole[name] = torch.cat([tensor for _, tensor in parts]) if first.dim() else first
    return whole


def rewritten(save: TrainerSave, tensors: Mapping[str, Tensor], folder: Path) -> TrainerSave:
    """A save of these tensors in one file, as of one rank."""
    folder.mkdir()
    info = {name: {"saved_offsets": [0] * tensor.dim()} for name, tensor in tensors.items()}
    path = folder / "shard-00001-model-00001-of-00001.safetensors"
    save_file(dict(tensors), path, {"format": "pt", "DCP_SHARDING_INFO": json.dumps(info)})
    return TrainerSave(folder, {path.name: saved_file(path)}, save.plain)
