"""Weights by vLLM's weight transfer: NCCL, from the trainer's GPU to a replica's.

A connection is a group of the trainer (rank 0) and the replica's workers. Both sides are vLLM's
engines (``vllm.distributed.weight_transfer``, 0.32); what vLLM's trainer would tell the workers by
a client reaches them as a replica's commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rollcast.engine.actors.wire import ByWire

if TYPE_CHECKING:
    from torch import Tensor


class ByVllm(ByWire):
    """In the trainer's process."""

    def __init__(self) -> None:
        super().__init__()
        self._infos: dict[int, Any] = {}
        self._senders: dict[int, tuple[Any, Any]] = {}  # vLLM's engine, and what it reads from

    def meet(self, replica: int, workers: int) -> dict[str, Any]:
        """The argument of the workers' ``init_weight_transfer_engine``."""
        from vllm.utils.network_utils import get_ip, get_open_port

        sender = self._senders.pop(replica, None)
        if sender is not None:
            sender[0].shutdown()
        self._infos[replica], theirs = self.infos(get_ip(), get_open_port(), workers + 1)
        return theirs

    def infos(self, host: str, port: int, size: int) -> tuple[Any, dict[str, Any]]:
        """Of the trainer's engine and of the workers', with the same packing."""
        from vllm.distributed.weight_transfer.nccl_common import worker_init_payload
        from vllm.distributed.weight_transfer.nccl_engine import (
            NCCLTrainerInitInfo,
            NCCLWeightTransferInitInfo,
        )

        mine = NCCLTrainerInitInfo(master_address=host, master_port=port, world_size=size, rank=0)
        theirs = NCCLWeightTransferInitInfo(
            master_address=host,
            master_port=port,
            rank_offset=1,
            world_size=size,
            packed=mine.packed,
            packed_buffer_size_bytes=mine.packed_buffer_size_bytes,
            packed_num_buffers=mine.packed_num_buffers,
        )
        return mine, worker_init_payload(theirs)

    def join(self, replica: int) -> None:
        """Opens the trainer's end."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        source = source_of({})
        info = self._infos.pop(replica)
        engine = WeightTransferTrainerFactory.trainer_init(info, client=_Silent(), source=source)
        self._senders[replica] = engine, source

    def transmit(self, replica: int, tensors: Mapping[str, Tensor]) -> None:
        """By vLLM's engine."""
        engine, source = self._senders[replica]
        source.tensors = tensors
        engine.send_weights()


class _Silent:
    """Replaces vLLM's client: replicas get commands instead."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


def on_device(tensor: Tensor) -> Tensor:
    """A tensor where NCCL reaches it: one at a time, into vLLM's bucket."""
    import torch

    return tensor.cuda() if torch.cuda.is_available() else tensor


def source_of(given: Mapping[str, Tensor]) -> Any:
    """A ``WeightSource`` of vLLM over these tensors, or those set on it later."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Given(WeightSource):  # type: ignore[misc]
        tensors = given

        def metadata(self) -> list[Any]:
            known: Any = getattr(self.tensors, "described", self.tensors)
            return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in known.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            for name, tensor in self.tensors.items():
                yield name, on_device(tensor)

    return Given()
