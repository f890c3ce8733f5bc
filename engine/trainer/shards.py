"""Tensors that may be sharded among ranks; whole ones pass unchanged. Making one whole is a
collective call: every rank makes it, in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rollcast.engine.trainer.adapters import Merged


class Tally:
    """Bytes that were made whole in this process so far, outside of FSDP's passes by layer."""

    bytes = 0


TALLY = Tally()


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
    if not isinstance(tensor, DTensor):
        return tensor
    found: Tensor = tensor.full_tensor()
    TALLY.bytes += found.numel() * found.element_size()
    return found


def _sharded(tensor: Tensor | Merged) -> bool:
    return isinstance(tensor.base if isinstance(tensor, Merged) else tensor, DTensor)


Convert = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


class Gathered(Mapping[str, Tensor]):
    """Tensors that are made whole one at a time, while the mapping is gone through; of several
    ranks by a collective call, which every rank makes for all of them, in their order.

    dtype: of those that are floating point. convert: what becomes of each, such as a mixture's
    experts apart. on_host: whether those of several ranks go to host memory. copies: whether what
    it gives is nobody else's."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor | Merged],
        dtype: torch.dtype | None = None,
        convert: Convert | None = None,
        *,
        on_host: bool = True,
    ) -> None:
        self._tensors, self._dtype = tensors, dtype
        self._on_host = on_host
        self.copies = any(map(_sharded, tensors.values()))
        self._convert = convert or (lambda given: given)
        self.described: dict[str, Tensor] = {}  # of the same types and shapes, without content
        self._sources: dict[str, str] = {}
        for name, tensor in tensors.items():
            made = self._convert({name: self._empty(tensor)})
            self.described |= made
            self._sources |= dict.fromkeys(made, name)
        self._last: tuple[str, Mapping[str, Tensor]] = ("", {})

    def _empty(self, tensor: Tensor | Merged) -> Tensor:
        one = tensor.base if isinstance(tensor, Merged) else tensor
        dtype = self._dtype if self._dtype and one.is_floating_point() else one.dtype
        return torch.empty(one.shape, dtype=dtype, device="meta")

    def __getitem__(self, name: str) -> Tensor:
        source = self._sources[name]
        if self._last[0] != source:
            full = whole(self._tensors[source], self._dtype)
            full = full.cpu() if self.copies and self._on_host else full
            self._last = source, self._convert({source: full})
        return self._last[1][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)

    def take_part(self) -> None:
        """Of the ranks that keep nothing."""
        for tensor in self._tensors.values():
            whole(tensor, self._dtype)
