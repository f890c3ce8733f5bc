"""A real run while it goes on: its world, the record of what the loop was told, and the loop; how
they are saved and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rollcast.engine import checkpoint, start
from rollcast.engine.config import RunSpec
from rollcast.engine.saving import Resumed, Saver
from rollcast.engine.world import EngineWorld
from rollcast.simulator.loop.recorded import Entry, RecordedWorld
from rollcast.simulator.runs.drive import loop_of
from rollcast.simulator.spans import StepRecord


class RecordedRun:
    """Starts a scenario's world: in this process, or on actors of the Ray cluster at ``address``
    (None: of this machine). resumed: the unfinished run to go on from. on_step: called after each
    step that an unfinished run had not done."""

    def __init__(
        self,
        spec: RunSpec,
        resumed: Resumed | None,
        on_step: Callable[[StepRecord], None],
        address: str | None = None,
    ) -> None:
        self.world: EngineWorld
        if spec.in_process:
            self.world = start.start_world(spec)
        else:
            self.world = start.start_actors(spec, address)
        world, entries = self.world, [] if resumed is None else resumed.entries
        self._record = RecordedWorld(entries, world, world.shape, world.name, world.go_on)

        def stepped(record: StepRecord) -> None:
            if not self.resuming:
                on_step(record)

        self.loop = loop_of(spec, self._record, stepped)
        self._in_process = spec.in_process
        self._saver: Saver | None = None
        self._resumed = resumed

    @property
    def resuming(self) -> bool:
        """Whether the loop is still on its way to where an unfinished run was saved."""
        return self._record.resuming

    @property
    def entries(self) -> list[Entry]:
        """The record."""
        return self._record.entries

    def put_back(self) -> None:
        """Goes on from the unfinished run, if there was one. Raises ScenarioError (``--resume``)
        where it is damaged."""
        if self._resumed is not None:
            self._resumed.put_back(self.world)

    def save_to(self, writer: checkpoint.Writer, known: Mapping[str, Any]) -> None:
        """Has `save` write there; ``known`` is what tells the run from another one."""
        self._saver = Saver(writer, known, self._record, self.world)

    def save(self) -> None:
        """Saves the run between two steps; in one process only where nothing is under way and the
        engine has the newest weights."""
        if self._saver is not None and (not self._in_process or self.loop.at_rest):
            self._saver.save(len(self.loop.result.steps))
