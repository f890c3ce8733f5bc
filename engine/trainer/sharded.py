"""A trainer over several ranks: weights, gradients and the optimiser's moments sharded by torch's
FSDP2 (`torch.distributed.fsdp.fully_shard`), over gloo on CPUs and NCCL on GPUs.

Between updates a rank holds only its shard of the weights. An update gathers them once, accumulates
the gradients of each rank's share of the batch without communication, and reduces them once;
clipping and optimiser then work on shards. So ranks may have different numbers of microbatches, or
none. The cost is memory for whole weights and gradients during an update; AdamW's moments are never
whole.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from rollcast.engine.errors import RankLostError, sentence
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.ranks import Ranks
from rollcast.simulator.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")

PATIENCE_S = 1800.0
"""Seconds that a rank waits for the others; the driver's heartbeat usually ends them sooner."""

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """Where ranks meet: a TCP port of rank 0's machine."""

    host: str
    port: int


class Meeting:
    """Rank 0's TCP store, open while the ranks run. place: where the others reach it."""

    def __init__(self) -> None:
        patience = timedelta(seconds=PATIENCE_S)
        self._store = dist.TCPStore(
            LOOPBACK, 0, is_master=True, wait_for_workers=False, timeout=patience
        )
        self.place = Place(_address(), self._store.port)


def join(place: Place, number: int, count: int, device: str) -> None:
    """Makes this process rank ``number`` of ``count``; a collective call. device: ``cuda`` for
    GPUs, of which each rank has the one that torch uses by default. Raises RankLostError."""
    backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
    patience = timedelta(seconds=PATIENCE_S)
    try:
        store = dist.TCPStore(place.host, place.port, is_master=False, timeout=patience)
        dist.init_process_group(
            backend, store=store, rank=number, world_size=count, timeout=patience
        )
    except Exception as error:  # of several kinds
        raise RankLostError(f"rank {number} cannot meet the others: {sentence(error)}") from None


class Joined(Ranks):
    """The ranks that have joined, without a model."""

    def __init__(self) -> None:
        self.number, self.count = dist.get_rank(), dist.get_world_size()
        self.group = dist.new_group(backend="gloo")

    def exchange(self, value: T) -> list[T]:
        """The value of each rank; it is pickled."""
        gathered: list[Any] = [None] * self.count
        with self.bound():
            dist.all_gather_object(gathered, value)
        return gathered

    @contextmanager
    def together(self, waiting: AbstractContextManager[None] | None = None) -> Iterator[None]:
        """An exception of one rank is raised by all, with the message of the first."""
        failed: Exception | None = None
        failure: tuple[type[RunError], str] | None = None
        try:
            yield
        except RankLostError:
            raise
        except RunError as error:
            failed, failure = error, (type(error), str(error))
        except Exception as error:
            failed, failure = error, (RunError, sentence(error))
        with waiting or nullcontext():
            every = self.exchange(failure)
        for theirs in every:
            if theirs is not None:
                kind, message = theirs
                raise kind(message) from failed

    @contextmanager
    def bound(self) -> Iterator[None]:
        """An exception within is a RankLostError."""
        try:
            yield
        except RankLostError:
            raise
        except Exception as error:
            raise RankLostError(
                f"rank {self.number} cannot go on with the others: {sentence(error)}"
            ) from error


class Sharded(Joined):
    """Shards a model, in place, among all ranks that have joined. A collective call."""

    def __init__(self, model: PreTrainedModel, device: str) -> None:
        super().__init__()
        self._model: Any = model
        mesh = init_device_mesh(torch.device(device).type, (self.count,))
        layers = set(model._no_split_modules or ())
        with self.bound():
            for module in [*model.modules()]:
                if type(module).__name__ in layers:
                    fully_shard(module, mesh=mesh, reshard_after_forward=False)
            fully_shard(model, mesh=mesh, reshard_after_forward=False)
            # A batch's loss is a sum over it, so its gradient is the sum over the ranks.
            self._modules = [m for m in model.modules() if isinstance(m, FSDPModule)]
            for module in self._modules:
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
            self._model.set_reshard_after_backward(False)
            self._model.set_requires_gradient_sync(False)
            with torch.no_grad():
                self._nothing()  # until the whole model has run, FSDP does not know its root
        self._whole = [*model.parameters()]
        self.scatter()

    def gather(self) -> None:
        """Makes the weights whole."""
        with self.bound():
            for module in self._modules:
                module.unshard()

    def scatter(self) -> None:
        """Leaves each rank its shard."""
        for module in self._modules:
            module.reshard()

    def reduce(self) -> None:
        """Reduces the gradients by a backward pass of zeros: FSDP reduces in a backward pass only,
        and a rank without microbatches had none."""
        with self.bound():
            self._model.set_requires_gradient_sync(True)
            logits = self._nothing()
            logits.backward(torch.zeros_like(logits))
            self._model.set_requires_gradient_sync(False)

    def drop(self) -> None:
        """Deletes gradients that were not reduced, and the state of an unfinished pass."""
        for parameter in self._whole:
            parameter.grad = None
        self._model.reset_iter_state()

    def _nothing(self) -> torch.Tensor:
        """Logits of a forward pass on one token, without dropout."""
        ids = torch.zeros((1, 1), dtype=torch.long, device=self._model.device)
        with in_mode(self._model, training=False):
            logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits


def _address() -> str:
    """This machine's address for others; loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # chooses an interface; nothing is sent
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address
