"""Weights from the trainer's GPU to the GPUs of the replicas, by vLLM's own weight transfer: NCCL.

Each replica has a connection of its own, a group of the trainer (rank 0) and the replica's workers.
So a replica takes its weights between two of its own iterations, whatever the others do, and where
one is lost no other has to meet anew; vLLM's client for Ray makes one group of all replicas. The
trainer's side and the workers' are vLLM's engines (``vllm.distributed.weight_transfer``, 0.32);
what the trainer's would tell the workers by a client reaches them as a replica's commands here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from engine.actors.weights import ByStore
from engine.edges import OnWire
from engine.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

BACKEND = "nccl"


class ByWire:
    """A `engine.actors.weights.Channel` that keeps a copy of the weights on the trainer's device,
    and sends it. It lives in the trainer's process; `meet`, `join`, `send` and `packed` are called
    there, once for each replica."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._packed = self._sent = 0
        self._infos: dict[int, Any] = {}
        self._senders: dict[int, tuple[Any, _Kept]] = {}

    def pack(self, tensors: Mapping[str, Tensor]) -> OnWire:
        """A copy, which later updates leave alone. What was sent last is kept as well: a new
        replica has to have it."""
        self._packed += 1
        own = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self._kept = {number: kept for number, kept in self._kept.items() if number >= self._sent}
        self._kept[self._packed] = own
        return OnWire(
            self._packed,
            tuple(own),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in own.values()),
            tuple(tuple(tensor.shape) for tensor in own.values()),
        )

    def meet(self, replica: int, workers: int) -> dict[str, Any]:
        """Where a replica finds the trainer: what its workers' ``init_weight_transfer_engine``
        takes. An older connection of that replica is given up."""
        from vllm.utils.network_utils import get_ip, get_open_port

        sender = self._senders.pop(replica, None)
        if sender is not None:
            sender[0].shutdown()
        self._infos[replica], payload = self.infos(get_ip(), get_open_port(), workers + 1)
        return payload

    def infos(self, host: str, port: int, size: int) -> tuple[Any, dict[str, Any]]:
        """Of the trainer's engine, and of the workers' (rank 0 is the trainer's): both have to say
        the same of how tensors are packed."""
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
        """Returns once the workers are there too."""
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        source = _kept_source()
        engine = WeightTransferTrainerFactory.trainer_init(
            self._infos.pop(replica), client=_Silent(), source=source
        )
        self._senders[replica] = engine, source

    def send(self, replica: int, weights: OnWire) -> None:
        """Sends weights, which the replica's workers take in at the same time."""
        engine, source = self._senders[replica]
        source.tensors = self._tensors(weights)
        self._sent = max(self._sent, weights.number)
        engine.send_weights()

    def packed(self, weights: OnWire) -> Any:
        """The same weights for the object store."""
        return ByStore().pack(self._tensors(weights))

    def _tensors(self, weights: OnWire) -> dict[str, Tensor]:
        found = self._kept.get(weights.number)
        if found is None:
            raise EngineError(
                "the weights that the replicas have went with the trainer that was lost; add "
                "--resume to go on from the last step that was saved"
            )
        return found


class _Silent:
    """In the place of vLLM's client: replicas have been told already."""

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...

    def start_weight_update(self) -> None: ...

    def update_weights(self, update_info: Any) -> None: ...

    def finish_weight_update(self, weight_version: str | None = None) -> None: ...


_Kept = Any


def _kept_source() -> Any:
    """A ``WeightSource`` of vLLM's over whatever tensors it is given next."""
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Kept(WeightSource):  # type: ignore[misc]
        tensors: Mapping[str, Tensor] = {}

        def metadata(self) -> list[Any]:
            return [ParamMeta(n, t.dtype, tuple(t.shape)) for n, t in self.tensors.items()]

        def __iter__(self) -> Iterator[tuple[str, Tensor]]:
            return iter(self.tensors.items())

    return Kept()
