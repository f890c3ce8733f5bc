"""A record of what a world was asked and answered, and a world that answers from it.

The loop's decisions follow from the world's answers: from a record it takes the same decisions
again, whatever the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.core.plan import Layout, Placement
from rollcast.simulator.core.rollout import OLD_CALL_ENDS, Key, Rollout, Segment
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    Phase,
    Synced,
    TrainBatch,
    Trained,
    World,
)
from rollcast.simulator.errors import RunError
from rollcast.simulator.values.plain import from_plain, to_plain

VERBS = ("submit", "abort", "train", "sync", "wait")


@dataclass(frozen=True, slots=True)
class Entry:
    """One verb. at_s: the world's clock when it returned.

    asked: its arguments: rollouts submitted or aborted as (group, index, attempt, tokens so far);
        an update's step, whether it was the final part, and its groups.
    segments: that an abort or a wait returned. trained, synced: further events of a wait.
    """

    verb: str
    at_s: float
    asked: tuple[Any, ...] = ()
    segments: tuple[Segment, ...] = ()
    trained: tuple[tuple[int, tuple[Phase, ...]], ...] = ()
    synced: tuple[tuple[Phase, ...], ...] = ()

    @property
    def events(self) -> list[Event]:
        """What a wait returned."""
        return [
            *(Ended(segment) for segment in self.segments),
            *(Trained(step, phases) for step, phases in self.trained),
            *(Synced(phases) for phases in self.synced),
        ]

    def to_plain(self) -> dict[str, Any]:
        """As JSON holds it, without what is empty."""
        fields = {"asked": self.asked, "segments": self.segments}
        fields |= {"trained": self.trained, "synced": self.synced}
        named = {name: to_plain(value) for name, value in fields.items() if value}
        return {"verb": self.verb, "at_s": self.at_s, **named}


def read_entry(data: Any, where: str) -> Entry:
    """What `Entry.to_plain` made. Raises ValueError for anything else."""
    fields = from_plain(data, dict[str, Any], where)
    if "stays" in fields:  # earlier records
        fields["segments"] = fields.pop("stays")
    if fields.get("verb") not in VERBS or not fields.keys() <= set(Entry.__dataclass_fields__):
        raise ValueError(f"{where} is no entry of a record")
    return Entry(
        fields["verb"],
        from_plain(fields.get("at_s"), float, where),
        _tuples(fields.get("asked", [])),
        from_plain(_present(fields.get("segments", [])), tuple[Segment, ...], where),
        from_plain(fields.get("trained", []), tuple[tuple[int, tuple[Phase, ...]], ...], where),
        from_plain(fields.get("synced", []), tuple[tuple[Phase, ...], ...], where),
    )


def _present(segments: Any) -> Any:
    """Segments in today's words."""
    if isinstance(segments, list):
        return [_present(item) for item in segments]
    return OLD_CALL_ENDS.get(segments, segments) if isinstance(segments, str) else segments


