"""A world that passes everything on to another one and keeps what went through, apart from the
loop's own books: what laws are held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from rollcast.simulator.plan import Layout, Placement
from rollcast.simulator.rollout import Key, Rollout, Segment, VersionTokens
from rollcast.simulator.world import ClusterShape, Ended, Event, TrainBatch, World


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
        """Its response's tokens."""
        return sum(part.tokens for part in self.tokens_by_version)

    @property
    def oldest_version(self) -> int | None:
        """Of the tokens that are trained on; None where all are masked."""
        first = self.mask_before_version
        versions = [
            s.version for s in self.tokens_by_version if first is None or s.version >= first
        ]
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
        """The world's clock."""
        return self.world.now_s

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Passes them on."""
        self.submitted.update((*rollout.key, rollout.attempt) for rollout in rollouts)
        self.world.submit(rollouts, placement)

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Passes it on."""
        segments = self.world.abort(keys, for_good)
        self.segments += segments
        return segments

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Passes it on."""
        for group in batch.groups:
            for rollout in group.rollouts:
                name, tokens_by_version = (
                    (*rollout.key, rollout.attempt),
                    tuple(rollout.tokens_by_version),
                )
                self.trained.append(
                    TrainedOn(batch.step, *name, tokens_by_version, batch.mask_before_version)
                )
        self.world.train(batch, layout)

    def sync_weights(self) -> None:
        """Passes it on."""
        self.world.sync_weights()

    def wait(self, until_s: float | None = None) -> list[Event]:
        """Passes it on."""
        events = self.world.wait(until_s)
        self.segments += [event.segment for event in events if isinstance(event, Ended)]
        return events

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """Passes it on."""
        return self.world.oracle_tokens(rollout)
