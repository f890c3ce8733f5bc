"""Weights for the workers of a replica, which are processes of one machine: in a file that all of
them map, in shared memory where there is room, and never through their pipes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rollcast.engine import shared_memory, tensor_files

if TYPE_CHECKING:
    from torch import Tensor


@contextmanager
def in_folder(weights: Mapping[str, Tensor]) -> Iterator[Path]:
    """A folder with the weights as vLLM's loader reads a model's, for as long as they are loaded.
    Those that came in a file are not copied. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="rollcast-weights-", dir=_root(weights)) as folder:
        file = Path(folder) / "model.safetensors"
        if isinstance(weights, tensor_files.Filed):
            file.symlink_to(weights.path.resolve())
        else:
            tensor_files.write(file, weights, getattr(weights, "described", None))
        yield Path(folder)


def _root(weights: Mapping[str, Tensor]) -> Path:
    described = getattr(weights, "described", weights)
    size = sum(tensor.numel() * tensor.element_size() for tensor in described.values())
    return shared_memory.root(1.1 * size)
