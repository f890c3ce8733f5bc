"""The driver's view of the trainer: its update, its weights, its replacement when it is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from rollcast.engine.actors.fleet import MOST_LOSSES, POLL_S, START_S, Recipe, clock_offset
from rollcast.engine.actors.handles import ByHandles
from rollcast.engine.actors.machine import machine_name, versions
from rollcast.engine.actors.ranks import Call, TrainerRanks
from rollcast.engine.actors.trainer import Part, TrainerReady, Updated
from rollcast.engine.actors.transport import ActorLostError, Lane, Ref, Transport
from rollcast.engine.actors.weights import ByFiles, ByStore, Channel, InFile
from rollcast.engine.actors.wire import ByWire
from rollcast.engine.edges import Beat, OnWire, TrainerSave
from rollcast.engine.errors import EngineError
from rollcast.simulator.errors import RunError

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights after an update: where they are, and sequences with the trainer's log-probabilities
    of them, to check an engine."""

    version: int
    ref: Ref
    sample: Sequence[Sequence[int]]
    log_probs: list[list[float]]


@dataclass(eq=False, slots=True)
class Snapshot:
    """The trainer's state after so many updates, on its way to files. save: once all are written.
    lost: the trainer was lost before. refused: why the disk refused."""

    version: int
    folder: Path
    held: int  # parts that it holds the updates of
    save: TrainerSave | None = None
    lost: bool = False
    refused: str = ""

    @property
    def over(self) -> bool:
        """Whether nothing is being written any more."""
        return self.save is not None or self.lost or bool(self.refused)


