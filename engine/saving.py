"""A real run to its checkpoint and back.

Training may overlap with rollout, so there may be no moment at which nothing is under way. So a
save holds the record of what was returned to the loop (`simulator.loop.recorded`), the tokens, and
the trainer after the updates known to the loop: a fresh loop follows the record, and the world
restarts what was under way.

The trainer's ranks write their shards in the background. A save counts once all are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.engine import checkpoint
from rollcast.engine.actors.transport import ActorLostError
from rollcast.engine.actors.updates import Snapshot
from rollcast.engine.checkpoint_read import Saved, damaged, load
from rollcast.engine.log import EngineLog, LogJournal, replay_log
from rollcast.engine.responses import Tokens
from rollcast.engine.run_options import SaveOptions
from rollcast.engine.world import EngineWorld
from rollcast.engine.world_parts import WorldState
from rollcast.simulator.core.rollout import ENDINGS, Ending
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.loop.recorded import Entry, RecordedWorld, read_entry
from rollcast.simulator.values.plain import from_plain, to_plain

Arrays = Mapping[str, NDArray[Any]]
_ARRAYS = {"keys": np.int64, "ids": np.int64, "log_probs": np.float64, "versions": np.int64}
_TURNS = {"turns": np.int64, "earned": np.float64, "answers": np.int64}


class Saver:
    """Saves a run between its steps; ``known`` identifies the run. options: how often. version: the
    updates that the last save knows of; None before the first."""

    def __init__(
        self,
        writer: checkpoint.Writer,
        known: Mapping[str, Any],
        record: RecordedWorld,
        world: EngineWorld,
        options: SaveOptions | None = None,
        version: int | None = None,
    ) -> None:
        self._writer, self._known = writer, known
        self._record, self._world = record, world
        self._options = options or SaveOptions()
        self._entries = len(record.entries)
        self._log = LogJournal(world.log)
        self._saved = version  # by the last whole save
        self._draft: tuple[checkpoint.Draft, Snapshot | None, int] | None = None
        world.updates.place = self._place
        world.after_news = self._finish

    def save(self, steps: int, wall_s: float, last: bool = False) -> None:
        """Saves the run after so many steps and seconds, where that is due: skipped while the save
        before is being written, or the trainer is lost. last: is due, and waits until it is
        written. Raises RunError where the disk refuses."""
        if last:
            self._wait()
        version = self._world.trained
        if self._draft is not None or version is None or not self._due(version, last):
            return
        try:
            snapshot = self._snapshot(version)
            state = self._world.state()
        except ActorLostError:
            return
        if version and snapshot is None:
            return
        self._begin(state, snapshot, steps, wall_s)
        if last:
            self._wait()
        else:
            self._finish()

    def _due(self, version: int, last: bool = False) -> bool:
        if self._saved is None or last:
            return version != self._saved
        return version - self._saved >= self._options.every

    def _place(self, version: int) -> Path | None:
        """Where the trainer is to save itself before an update, after which its state is gone."""
        if self._draft is not None or not self._due(version) or not version:
            return None
        known = self._world.updates.snapshot
        if known is not None and (known.version == version or not known.over):
            return None
        return self._writer.place()

    def _snapshot(self, version: int) -> Snapshot | None:
        """The trainer's state after so many updates; None before the first, or where it is gone."""
        updates = self._world.updates
        known = updates.snapshot
        if not version:
            return None
        if known is not None and known.version == version and not known.lost:
            return known
        if not updates.between or updates.version != version:
            return None
        return updates.take_snapshot(self._writer.place())

    def _begin(
        self, world: WorldState, snapshot: Snapshot | None, steps: int, wall_s: float
    ) -> None:
        entries = self._record.entries
        state = {
            **self._known,
            "steps": steps,
            "wall_s": wall_s,
            "entries": len(entries),
            "world": {
                "clock_s": world.clock_s,
                "version": world.version,
                "updates": world.updates,
                "asked": to_plain(world.asked),
            },
        }
        added = {
            "events": [entry.to_plain() for entry in entries[self._entries :]],
            "log": self._log.added(),
        }
        number = None if snapshot is None else int(snapshot.folder.name.rpartition("-")[2])
        draft = self._writer.begin(state, added, pack(world.tokens), world.weights, number)
        self._entries = len(entries)
        self._draft = draft, snapshot, world.updates

    def _wait(self) -> None:
        """Until nothing is being written."""
        try:
            self._world.updates.finish_snapshot()
        except ActorLostError:
            return  # the next update reports it
        self._finish()

    def _finish(self) -> None:
        """Ends a save whose trainer is written. Raises RunError where the disk refused."""
        if self._draft is None:
            return
        draft, snapshot, version = self._draft
        if snapshot is not None:
            if not snapshot.over:
                return
            if snapshot.save is None:  # the ranks write it anew, or the run ends
                self._draft = None
                self._writer.prune(self._in_use)
                if snapshot.refused:
                    raise RunError(snapshot.refused)
                return
        self._draft = None
        trainer = None if snapshot is None else snapshot.save
        self._writer.finish(draft, trainer, self._in_use)
        self._saved = version

    @property
    def _in_use(self) -> list[Path]:
        folder = self._world.updates.save_in_use
        return [] if folder is None else [folder]


@dataclass(frozen=True)
class Resumed:
    """A run read from its checkpoint. world: its state. done: steps. wall_s: seconds it ran."""

    saved: Saved
    entries: list[Entry]
    world: WorldState
    log: EngineLog
    done: int
    wall_s: float

    def put_back(self, world: EngineWorld) -> None:
        """Has a world that did nothing yet take up the state. Raises ValueError for damaged
        tensors, or those of another model; it may then take up another state."""
        world.load_state(replace(self.world, weights=self.saved.replicas()), self.log)


