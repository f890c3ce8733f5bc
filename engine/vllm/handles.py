"""Weights by vLLM's CUDA IPC transfer (``vllm.distributed.weight_transfer.ipc_engine``, 0.32), from
the trainer's ranks to the workers on the same GPUs.

Both ends are vLLM's engines. vLLM's trainer tells the workers of a bucket by a client: here by
`engine.actors.handles`, from rank 0 to the replicas, which hand it to their workers. A bucket's
handles are keyed by the GPU's UUID, so that each worker finds that of its own GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from rollcast.engine.actors.handles import ByHandles, Fan
from rollcast.engine.vllm.wire import source_of

if TYPE_CHECKING:
    from torch import Tensor

INIT = {"packed": True}
"""The argument of the workers' ``init_weight_transfer_engine``."""


class ByVllmHandles(ByHandles):
    """In each of the trainer's processes."""

    bucket_bytes: int | None = None
    """None: vLLM's own."""

    def transmit(self, fan: Fan, tensors: Mapping[str, Tensor]) -> None:
        """By vLLM's engine."""
        import torch
        import torch.distributed as dist
        from vllm.distributed.weight_transfer import ipc_engine

        known: Any = getattr(tensors, "described", tensors)
        largest = max(prod(one.shape) * one.dtype.itemsize for one in known.values())
        bucket = self.bucket_bytes or ipc_engine.DEFAULT_PACKED_BUFFER_SIZE_BYTES
        rank = dist.get_rank() if dist.is_initialized() else 0
        source = source_of(tensors)
        info = ipc_engine.IPCTrainerInitInfo(
            rank=rank, packed=True, packed_buffer_size_bytes=max(bucket, largest)
        )
        client = _Buckets(fan)
        engine = ipc_engine.IPCTrainerWeightTransferEngine
        engine.trainer_init(info, client=client, source=source).send_weights()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # the bucket, which the cache of the engine needs


class _Buckets:
    """vLLM's client: workers are started and finished by their replicas."""

    def __init__(self, fan: Fan) -> None:
        self._fan = fan

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None:
        self._fan.tell(update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...