class Updates:
    """The trainer, with one actor a rank. ``latest``: the weights after its last update, None
    before the first. recipes: of each rank.

    When any rank is lost, new ones take up the last whole save, or their start, repeat the parts
    since, and end with the same weights. place: asked before each update, with the number of those
    before; a folder that it names gets a `Snapshot`. Raises EngineError where it cannot start at
    all.
    """

    def __init__(
        self,
        transport: Transport,
        recipes: Sequence[Recipe],
        channel: Channel | None = None,
        heartbeat_s: float = 60.0,
    ) -> None:
        self._transport = transport
        self._recipes = recipes
        self._channel = channel
        self._heartbeat_s = heartbeat_s
        self.latest: Weights | None = None
        self.zero_s = 0.0
        self._losses = 0
        self.place: Callable[[int], Path | None] | None = None
        self.snapshot: Snapshot | None = None
        self._save: TrainerSave | None = None  # the last whole one; None: how it starts
        self._since: list[Part] = []  # the parts given after that
        self._saving: Call | None = None
        self._written: Call | None = None
        self._part: Part | None = None  # under way
        self._done: Call | None = None
        self._beat: Call | None = None
        self._asked_s = 0.0  # the beat, or the start
        self._pulse: Call | None = None
        self.pulses: list[Beat] = []  # taken, and not yet fetched from here
        self._sends: dict[int, list[Ref]] = {}  # under way, by replica
        self._lines: dict[int, int] = {}  # the connection of a replica
        self._connections = count()
        self._starting = True
        self._repairs: list[Call] = []
        self._between = True
        self._ranks = self._start()

    # Starting

    def require_started(self) -> TrainerReady:
        """Waits for its start. Raises EngineError where it cannot, or has other packages."""
        try:
            self._ranks.started.wait()
        except ActorLostError as error:
            raise EngineError(f"the trainer was lost while it started: {error}") from None
        self._starting, self._repairs = False, []
        every: list[TrainerReady] = self._ranks.started.values
        if any(ready.versions != versions() for ready in every):
            raise EngineError("the trainer has other versions of its packages than this process")
        self.zero_s = 0.0
        if every[0].machine != machine_name():
            self.zero_s = clock_offset(self._transport, self._ranks.first)
        return every[0]

    def _start(self) -> TrainerRanks:
        ranks = TrainerRanks(self._transport, self._recipes, self._channel)
        self._repairs, self._starting, self._beat, self._pulse = [], True, None, None
        self._saving = self._written = None
        if self.snapshot is not None and not self.snapshot.over:
            self.snapshot.lost = True
        self._asked_s = time.perf_counter()
        return ranks

    # Updates

    @property
    def busy(self) -> bool:
        """Whether an update, or a part of one, is under way."""
        return self._part is not None

    @property
    def version(self) -> int:
        """The number of updates known here."""
        return 0 if self.latest is None else self.latest.version

    @property
    def refs(self) -> list[Ref]:
        """References to wait for."""
        if self._starting:
            return self._ranks.started.waiting
        if self._beat is None and self._transport.processes:
            pause_s = min(POLL_S, self._heartbeat_s / 4)
            self._beat = self._ranks.call("beat", pause_s, lane="watch")
            self._asked_s = time.perf_counter()
        self._ask_for_files(min(POLL_S, self._heartbeat_s / 4) if self._transport.processes else 0)
        calls = (self._done, self._beat, self._pulse, self._saving, self._written)
        sends = [ref for refs in self._sends.values() for ref in refs]
        waiting = [ref for call in calls if call is not None for ref in call.waiting]
        return [*waiting, *sends]

    def begin(self, part: Part) -> None:
        """Starts an update, or a part of one."""
        if self._part is not None:
            raise RunError("an update asked for while another is under way")
        if self._transport.processes:
            if self.between and self.place is not None:
                folder = self.place(self.version)
                if folder is not None:
                    self.take_snapshot(folder)
            self._since.append(part)
        self._between = False
        self._issue(part)

    @property
    def between(self) -> bool:
        """Whether the trainer stands between two updates, with no part of one."""
        return self._between and self._part is None

    def _issue(self, part: Part) -> None:
        self._part = part
        self._done = self._ranks.call("step", part, results=2)

    def receive(self, ready: Sequence[Ref]) -> tuple[Part, Updated] | str | None:
        """A part that is done, or why the trainer is lost. Raises RunError if it refused it."""
        there = set(ready)
        try:
            if self._starting:
                if self._ranks.started.take(there):
                    self._starting = False
                elif time.perf_counter() - self._asked_s > max(START_S, self._heartbeat_s):
                    return f"did not start within {max(START_S, self._heartbeat_s):g} s"
                return None
            self._arrived(there)
            if self._pulse is not None and self._pulse.take(there):
                self.pulses.append(self._pulse.value)
                self._pulse = None
            self._take_files(there)
            if self._done is not None and self._done.take(there):
                for repair in self._repairs:
                    repair.wait()
                self._repairs = []
                return self._finished(self._done)
            if self._beat is not None and self._beat.take(there):
                self._beat = None
        except ActorLostError as error:
            return str(error)
        except ValueError as error:
            raise RunError(f"the trainer cannot resume from its own state: {error}") from None
        if self._beat is not None and time.perf_counter() - self._asked_s > self._heartbeat_s:
            return f"no sign of life for {self._heartbeat_s:g} s"
        return None

    def _finished(self, done: Call) -> tuple[Part, Updated]:
        assert self._part is not None
        part, self._part, self._done = self._part, None, None
        updated: Updated = done.value
        if refused := [rank.error for rank in done.values if rank.metrics is None]:
            raise RunError(f"the update of step {part.version} failed: {refused[0]}")
        if part.final:
            sample = [list(tokens) for tokens in part.sample]
            self.latest = Weights(part.version + 1, done.results[1], sample, updated.log_probs)
            self._losses = 0
            self._between = True
        return part, updated

    # Losing it, and going on

    def replace(self, cause: str, at_fault: bool = True) -> None:
        """Replaces the trainer and restarts what was under way. at_fault: the trainer itself
        failed. Raises EngineError after too many losses in a row."""
        self._ranks.kill()
        self._sends = {}
        self._losses += at_fault
        if self._losses > MOST_LOSSES:
            raise EngineError(f"the trainer was lost {self._losses} times in a row: {cause}")
        under_way, self._part, self._done = self._part, None, None
        self._ranks = self._start()
        if self._save is not None:
            self._repairs.append(self._ranks.call("load", self._save))
        for part in self._since:
            if part is not under_way:
                self._repairs.append(self._ranks.call("step", part, results=2))
        if under_way is not None:
            self._issue(under_way)

    # Saves

    def take_snapshot(self, folder: Path) -> Snapshot:
        """Has the trainer save its state, between two updates, in the background."""
        self.snapshot = Snapshot(self.version, folder, len(self._since))
        self._saving, self._written = self._ranks.call("save", folder), None
        return self.snapshot

    @property
    def save_in_use(self) -> Path | None:
        """The folder of the save that a new trainer would take up."""
        return None if self._save is None else self._save.folder

    def finish_snapshot(self) -> None:
        """Waits until it is over. Raises ActorLostError."""
        while self.snapshot is not None and not self.snapshot.over:
            self._ask_for_files(_LOOK_S)
            calls = [call for call in (self._saving, self._written) if call is not None]
            waiting = [ref for call in calls for ref in call.waiting]
            self._take_files({*self._transport.wait(waiting, 1.0)})

    def _ask_for_files(self, wait_s: float) -> None:
        """Asks the ranks whether they have written, once all have begun."""
        begun = self._saving is not None and not self._saving.waiting
        if begun and self._written is None and self.snapshot and not self.snapshot.over:
            # Beside the signs of life, which pause, where that way is free.
            lane: Lane = "watch" if self.wired else "wire"
            self._written = self._ranks.call("saved", wait_s, lane=lane)

    def _take_files(self, there: set[Ref]) -> None:
        snapshot = self.snapshot
        if snapshot is None or snapshot.over or self._saving is None:
            return
        try:
            begun = self._saving.take(there)
            if not begun or self._written is None or not self._written.take(there):
                return
        except RunError as error:
            snapshot.refused = str(error)
            return
        files: list[Mapping[str, Any] | None] = self._written.values
        plain = self._saving.value
        self._written = None
        if any(of_rank is None for of_rank in files):
            return
        named = {name: file for of_rank in files if of_rank for name, file in of_rank.items()}
        snapshot.save = TrainerSave(snapshot.folder, named, plain)
        self._save, self._since = snapshot.save, self._since[snapshot.held :]

    # Between two steps

    def load(self, save: TrainerSave | None, updates: int) -> None:
        """Takes up a save, after that many updates; None is how it starts. Raises ValueError for
        another model, or files that are not what they were."""
        self._save, self._since, self._between = save, [], True
        if save is not None:
            self._ranks.call("load", save).wait()
        self.latest = Weights(updates, self.weights(), [], []) if updates else None

    def export(self, folder: Path, dtype: str) -> None:
        """Writes the idle trainer's model as a Hugging Face folder. Raises RunError, or
        ActorLostError."""
        self._ranks.call("export", folder, dtype).wait()

    def weights(self) -> Any:
        """The weights; a `Ref`."""
        return self._ranks.call("weights").results[0]

    def published(self, tensors: Mapping[str, Any]) -> Ref:
        """Weights of this process, on the trainer's way to the replicas."""
        channel = self._channel if isinstance(self._channel, ByFiles) else ByStore()
        return self._transport.put(channel.pack(tensors))

    def keep_only(self, used: Sequence[Weights]) -> None:
        """Removes files of weights that nobody needs any more; none that are being written."""
        if isinstance(self._channel, ByFiles):
            newest = [] if self.latest is None else [self.latest]
            refs = [weights.ref for weights in (*used, *newest)]
            found = [self._transport.get(ref) for ref in refs if self._transport.wait([ref], 0.0)]
            self._channel.keep_only([one for one in found if isinstance(one, InFile)])

    # Weights by wire

    @property
    def wired(self) -> bool:
        """Whether weights go from device to device."""
        return isinstance(self._channel, ByWire | ByHandles)

    def connect(self, replica: int, workers: int) -> Ref:
        """Where a replica of so many workers connects to the trainer, which waits for it."""
        name = replica
        if isinstance(self._channel, ByHandles):  # an update and `meet` run beside each other
            name = self._lines[replica] = next(self._connections)
        where = self._wire("meet", name, workers)
        self._sends[replica] = [self._wire("join", name)]
        return where

    def send(self, replicas: Sequence[int], weights: Ref) -> None:
        """Sends weights to replicas that receive them at the same time."""
        if isinstance(self._channel, ByHandles):
            lines = tuple(self._lines[replica] for replica in replicas)
            call = self._ranks.call("wire", "send", lines, weights)
            for replica in replicas:
                self._sends[replica] += call.waiting
            return
        for replica in replicas:
            self._sends[replica].append(self._wire("send", replica, weights))

    def sending_to(self, replica: int) -> bool:
        """Whether anything is on its way there."""
        return bool(self._sends.get(replica))

    def tensors(self, weights: Ref) -> Any:
        """Weights for `unpack`, wherever they are. Raises ActorLostError."""
        tensors = self._transport.get(weights)
        if isinstance(tensors, OnWire):
            tensors = self._transport.get(self._wire("packed", weights))
        return tensors

    def _wire(self, method: str, *arguments: Any) -> Ref:
        return self._ranks.first.call("wire", method, *arguments, lane="wire")

    def _arrived(self, there: set[Ref]) -> None:
        """Notes sent weights. Raises EngineError where sending failed."""
        for refs in self._sends.values():
            for ref in [ref for ref in refs if ref in there]:
                self._transport.get(ref)
                refs.remove(ref)

    def log_probs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """The newest weights' log-probabilities, from the idle trainer. Raises ActorLostError."""
        log_probs: list[list[float]] = self._ranks.call("log_probs", sequences).wait()
        return log_probs

    def pulse(self) -> Beat:
        """The speed probe on the idle trainer's device. Raises ActorLostError."""
        beat: Beat = self._ranks.call("pulse").wait()
        return beat

    def ask_for_pulse(self) -> None:
        """Starts the speed probe before the next call; ``pulses`` gets its result."""
        if self._pulse is None:
            self._pulse = self._ranks.call("pulse")
