"""Devices, and how fast weights move between places here."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rollcast.engine import shared_memory
from rollcast.engine.config import RunSpec
from rollcast.engine.doctor.findings import Finding

WEIGHTS_BYTES = 64 << 20
"""Moved along each path."""


def devices(spec: RunSpec) -> Iterator[Finding]:
    """The GPUs that torch sees; then each weight path."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        yield Finding("GPUs", "note", "torch sees none: everything runs on the CPU")
    for number in range(count):
        properties = torch.cuda.get_device_properties(number)
        free, total = torch.cuda.mem_get_info(number)
        says = f"{properties.name}, {total / 1e9:.0f} GB, of which {free / 1e9:.0f} free; "
        says += f"compute capability {properties.major}.{properties.minor}, CUDA "
        says += f"{torch.version.cuda}"
        low = spec.engine.dtype == "bfloat16" and properties.major < 8
        says += "; bfloat16 is emulated, and slow" if low else ""
        yield Finding(f"GPU {number}", "warning" if low else "ok", says, {"free_bytes": free})
    yield from weight_paths(spec)


def weight_paths(spec: RunSpec) -> Iterator[Finding]:
    """GB/s of the paths that exist here."""
    import torch

    tensors = {
        f"weight {i}": torch.empty(WEIGHTS_BYTES // 32, dtype=torch.float32).normal_()
        for i in range(8)
    }
    from rollcast.engine.actors.weights import ByFiles, ByStore, unpack

    packed = ByStore().pack(tensors)
    yield _path("weights by copy in memory", lambda: ByStore().pack(tensors))
    place = spec.weights_folder or shared_memory.root(3.3 * WEIGHTS_BYTES)
    with tempfile.TemporaryDirectory(dir=place) as folder:
        by_files = ByFiles(Path(folder))

        def move() -> None:
            packed = by_files.pack(tensors)
            _touched(unpack(packed))
            packed.path.unlink()

        yield _path("weights by files", move, f" in {place}")
    yield from _store(packed, needed=not spec.in_process)
    if torch.cuda.is_available():
        on_gpu = {name: tensor.cuda() for name, tensor in tensors.items()}

        def to_host() -> None:
            for tensor in on_gpu.values():
                tensor.cpu()

        def to_gpu() -> None:
            for tensor in tensors.values():
                tensor.cuda()
            torch.cuda.synchronize()

        yield _path("weights from GPU to host", to_host)
        yield _path("weights from host to GPU", to_gpu)


def _store(packed: Any, needed: bool) -> Iterator[Finding]:
    """Ray's object store. needed: whether the scenario's replicas have processes of their own."""
    if find_spec("ray") is None:
        says = "Ray is not installed (pip install 'rollcast[ray]')"
        says += ", which replicas and trainer in processes of their own need" if needed else ""
        yield Finding("weights by Ray's store", "fails" if needed else "note", says)
        return
    from rollcast.engine.actors.on_ray import RayTransport

    transport = RayTransport()
    try:
        yield _path(
            "weights by Ray's store", lambda: _touched(transport.get(transport.put(packed)))
        )
    finally:
        transport.close()


def _touched(tensors: Mapping[str, Any]) -> None:
    """Reads all of them: some paths only map memory."""
    for tensor in tensors.values():
        getattr(tensor, "array", tensor).sum()


def _path(about: str, move: Callable[[], Any], where: str = "") -> Finding:
    move()  # memory is taken from the system the first time
    began = time.perf_counter()
    move()
    rate = WEIGHTS_BYTES / (time.perf_counter() - began) / 1e9
    says = f"{rate:.2f} GB/s{where}; 7.6B parameters in bfloat16 would take {15.2 / rate:.1f} s"
    return Finding(about, "ok", says, {"gb_per_s": rate})
