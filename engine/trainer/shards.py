"""Tensors that may be sharded among ranks; whole ones pass unchanged. Making one whole is a
collective call: every rank makes it, in the same order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


def held(tensor: Tensor) -> Tensor:
    """This process's shard, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, without gradient; a collective call."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_ones(
    tensors: Mapping[str, Tensor], *, keep: bool = True, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """The whole tensors, tied ones once; empty without ``keep``, where only the other ranks need
    the call. dtype: of those that are floating point, cast before they are gathered."""
    gathered: dict[str, Tensor] = {}
    known: dict[int, str] = {}
    for name, tensor in tensors.items():
        twin = known.setdefault(id(tensor), name)
        if twin == name:
            tensor = tensor.detach()
            if dtype is not None and tensor.is_floating_point():
                tensor = tensor.to(dtype)
            full = whole(tensor)
            if isinstance(tensor, DTensor):  # one whole tensor at a time on the device
                full = full.cpu() if keep else full
            if keep:
                gathered[name] = full
        elif keep:
            gathered[name] = gathered[twin]
    return gathered
