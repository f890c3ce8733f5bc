"""A trained model as a Hugging Face folder, from any number of ranks."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from rollcast.engine.errors import sentence
from rollcast.engine.quiet import no_bars
from rollcast.engine.trainer.adapters import published
from rollcast.engine.trainer.shards import whole
from rollcast.simulator.errors import RunError

_FILE_SIZE = "4GB"


def write_model(model: Any, first: bool, folder: Path, dtype: torch.dtype) -> None:
    """Weights and configuration, as ``save_pretrained`` writes them: in the hub's names, tied
    weights once. first: whether this is rank 0, which writes; the others only give it their shards.
    Whole weights are in rank 0's host memory alone, in ``dtype``. Raises RunError where the disk
    refuses."""
    weights: dict[str, Tensor] = {}
    known: dict[int, str] = {}
    for name, tensor in published(model).items():
        if (twin := known.setdefault(id(tensor), name)) != name:
            if first:
                weights[name] = weights[twin]
            continue
        full = whole(tensor)
        if first:
            kind = dtype if full.is_floating_point() else full.dtype
            weights[name] = full.to("cpu", kind, copy=True)
    if not first:
        return
    # A model of no weights: the sharded one's class and hooks are torch's, not the hub's.
    config = copy.deepcopy(model.config)
    with torch.device("meta"):
        plain: Any = _plain_class(model)(config)
    plain.generation_config = model.generation_config
    plain.to(dtype)
    try:
        with no_bars():
            plain.save_pretrained(folder, state_dict=weights, max_shard_size=_FILE_SIZE)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or sentence(error)
        raise RunError(f"cannot write the model to {folder}: {reason}; make room there") from None


def _plain_class(model: Any) -> Any:
    """The model's class before it was sharded: FSDP puts one of its own before it."""
    return next(kind for kind in type(model).__mro__ if not kind.__name__.startswith("FSDP"))
