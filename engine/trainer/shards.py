"""Tensors of which a rank may hold a part alone. Those that are whole already pass unchanged.

What makes a tensor whole is a collective call: every rank makes it, in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def held(tensor: Tensor) -> Tensor:
    """The part that is in this process, not a copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, without gradient; a collective call."""
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_ones(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """All of each, and of one with two names once; none where they are not to be kept, for which
    the others need this process nevertheless."""
    gathered: dict[str, Tensor] = {}
    known: dict[int, str] = {}
    for name, tensor in tensors.items():
        twin = known.setdefault(id(tensor), name)
        if twin == name:
            full = whole(tensor)
            if keep:
                gathered[name] = full
        elif keep:
            gathered[name] = gathered[twin]
    return gathered


def split_as(tensor: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, split as ``own`` is: each rank takes its part of the one that it has, perhaps
    without a copy."""
    if not isinstance(like, DTensor):
        return tensor
    there = tensor.to(like.device)
    return distribute_tensor(there, like.device_mesh, like.placements, src_data_rank=None)
