"""Weights to replicas on the trainer's own GPUs: each rank fills a bucket on its device, and the
replicas' workers read it there, by its handle.

All ranks go through the weights together, once for all replicas. Rank 0 tells each replica of a
bucket through a socket and goes on when every one has taken it. So nobody holds more than a bucket
beside the weights, which are those of now: an older version is gone. `engine.vllm.handles` makes
the buckets, in the trainer's processes.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

from rollcast.engine.edges import OnWire
from rollcast.engine.errors import EngineError

if TYPE_CHECKING:
    from torch import Tensor

_LOOK_S = 1e-3
_GONE = (
    "the weights that the replicas have were replaced in the trainer, or lost with it; add "
    "--resume to go on from the last step that was saved"
)


class ByHandles:
    """A `engine.actors.weights.Channel` of every rank. Subclasses transmit. first: whether this
    rank has the lines to the replicas."""

    def __init__(self) -> None:
        self.first = True
        self._tensors: Mapping[str, Tensor] = {}
        self._changes = 0
        self._mine = secrets.randbits(40) << 20  # another trainer's weights are not ours
        self._listener: Listener | None = None
        self._key = b""
        self._lines: dict[int, Connection] = {}

    def pack(self, tensors: Mapping[str, Tensor]) -> OnWire:
        """What they are; of several ranks a `engine.trainer.shards.Gathered`, on each."""
        self._tensors = tensors
        known: Any = getattr(tensors, "described", tensors)
        return OnWire(
            self._mine + self._changes,
            tuple(known),
            tuple(str(tensor.dtype).removeprefix("torch.") for tensor in known.values()),
            tuple(tuple(tensor.shape) for tensor in known.values()),
        )

    def change(self) -> None:
        """An update changes the weights, of which nobody has a copy."""
        self._changes += 1

    def meet(self, replica: int, workers: int) -> dict[str, Any]:
        """Where a replica finds rank 0, for `Line`. replica: a number of no other connection."""
        if self._listener is None:
            self._key = secrets.token_bytes(32)
            self._listener = Listener(("", 0), authkey=self._key)
        host, port = socket.gethostname(), self._listener.address[1]
        with suppress(OSError):
            host = socket.gethostbyname(host)
        return {"host": host, "port": port, "key": self._key, "replica": replica}

    def join(self, replica: int) -> None:
        """Returns once that replica has connected; others may, before it."""
        assert self._listener is not None
        while replica not in self._lines:
            line = self._listener.accept()
            self._lines[line.recv()] = line  # `send` looks for it

    def send(self, replicas: Sequence[int], weights: OnWire) -> None:
        """Sends weights to replicas that receive them at the same time; a collective call. Raises
        EngineError where they are gone."""
        if not isinstance(weights, OnWire):
            return  # those of a checkpoint are elsewhere
        if self.first:
            if weights.number != self._mine + self._changes:
                raise EngineError(_GONE)
            while not all(n in self._lines for n in replicas):
                time.sleep(_LOOK_S)  # `join` runs beside this
        fan = Fan({n: self._lines[n] for n in replicas if n in self._lines})
        self.transmit(fan, self._tensors)
        fan.tell(None)
        for lost in fan.lost:
            self._lines.pop(lost).close()

    def transmit(self, fan: Fan, tensors: Mapping[str, Tensor]) -> None:
        """Tells ``fan`` of one bucket after another. Every rank calls it; rank 0's has lines."""
        raise NotImplementedError

    def close(self) -> None:
        """Hangs up."""
        for line in self._lines.values():
            line.close()
        if self._listener is not None:
            self._listener.close()

    def packed(self, weights: OnWire) -> Any:
        """Never asked for: replicas and trainer have the same weights whenever a run is saved."""
        raise EngineError(_GONE)


class Fan:
    """The lines to several replicas. A lost one is left out; the driver hears of it by itself."""

    def __init__(self, lines: dict[int, Connection]) -> None:
        self._lines = lines
        self.lost: list[int] = []

    def tell(self, bucket: Any) -> None:
        """Sends to each, and returns once all have answered."""
        for answers in (False, True):
            for replica, line in [*self._lines.items()]:
                try:
                    if answers:
                        line.recv()
                    else:
                        line.send(bucket)
                except (OSError, EOFError):
                    del self._lines[replica]
                    self.lost.append(replica)


class Line:
    """A replica's end. where: what `ByHandles.meet` returned. Raises EngineError where the trainer
    is not there."""

    def __init__(self, where: Mapping[str, Any]) -> None:
        try:
            self._line = Client((where["host"], where["port"]), authkey=where["key"])
            self._line.send(where["replica"])
        except (OSError, EOFError) as error:
            raise EngineError(f"the trainer cannot be reached for its weights: {error}") from None

    def buckets(self) -> Iterator[Any]:
        """The buckets of one transfer; each has been taken when the next is asked for."""
        try:
            while (bucket := self._line.recv()) is not None:
                yield bucket
                self._line.send(None)
            self._line.send(None)
        except (OSError, EOFError):
            self._line.close()
            raise EngineError("the trainer was lost in the middle of its weights") from None
