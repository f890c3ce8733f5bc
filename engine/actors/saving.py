"""A run of actors to its checkpoint and back.

With overlap there is no moment at which nothing is under way. What is saved is the record of all
that the loop was told (`simulator.loop.recorded`), the tokens that it knows of, and the trainer
after the updates that it knows of: a fresh loop follows the record to the same place, and has what
was under way then begin again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import checkpoint
from engine.actors.transport import ActorLostError
from engine.actors.world import ActorState, ActorWorld
from engine.edges import TrainerState
from engine.log import EngineLog, LogJournal, replay_log
from engine.saving import pack, unpack
from simulator.loop.plain import from_plain, to_plain
from simulator.loop.recorded import Entry, RecordedWorld, read_entry

_REPLICAS = "replicas/"


class ActorSaver:
    """Saves a run between its steps; ``known`` is what tells it from another run."""

    def __init__(
        self,
        writer: checkpoint.Writer,
        known: Mapping[str, Any],
        record: RecordedWorld,
        world: ActorWorld,
    ) -> None:
        self._writer, self._known = writer, known
        self._record, self._world = record, world
        self._entries = len(record.entries)
        self._log = LogJournal(world.log)

    def save(self, steps: int) -> None:
        """Saves it as it is now, with so many steps done; not where the trainer is lost just then,
        which the run gets over by itself. Raises RunError where the disk refuses."""
        try:
            world = self._world.state()
        except ActorLostError:
            return
        entries = self._record.entries
        state = {
            **self._known,
            "steps": steps,
            "entries": len(entries),
            "world": {
                "clock_s": world.clock_s,
                "version": world.version,
                "updates": world.updates,
                "asked": to_plain(world.asked),
            },
            "trainer": dict(world.trainer.plain),
        }
        added = {
            "events": [entry.to_plain() for entry in entries[self._entries :]],
            "log": self._log.added(),
        }
        tensors = dict(world.trainer.tensors)
        if world.weights is not None:
            tensors |= {_REPLICAS + name: tensor for name, tensor in world.weights.items()}
        self._writer.save(state, added, tensors, pack(world.tokens))
        self._entries = len(entries)


@dataclass(frozen=True)
class ActorResumed:
    """A run read from its checkpoint: the record, the world's state (without the tensors, which are
    large), and the log. done: steps."""

    saved: checkpoint.Saved
    entries: list[Entry]
    world: ActorState
    log: EngineLog
    done: int

    def put_back(self, world: ActorWorld) -> None:
        """Has a fresh world go on from it. Raises ScenarioError (``--resume``) where the tensors
        are damaged, or of another model."""
        tensors = self.saved.trainer()
        weights = {
            name.removeprefix(_REPLICAS): tensor
            for name, tensor in tensors.items()
            if name.startswith(_REPLICAS)
        }
        own = {name: t for name, t in tensors.items() if not name.startswith(_REPLICAS)}
        state = ActorState(
            self.world.clock_s,
            self.world.version,
            self.world.updates,
            self.world.asked,
            self.world.tokens,
            TrainerState(own, self.world.trainer.plain),
            weights or None,
        )
        try:
            world.load_state(state, self.log)
        except ValueError as error:
            raise checkpoint.damaged(self.saved.writer.out, error) from None


def read_actors(out: Path, scenario: Mapping[str, Any]) -> ActorResumed:
    """The unfinished run beside ``out``. Raises ScenarioError (``--resume``) where there is none,
    or it cannot be gone on from."""
    saved = checkpoint.load(out, scenario)
    entries: list[Entry] = []
    log = EngineLog()
    arrays = saved.tokens()
    try:
        for line in saved.journal:
            events = from_plain(line.get("events"), list[Any], "the journal")
            entries += [read_entry(event, "the journal") for event in events]
            replay_log(log, from_plain(line.get("log"), dict[str, Any], "the journal"))
        if len(entries) != saved.state.get("entries"):
            raise ValueError("the journal is not as long as it is said to be")
        plain = from_plain(saved.state.get("world"), dict[str, Any], "the world")
        state = ActorState(
            from_plain(plain.get("clock_s"), float, "clock_s"),
            from_plain(plain.get("version"), int, "version"),
            from_plain(plain.get("updates"), int, "updates"),
            from_plain(plain.get("asked"), dict[int, int], "asked"),
            unpack(arrays),
            TrainerState({}, from_plain(saved.state.get("trainer"), dict[str, Any], "trainer")),
            None,
        )
        done = from_plain(saved.state.get("steps"), int, "steps")
    except (ValueError, RecursionError) as error:
        raise checkpoint.damaged(out, error) from None
    return ActorResumed(saved, entries, state, log, done)
