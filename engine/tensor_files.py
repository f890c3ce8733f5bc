"""Tensors in a safetensors file, written one after another, so that no more than one of them has to
be whole in memory (huggingface.co/docs/safetensors: eight bytes of length, JSON, then the data)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "bool": "BOOL",
}


class Described(Protocol):
    """Of a tensor: what is known before it is there."""

    @property
    def dtype(self) -> torch.dtype:
        """Its type."""
        ...

    @property
    def shape(self) -> Any:
        """Its shape."""
        ...


class Filed(dict[str, Any]):
    """Tensors that are also in the file at ``path``."""

    path: Path


def write(
    path: Path, tensors: Mapping[str, Tensor], described: Mapping[str, Described] | None = None
) -> None:
    """Writes a file. described: of the same names; None asks the tensors themselves, all of which
    are then there. Raises OSError."""
    import torch

    header: dict[str, Any] = {}
    at = 0
    for name, one in (described or tensors).items():
        kind = str(one.dtype).removeprefix("torch.")
        size = math.prod(one.shape) * one.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[kind],
            "shape": [*one.shape],
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in header:
            flat = tensors[name].detach().to("cpu").contiguous().reshape(-1)
            if flat.numel():
                file.write(memoryview(flat.view(torch.uint8).numpy()))


def read(path: Path) -> Filed:
    """The tensors, mapped from the file."""
    from safetensors.torch import load_file

    found = Filed(load_file(path))
    found.path = path
    return found
