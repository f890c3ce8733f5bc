"""A trainer's ranks: the processes that share its weights and its batches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")


class Ranks:
    """A trainer in one process, and the interface of several: `engine.trainer.sharded.Sharded`.

    Every method but ``scatter`` and ``drop`` is a collective call: all ranks make it, in the same
    order. Raises RankLostError where another rank does not.

    number: of this rank, from 0. count: of all ranks. group: of torch.distributed, over their CPUs,
    for work beside training; None for one alone. by_layer: a pass gathers one layer at a
    time, so that all ranks make equally many. low_precision: passes compute in a 16-bit type.
    device: of the passes; None is the model's.
    """

    number: int = 0
    count: int = 1
    by_layer: bool = False
    low_precision: bool = False
    device: Any = None

    @property
    def group(self) -> Any:
        """See above; the first look is a collective call."""
        return None

    def gather(self) -> None:
        """Makes the model's weights whole in every rank."""

    def scatter(self) -> None:
        """Leaves each rank its shard of the weights; gradients stay."""

    def reduce(self) -> None:
        """Sums the gradients over the ranks and leaves each its shard of the sum. The weights are
        whole before and after."""

    def drop(self) -> None:
        """Deletes the gradients and leaves each rank its shard of the weights."""

    def run(self, call: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Runs a forward pass; its first result is a tensor that its backward begins from."""
        return call()

    def run_head(self, call: Callable[[Any], Any], hidden: Any) -> Any:
        """Runs what uses the head alone, once a forward pass, on the decoder's output."""
        return call(hidden)

    def exchange(self, value: T) -> list[T]:
        """The value of each rank, by number."""
        return [value]

    def together(
        self, waiting: AbstractContextManager[None] | None = None
    ) -> AbstractContextManager[None]:
        """Within, without other collective calls, an exception of one rank is raised by all.
        ``waiting`` is entered while this rank waits for the others."""
        return nullcontext()

    def bound(self) -> AbstractContextManager[None]:
        """An exception within is a RankLostError: this rank now differs from the others."""
        return nullcontext()