def _tuples(data: Any) -> Any:
    return tuple(map(_tuples, data)) if isinstance(data, list) else data


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What is under way at a record's end: rollouts with placement, in order of submission; the
    update; whether a sync is."""

    rollouts: tuple[tuple[Rollout, Placement], ...]
    update: tuple[TrainBatch, Layout] | None
    sync: bool


class RecordedWorld:
    """A `simulator.core.world.World` that answers from a record, then from another world.

    entries: the record; the other world's answers are added to it. world: None ends with the
    record. go_on: called with what is under way when the other world is first asked. Between two
    verbs the clock stands still, so that the loop's times equal the record's.

    Raises RunError for a verb that is not the recorded one, and at the record's end without a
    world.
    """

    read_s = -math.inf  # the driver reads responses as they end

    def __init__(
        self,
        entries: list[Entry],
        world: World | None,
        shape: ClusterShape,
        name: str,
        go_on: Callable[[UnderWay], None] | None = None,
    ) -> None:
        self.entries = entries
        self.shape = shape
        self.name = name
        self._world = world
        self._go_on = go_on if entries else None
        self._next = 0
        self._now_s = 0.0
        self._flying: dict[Key, tuple[Rollout, Placement]] = {}
        self._update: tuple[TrainBatch, Layout] | None = None
        self._syncing = False

    @property
    def now_s(self) -> float:
        """What the world's clock showed when the last verb returned."""
        return self._now_s

    @property
    def replaying(self) -> bool:
        """Whether the next answer is the record's."""
        return self._next < len(self.entries)

    @property
    def resuming(self) -> bool:
        """Whether the other world has not been asked since an earlier record ended."""
        return self._go_on is not None

    @property
    def under_way(self) -> UnderWay:
        """What has been asked for and has not come to its end."""
        rollouts = tuple(self._flying.values())
        return UnderWay(rollouts, self._update, self._syncing)

    def oracle_tokens(self, rollout: Rollout) -> int | None:
        """Nothing, by the record."""
        return None if self._world is None else self._world.oracle_tokens(rollout)

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        """Starts rollouts."""
        asked = tuple((*r.key, r.attempt, r.new_tokens) for r in rollouts)
        if self._recorded("submit", asked) is None:
            self._live.submit(rollouts, placement)
            self._note(Entry("submit", self._live.now_s, asked))
        for rollout in rollouts:
            self._flying[rollout.key] = rollout, placement

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        """Stops rollouts."""
        wanted = sorted(self._flying if keys is None else keys)
        entry = self._recorded("abort", tuple(wanted))
        if entry is None:
            segments = tuple(self._live.abort(wanted, for_good))
            entry = self._note(Entry("abort", self._live.now_s, tuple(wanted), segments))
        for segment in entry.segments:
            del self._flying[segment.key]
        return list(entry.segments)

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        """Starts an update, or a part of one."""
        groups = tuple((g.group, tuple(r.index for r in g.rollouts)) for g in batch.groups)
        asked = (batch.step, batch.final, groups)
        if self._recorded("train", asked) is None:
            self._live.train(batch, layout)
            self._note(Entry("train", self._live.now_s, asked))
        self._update = batch, layout

    def sync_weights(self) -> None:
        """Starts a sync."""
        if self._recorded("sync", ()) is None:
            self._live.sync_weights()
            self._note(Entry("sync", self._live.now_s))
        self._syncing = True

    def wait(self, until_s: float | None = None) -> list[Event]:
        """The next events."""
        entry = self._recorded("wait", ())
        if entry is None:
            events = self._live.wait(until_s)
            entry = self._note(
                Entry(
                    "wait",
                    self._live.now_s,
                    (),
                    tuple(event.segment for event in events if isinstance(event, Ended)),
                    tuple((e.step, e.phases) for e in events if isinstance(e, Trained)),
                    tuple(event.phases for event in events if isinstance(event, Synced)),
                )
            )
        for segment in entry.segments:
            if segment.ending != "turn":  # which goes on
                self._flying.pop(segment.key, None)
        if entry.trained:
            self._update = None
        if entry.synced:
            self._syncing = False
        return entry.events

    @property
    def _live(self) -> World:
        if self._world is None:
            raise RunError("the record ends here, and the loop would go on")
        if self._go_on is not None:
            go_on, self._go_on = self._go_on, None
            go_on(self.under_way)
        return self._world

    def _note(self, entry: Entry) -> Entry:
        self.entries.append(entry)
        self._next, self._now_s = len(self.entries), entry.at_s
        return entry

    def _recorded(self, verb: str, asked: tuple[Any, ...]) -> Entry | None:
        """The record's entry for this verb; None where it has come to its end."""
        if not self.replaying:
            return None
        entry = self.entries[self._next]
        if (entry.verb, entry.asked) != (verb, asked):
            raise RunError(
                f"the run does not follow its record: entry {self._next} is a {entry.verb} of "
                f"{_shown(entry.asked)}, and the loop asks for a {verb} of {_shown(asked)}"
            )
        self._next, self._now_s = self._next + 1, entry.at_s
        return entry


def _shown(asked: Any) -> str:
    text = repr(asked)
    return text if len(text) <= 80 else f"{text[:77]}..."
