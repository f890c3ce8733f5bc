"""Weights between processes: in files, in memory that the processes of a machine share or where all
machines see them, or as numpy arrays in an object store."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rollcast.engine import tensor_files

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """One tensor as an array (of bytes where numpy lacks its type), and torch's name of its type;
    None for an array."""

    array: np.ndarray[Any, Any]
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class InFile:
    """Tensors in a file."""

    path: Path


class Channel(Protocol):
    """How tensors leave a process; `unpack` takes them in."""

    def pack(self, tensors: Mapping[str, Tensor]) -> Any:
        """What is sent in their place."""
        ...


@dataclass(frozen=True, slots=True)
class ByStore:
    """Through the transport's object store."""

    def pack(self, tensors: Mapping[str, Tensor]) -> dict[str, Packed]:
        """Copies, which later updates do not change."""
        return {name: _packed(tensor) for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class InPlace:
    """Within one process."""

    def pack(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors themselves, which the next update changes."""
        return tensors


@dataclass(frozen=True, slots=True)
class ByFiles:
    """Through a folder that every process sees, written a tensor at a time. Readers map a file, so
    that it may be removed while they do."""

    folder: Path

    def pack(self, tensors: Mapping[str, Tensor]) -> InFile:
        """A file of its own, renamed into place."""
        path = self.folder / f"weights-{uuid.uuid4().hex}.safetensors"
        draft = path.with_suffix(".new")
        tensor_files.write(draft, tensors, getattr(tensors, "described", None))
        draft.replace(path)
        return InFile(path)

    def keep_only(self, used: Collection[InFile]) -> None:
        """Removes what is older than the newest of these, and none of them."""
        kept = [one.path for one in used if one.path.exists()]
        if not kept:
            return
        newest = max(path.stat().st_mtime_ns for path in kept)
        for path in {*self.folder.glob("weights-*")}.difference(kept):
            if path.stat().st_mtime_ns < newest:
                path.unlink(missing_ok=True)


def unpack(packed: Any) -> Mapping[str, Tensor]:
    """The tensors, read-only."""
    if isinstance(packed, InFile):
        return tensor_files.read(packed.path)
    return {name: _unpacked(one) for name, one in packed.items()}


def _packed(tensor: Any) -> Packed:
    if isinstance(tensor, np.ndarray):
        return Packed(tensor.copy())
    import torch

    copied = tensor.detach().to("cpu", copy=True).contiguous()
    dtype = str(copied.dtype).removeprefix("torch.")
    try:
        return Packed(copied.numpy(), dtype)
    except TypeError:  # bfloat16, which numpy lacks
        return Packed(copied.view(torch.uint8).numpy(), dtype)


def _unpacked(packed: Any) -> Any:
    if not isinstance(packed, Packed):
        return packed
    if packed.dtype is None:
        return packed.array
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the store's memory is not to be written to
        tensor = torch.from_numpy(packed.array)
    dtype = getattr(torch, packed.dtype)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)
