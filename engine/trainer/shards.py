"""Tensors that may be sharded among ranks; whole ones pass unchanged. Making one whole is a
collective call: every rank makes it, in the same order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rollcast.engine.trainer.adapters import Merged


def held(tensor: Tensor) -> Tensor:
    """This process's shard, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor | Merged, dtype: torch.dtype | None = None) -> Tensor:
    """The whole tensor, without gradient; a collective call. dtype: of one that is floating point,
    cast before it is gathered; None is its own."""
    if isinstance(tensor, Merged):
        base, down, up = (whole(part) for part in (tensor.base, tensor.down, tensor.up))
        exact = torch.promote_types(base.dtype, up.dtype)
        sum_ = torch.addmm(base.to(exact), up.to(exact), down.to(exact), alpha=tensor.scale)
        return sum_.to(dtype or base.dtype)
    tensor = tensor.detach()
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sharded(tensor: Tensor | Merged) -> bool:
    return isinstance(tensor.base if isinstance(tensor, Merged) else tensor, DTensor)


def whole_ones(
    tensors: Mapping[str, Tensor | Merged],
    *,
    keep: bool = True,
    dtype: torch.dtype | None = None,
) -> dict[str, Tensor]:
    """The whole tensors, tied ones once; empty without ``keep``, where only the other ranks need
    the call. dtype: see `whole`."""
    gathered: dict[str, Tensor] = {}
    known: dict[int, str] = {}
    for name, tensor in tensors.items():
        twin = known.setdefault(id(tensor), name)
        if twin == name:
            full = whole(tensor, dtype)
            if keep:  # one whole tensor at a time on the device
                gathered[name] = full.cpu() if _sharded(tensor) else full
        elif keep:
            gathered[name] = gathered[twin]
    return gathered
