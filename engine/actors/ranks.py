"""The ranks of one trainer, called and replaced together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from rollcast.engine.actors.fleet import Recipe
from rollcast.engine.actors.trainer import Rank, TrainerActor
from rollcast.engine.actors.transport import Actor, ActorLostError, Lane, Ref, Transport
from rollcast.engine.actors.weights import Channel


class Call:
    """One call of every rank. refs: the results of each, by rank; rank 0's count."""

    def __init__(self, transport: Transport, refs: Sequence[Sequence[Ref]]) -> None:
        self._transport = transport
        self._ranks = len(refs)
        self._values: dict[int, Any] = {}
        self._waiting = {of_rank[0]: rank for rank, of_rank in enumerate(refs)}
        self.results = refs[0]

    @property
    def waiting(self) -> list[Ref]:
        """References that have not come."""
        return [*self._waiting]

    def take(self, ready: Collection[Ref]) -> bool:
        """Takes in what is there; returns whether that is all. Raises ActorLostError where a rank
        is lost, or what its method raised."""
        for ref in [ref for ref in self._waiting if ref in ready]:
            rank = self._waiting[ref]
            try:
                self._values[rank] = self._transport.get(ref)
            except ActorLostError as error:
                raise ActorLostError(self._named(rank, error)) from None
            del self._waiting[ref]
        return not self._waiting

    def wait(self) -> Any:
        """Waits for every rank; returns rank 0's value. Raises as `take`, as soon as one fails."""
        while self._waiting:
            self.take(self._transport.wait(self.waiting, 1.0))
        return self.value

    @property
    def value(self) -> Any:
        """Rank 0's value."""
        return self._values[0]

    @property
    def values(self) -> list[Any]:
        """Each rank's value."""
        return [self._values[rank] for rank in sorted(self._values)]

    def _named(self, rank: int, error: ActorLostError) -> str:
        return str(error) if self._ranks == 1 else f"rank {rank}: {error}"


class TrainerRanks:
    """Starts an actor for each rank. recipes: of each."""

    def __init__(
        self, transport: Transport, recipes: Sequence[Recipe], channel: Channel | None
    ) -> None:
        self._transport = transport
        self._actors = [
            transport.start(
                TrainerActor,
                (recipe.start, recipe.need.cores, channel, Rank(number, len(recipes))),
                recipe.need,
                "trainer" if len(recipes) == 1 else f"trainer rank {number}",
            )
            for number, recipe in enumerate(recipes)
        ]
        # Where they meet goes from rank 0 to the others without passing here.
        place = self.first.call("meet") if len(recipes) > 1 else None
        self.started = self.call("begin", place)

    @property
    def first(self) -> Actor:
        """Rank 0."""
        return self._actors[0]

    def call(self, method: str, *arguments: Any, lane: Lane = "work", results: int = 1) -> Call:
        """Calls a method of every rank with the same arguments."""
        refs = [
            actor.call(method, *arguments, lane=lane, results=results) for actor in self._actors
        ]
        return Call(self._transport, [of_rank if results > 1 else [of_rank] for of_rank in refs])

    def kill(self) -> None:
        """Ends them at once: without one, the others would wait for ever."""
        for actor in self._actors:
            self._transport.kill(actor)
