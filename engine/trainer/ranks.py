"""A trainer's ranks: the processes that share its weights and its batches.

`Trainer` is written for several: what it asks of the others is here, and `Alone` asks nothing.
`engine.trainer.sharded.Sharded` is the one of several.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeVar

T = TypeVar("T")


class Ranks(Protocol):
    """This process among the ranks. Every method but ``scatter`` and ``drop`` is a collective call:
    all ranks make it, in the same order. Raises RankLostError where another one does not.

    number: of this one, from 0. count: of all.
    """

    number: int
    count: int

    def gather(self) -> None:
        """Makes the model's weights whole in every rank."""
        ...

    def scatter(self) -> None:
        """Leaves each rank its part of them; gradients stay."""
        ...

    def reduce(self) -> None:
        """Adds up the gradients of all ranks, and leaves each its part of the sum. The weights are
        whole before it, and after it."""
        ...

    def drop(self) -> None:
        """Forgets the gradients, and leaves each rank its part of the weights."""
        ...

    def exchange(self, value: T) -> list[T]:
        """The value of each rank, by number."""
        ...

    def together(
        self, waiting: AbstractContextManager[None] | None = None
    ) -> AbstractContextManager[None]:
        """What fails in one rank within, where it makes no other collective call, fails in all.
        ``waiting`` is entered while this one waits to hear of the others."""
        ...

    def bound(self) -> AbstractContextManager[None]:
        """What fails within leaves this rank in another state than the others: RankLostError."""
        ...


class Alone:
    """A trainer in one process."""

    number = 0
    count = 1

    def gather(self) -> None:
        """They are whole."""

    def scatter(self) -> None:
        """They stay whole."""

    def reduce(self) -> None:
        """There are no others."""

    def drop(self) -> None:
        """The optimiser forgets them."""

    def exchange(self, value: T) -> list[T]:
        """Its own."""
        return [value]

    def together(
        self, waiting: AbstractContextManager[None] | None = None
    ) -> AbstractContextManager[None]:
        """Nothing more."""
        return nullcontext()

    def bound(self) -> AbstractContextManager[None]:
        """Nothing more."""
        return nullcontext()
