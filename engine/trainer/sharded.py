"""A trainer over several ranks: weights, gradients and the optimiser's moments sharded by torch's
FSDP2 (`torch.distributed.fsdp.fully_shard`), over gloo on CPUs and NCCL on GPUs.

Between updates a rank holds only its shard of the weights. There are two ways to train on them:

- **By layer** (the default): each layer's weights are gathered for its forward and again for its
  backward, and its gradient is reduced at once, in every microbatch. So nothing is ever whole but
  one layer, and the head; and ranks make equally many passes, some on a single token whose gradient
  is zero. With a shared prefix each of its three phases is such a pass; the prefix's backward runs
  through the decoder's output as well, from a gradient of zero, as FSDP gathers a layer when the
  gradient of its output arrives.
- **Whole** (the reference of the tests): an update gathers all weights once, accumulates the
  gradients of each rank's share without communication, and reduces them once. The cost is memory
  for whole weights and gradients.

Clipping and optimiser work on shards either way; AdamW's moments are never whole.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from rollcast.engine.errors import RankLostError, sentence
from rollcast.engine.trainer.mode import in_mode
from rollcast.engine.trainer.ranks import Ranks
from rollcast.engine.trainer.shards import TALLY
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
        self._group: Any = None

    @property
    def group(self) -> Any:
        """See `engine.trainer.ranks.Ranks`."""
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        return self._group

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


@dataclass(frozen=True, slots=True)
class Sharding:
    """How a model is sharded. by_layer: see this module. mixed: weights are float32, gathered and
    computed with as bfloat16, and gradients are reduced in float32. offload: shards, gradients and
    moments stay in host memory, where the optimiser works."""

    by_layer: bool = True
    mixed: bool = False
    offload: bool = False


class Sharded(Joined):
    """Shards a model, in place, among all ranks that have joined. A collective call."""

    def __init__(
        self, model: PreTrainedModel, device: str, sharding: Sharding | None = None
    ) -> None:
        super().__init__()
        sharding = sharding or Sharding()
        self.by_layer, self.low_precision = sharding.by_layer, sharding.mixed
        self.device = torch.device(device)
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._model: Any = model
        mesh = init_device_mesh(self.device.type, (self.count,))
        policy = MixedPrecisionPolicy()
        if sharding.mixed:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        pinned = self.device.type == "cuda"
        offload = CPUOffloadPolicy(pin_memory=pinned) if sharding.offload else OffloadPolicy()
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        tied = head.weight is embedding.weight
        layers = set(model._no_split_modules or ())
        with self.bound():
            self._layers: list[Any] = [
                module for module in model.modules() if type(module).__name__ in layers
            ]
            self._head = _Within(head)
            self._root: Any = _Within(model.base_model, self._head)
            self._apart = [] if tied else [embedding, self._head]
            for module in (*self._layers, *self._apart, self._root):
                fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
            # A batch's loss is a sum over it, so its gradient is the sum over the ranks.
            self._modules = [m for m in self._root.modules() if isinstance(m, FSDPModule)]
            for module in self._modules:
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
            self._set(whole=True)
            with torch.no_grad():
                self._pass_over_nothing()  # until it has run, FSDP does not know its root
        self._whole = [*model.parameters()]
        self.scatter()

    def gather(self) -> None:
        """Makes the weights whole."""
        self._set(whole=True)
        with self.bound():
            for module in self._modules:
                module.unshard()
        TALLY.bytes += sum(p.numel() * p.element_size() for p in self._whole)

    def scatter(self) -> None:
        """Leaves each rank its shard."""
        for module in self._modules:
            module.reshard()
        self._set(whole=False)

    def reduce(self) -> None:
        """Reduces the gradients by a backward pass of zeros: FSDP reduces in a backward pass only,
        and a rank without microbatches had none. By layer they are reduced already."""
        if not self._gathered:
            return
        with self.bound():
            self._root.set_requires_gradient_sync(True)
            logits = self._pass_over_nothing()
            logits.backward(torch.zeros_like(logits))
            self._root.set_requires_gradient_sync(False)

    def drop(self) -> None:
        """Deletes gradients that were not reduced, and the state of an unfinished pass."""
        for parameter in self._whole:
            parameter.grad = None
        self._root.reset_iter_state()

    def run(self, call: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Runs a forward pass, by layer unless the weights are whole; its first result is a tensor
        that its backward begins from."""
        if self._gathered:
            return call()
        found: tuple[Any, ...] = self._root(call)
        return found

    def run_head(self, call: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor) -> Any:
        """Runs what uses the head alone, once a forward pass."""
        if self._gathered or not self._apart:
            return call(hidden)
        return self._head(call, hidden)

    def _set(self, whole: bool) -> None:
        """Whether weights stay gathered, and gradients are not reduced, until told otherwise."""
        self._gathered = whole
        for layer in self._layers:
            layer.set_reshard_after_forward(not whole, recurse=False)
        for module in (*self._apart, self._root):
            # The head's backward comes right after its forward.
            module.set_reshard_after_forward(
                not whole and module not in (self._head, self._root), recurse=False
            )
        self._root.set_reshard_after_backward(not whole)
        self._root.set_requires_gradient_sync(not whole)

    def _pass_over_nothing(self) -> torch.Tensor:
        found: torch.Tensor = (
            self._root(self._head, self._nothing) if self._apart else (self._root(self._nothing))
        )
        return found

    def _nothing(self) -> torch.Tensor:
        """Logits of a forward pass on one token, without dropout."""
        ids = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        with in_mode(self._model, training=False):
            logits: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits
        return logits


class _Within(nn.Module):
    """Modules as one, within whose forward anything may be run."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, call: Callable[..., Any], *given: Any) -> Any:
        """What the call returns."""
        return call(*given)


def _address() -> str:
    """This machine's address for others; loopback without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))  # chooses an interface; nothing is sent
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address
