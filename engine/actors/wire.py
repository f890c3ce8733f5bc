"""Weights from the trainer's device to the replicas', with no process between them.

Each replica has its own connection to the trainer. So it loads weights between two of its own
iterations, whatever the others do, and its loss does not concern them. `engine.vllm.wire`
implements it, in the trainer's process.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcast.engine.actors.weights import ByStore
from rollcast.engine.edges import OnWire
from rollcast.engine.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor


class ByWire:
    """A `engine.actors.weights.Channel` that keeps a copy of the weights until a replica receives
    it: of a trainer of one rank on its device; of several, which are gathered a tensor at a time,
    in host memory, from where they go to the device by buckets. Subclasses connect and transmit."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Tensor]] = {}
        self._packed = self._sent = 0

    def pack(self, tensors: Mapping[str, Tensor]) -> OnWire:
        """A copy. The one sent last is kept as well, for a new replica."""
        self._packed += 1
        fresh = getattr(tensors, "copies", False)  # gathered while it is gone through
        copies = {n: t if fresh else t.detach().clone() for n, t in tensors.items()}
        self._kept = {number: kept for number, kept in self._kept.items() if number >= self._sent}
        self._kept[self._packed] = copies
        return OnWire(
            self._packed,
            tuple(copies),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in copies.values()),
            tuple(tuple(tensor.shape) for tensor in copies.values()),
        )

    def meet(self, replica: int, workers: int) -> dict[str, Any]:
        """Where a replica of so many workers finds the trainer, for `engine.edges.Engine.connect`;
        ends that replica's older connection."""
        raise NotImplementedError

    def join(self, replica: int) -> None:
        """Returns once the replica's workers have connected."""
        raise NotImplementedError

    def transmit(self, replica: int, tensors: Mapping[str, Tensor]) -> None:
        """Returns once the replica's workers have the tensors."""
        raise NotImplementedError

    def send(self, replica: int, weights: OnWire) -> None:
        """Sends weights to a replica that receives them at the same time. Raises EngineError where
        they are gone."""
        if not isinstance(weights, OnWire):
            return  # those of a checkpoint are in the store
        tensors = self._tensors(weights)
        self._sent = max(self._sent, weights.number)
        self.transmit(replica, tensors)

    def packed(self, weights: OnWire) -> Any:
        """The same weights for the object store. Raises EngineError where they are gone."""
        return ByStore().pack(self._tensors(weights))

    def _tensors(self, weights: OnWire) -> dict[str, Tensor]:
        tensors = self._kept.get(weights.number)
        if tensors is None:
            raise EngineError(
                "the weights that the replicas have went with the trainer that was lost; add "
                "--resume to go on from the last step that was saved"
            )
        return tensors
