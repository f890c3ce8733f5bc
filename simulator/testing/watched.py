"""A world that passes every call on to another one and keeps what it saw, for laws to check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import Key, Rollout, Segment, VersionTokens
from rollcast.simulator.core.world import ClusterShape, Ended, Event, TrainBatch, World


class TrainedOn(NamedTuple):
    """A rollout as the trainer got it, in the update of ``step``. Tokens of versions before
    ``mask_before_version`` were masked; None masks nothing."""

    step: int
    group: int
    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    attempt: int
    tokens_by_version: tuple[VersionTokens, ...]
    mask_before_version: int | None

    @property
    def name(self) -> tuple[int, int, int]:
        """(group, index, attempt)."""
        return self.group, self.index, self.attempt

    @property
    def new_tokens(self) -> int:
        """Response tokens."""
        return sum(part.tokens for part in self.tokens_by_version)

    @property
    def oldest_version(self) -> int | None:
        """The oldest version among unmasked tokens; None if all are masked."""
        first = self.mask_before_version or 0
        versions = [part.version for part in self.tokens_by_version if part.version >= first]
        return min(versions, default=None)


class Watched:
    """Stands between the loop and a world.

    submitted: how often each rollout was, by (group, index, attempt). segments: all that the world
    returned, in order. trained: every rollout that the trainer got, in order.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.name = world.name
        self.shape: ClusterShape = world.shape
        self.submitted: Counter[tuple[int, int, int]] = Counter()
        self.segments: list[Segment] = []
        self.trained: list[TrainedOn] = []

    @property
    def now_s(self) -> float:
        """The world's clock, seconds."""
        return self.world.now_s

    @property
    def read_s(self) -> float:
        """See `World.read_s`."""
        return self.world.read_s

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """See `World.submit`."""
        self.submitted.update((*rollout.key, rollout.attempt) for rollout in rollouts)
        self.world.submit(rollouts, placement)

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """See `World.abort`."""
        segments = self.world.abort(keys, for_good)
        self.segments += segments
        return segments

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """See `World.train`."""
        self.trained += [
            TrainedOn(
                batch.step,
                *rollout.key,
                rollout.attempt,
                tuple(rollout.tokens_by_version),
                batch.mask_before_version,
            )
            for group in batch.groups
            for rollout in group.rollouts
        ]
        self.world.train(batch, layout)

    def sync_weights(self) -> None:
        """See `World.sync_weights`."""
        self.world.sync_weights()

    def wait(self, until_s: float | None = None) -> list[Event]:
        """See `World.wait`."""
        events = self.world.wait(until_s)
        self.segments += [event.segment for event in events if isinstance(event, Ended)]
        return events

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """See `World.oracle_tokens`."""
        return self.world.oracle_tokens(rollout)