def read(
    out: Path,
    scenario: Mapping[str, Any],
    keep: int = 1,
    refused: tuple[int, Exception] | None = None,
) -> Resumed:
    """The unfinished run beside ``out``. refused: a save that `Resumed.put_back` refused, and why;
    it is an older one then. Raises ScenarioError (``--resume``) where there is none, or it cannot
    be continued."""
    saved = load(out, scenario, keep, refused)
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
        state = WorldState(
            from_plain(plain.get("clock_s"), float, "clock_s"),
            from_plain(plain.get("version"), int, "version"),
            from_plain(plain.get("updates"), int, "updates"),
            from_plain(plain.get("asked"), dict[int, int], "asked"),
            unpack(arrays),
            saved.trainer,
        )
        if state.updates and saved.trainer is None:
            raise ValueError("the trainer's state is missing")
        done = from_plain(saved.state.get("steps"), int, "steps")
        wall_s = from_plain(saved.state.get("wall_s"), float, "wall_s")
    except (ValueError, RecursionError) as error:
        raise damaged(out, error) from None
    return Resumed(saved, entries, state, log, done, wall_s)


def pack(tokens: Mapping[tuple[int, int], Tokens]) -> Arrays:
    """Tokens of rollouts as arrays: keys [rollouts, 4] (group, index, attempt, tokens), and ids,
    log_probs and versions [tokens]. With turns: turns [rollouts, 3] (answers, asking, ending),
    earned [rollouts], answers [answers, 2]."""
    items = tokens.items()
    turned = {}
    if any(
        kept != Tokens(kept.attempt, kept.ids, kept.log_probs, kept.versions) for _, kept in items
    ):
        turns = [(len(kept.answers), kept.asking, _ending_number(kept.ending)) for _, kept in items]
        answers = [answer for _, kept in items for answer in kept.answers]
        turned = {
            "turns": np.array(turns, dtype=np.int64).reshape(-1, 3),
            "earned": np.array([kept.earned for _, kept in items], dtype=np.float64),
            "answers": np.array(answers, dtype=np.int64).reshape(-1, 2),
        }
    keys = [(*key, kept.attempt, len(kept.ids)) for key, kept in items]
    return {
        "keys": np.array(keys, dtype=np.int64).reshape(-1, 4),
        "ids": np.array([i for _, kept in items for i in kept.ids], dtype=np.int64),
        "log_probs": np.array([p for _, kept in items for p in kept.log_probs], dtype=np.float64),
        "versions": np.array([v for _, kept in items for v in kept.versions], dtype=np.int64),
        **turned,
    }


def unpack(arrays: Arrays) -> dict[tuple[int, int], Tokens]:
    """The inverse of `pack`. Raises ValueError for other arrays."""
    for name, kind in _ARRAYS.items():
        if name not in arrays or arrays[name].dtype != kind:
            raise ValueError(f"the rollouts' {name} are missing or of another type")
    keys, columns = arrays["keys"], [arrays[name] for name in ("ids", "log_probs", "versions")]
    counts = keys[:, 3] if keys.ndim == 2 and keys.shape[1] == 4 else np.array([-1])
    total = int(counts.sum())
    if (counts < 0).any() or any(column.shape != (total,) for column in columns):
        raise ValueError("the rollouts' tokens are not as many as they are said to be")
    unpacked, end = {}, 0
    for group, index, attempt, count in keys.tolist():
        start, end = end, end + count
        ids, log_probs, versions = (tuple(column[start:end].tolist()) for column in columns)
        unpacked[group, index] = Tokens(attempt, ids, log_probs, versions)
    if "turns" in arrays:
        _unpack_turns(arrays, unpacked)
    return unpacked


def _unpack_turns(arrays: Arrays, unpacked: Mapping[tuple[int, int], Tokens]) -> None:
    """Adds the turns. Raises ValueError where they do not fit."""
    turns, earned, answers = (arrays.get(name, np.array([])) for name in _TURNS)
    count = len(unpacked)
    shapes = turns.shape == (count, 3) and earned.shape == (count,) and answers.shape[1:] == (2,)
    if not shapes or any(arrays[name].dtype != kind for name, kind in _TURNS.items()):
        raise ValueError("the rollouts' turns are missing or of another type")
    end, spans = 0, [(int(first), int(last)) for first, last in answers.tolist()]
    rows = zip(unpacked.values(), turns.tolist(), earned.tolist(), strict=True)
    for kept, (number, asking, ending), reward in rows:
        start, end = end, end + number
        kept.answers, kept.asking, kept.earned = tuple(spans[start:end]), bool(asking), reward
        if number < 0 or asking not in (0, 1) or not -1 <= ending < len(ENDINGS):
            raise ValueError("the rollouts' turns are none")
        kept.ending = None if ending < 0 else ENDINGS[ending]
        edges = [0, *(edge for span in kept.answers for edge in span), len(kept.ids)]
        if edges != sorted(edges):
            raise ValueError("the rollouts' answers do not lie within their tokens")
    if end != len(spans):
        raise ValueError("the rollouts' answers are not as many as they are said to be")


def _ending_number(ending: Ending | None) -> int:
    return -1 if ending is None else ENDINGS.index(ending)


def require_prompts(saved: Saved, out: Path, prompts: str | None) -> None:
    """Raises ScenarioError (``--resume``) where the prompts have changed."""
    if saved.state.get("prompts") != prompts:
        message = f"the prompts have changed since the unfinished run beside {out} was saved"
        raise ScenarioError("--resume", message)
