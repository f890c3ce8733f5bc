"""Where a run takes place, in this process or on actors: its world and loop, and how both are saved
and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from engine import checkpoint, start
from engine.actors.saving import ActorResumed, ActorSaver, read_actors
from engine.actors.world import ActorWorld
from engine.config import RunSpec
from engine.saving import Resumed, Saver, read
from engine.world import EngineWorld, shape_of
from simulator.loop import Loop
from simulator.loop.recorded import Entry, RecordedWorld
from simulator.spans import StepRecord

OnRecord = Callable[[StepRecord], None]


class Stage(Protocol):
    """A world that has started, and the loop on it."""

    loop: Loop

    @property
    def world(self) -> EngineWorld | ActorWorld:
        """The world itself."""
        ...

    @property
    def replaying(self) -> bool:
        """Whether the loop is still on its way to where an unfinished run was saved."""
        ...

    @property
    def entries(self) -> list[Entry]:
        """What the loop was told; none where that is not kept."""
        ...

    def put_back(self) -> None:
        """Goes on from the unfinished run, if there was one. Raises ScenarioError (``--resume``)
        where it is damaged."""
        ...

    def save_to(self, writer: checkpoint.Writer, known: Mapping[str, Any]) -> None:
        """Has `save` write there; ``known`` is what tells the run from another one."""
        ...

    def save(self) -> None:
        """Saves the run between two steps, where it can be gone on from there."""
        ...


class InProcess:
    """One replica and the trainer, here. on_step: as in `simulator.loop.run`."""

    def __init__(self, spec: RunSpec, resumed: Resumed | None, on_step: OnRecord) -> None:
        self.world = start.start_world(spec)
        self.entries: list[Entry] = []
        self.replaying = False
        self.loop = Loop(self.world, spec.policy, spec.plan, on_step)
        self._saver: Saver | None = None
        self._resumed = resumed

    @staticmethod
    def read(spec: RunSpec, out: Path) -> Resumed:
        """The unfinished run beside ``out``."""
        slots = None if spec.turns is None else spec.turns.environment.slots
        return read(out, spec.raw.data, spec.policy, shape_of(spec.engine.max_seqs, slots))

    def put_back(self) -> None:
        """Goes on from the unfinished run."""
        if self._resumed is not None:
            self._resumed.put_back(self.loop, self.world)

    def save_to(self, writer: checkpoint.Writer, known: Mapping[str, Any]) -> None:
        """Has `save` write there."""
        self._saver = Saver(writer, known, self.loop, self.world)

    def save(self) -> None:
        """Saves the run, where nothing is under way."""
        if self._saver is not None and self.loop.at_rest:
            self._saver.save()


class OnActors:
    """Replicas and trainer in processes of their own. address: of a Ray cluster."""

    def __init__(
        self,
        spec: RunSpec,
        resumed: ActorResumed | None,
        on_step: OnRecord,
        address: str | None = None,
    ) -> None:
        self.world = start.start_actors(spec, address)
        entries = [] if resumed is None else resumed.entries
        world = self.world
        self._record = RecordedWorld(entries, world, world.shape, world.name, world.go_on)

        def stepped(record: StepRecord) -> None:
            if not self.replaying:
                on_step(record)

        self.loop = Loop(self._record, spec.policy, spec.plan, stepped)
        self._saver: ActorSaver | None = None
        self._resumed = resumed

    @staticmethod
    def read(spec: RunSpec, out: Path) -> ActorResumed:
        """The unfinished run beside ``out``."""
        return read_actors(out, spec.raw.data)

    @property
    def replaying(self) -> bool:
        """Whether the record still answers."""
        return self._record.replaying

    @property
    def entries(self) -> list[Entry]:
        """The record."""
        return self._record.entries

    def put_back(self) -> None:
        """Goes on from the unfinished run."""
        if self._resumed is not None:
            self._resumed.put_back(self.world)

    def save_to(self, writer: checkpoint.Writer, known: Mapping[str, Any]) -> None:
        """Has `save` write there."""
        self._saver = ActorSaver(writer, known, self._record, self.world)

    def save(self) -> None:
        """Saves the run, whatever is under way."""
        if self._saver is not None:
            self._saver.save(len(self.loop.result.steps))
