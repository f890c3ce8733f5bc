"""Follows a log while it grows: the part that waits, reads and reports.

Files are compared by name, size, time and first bytes; what was added is read. The pause after a
reading is `REST` times its duration: a log of any size costs a tenth of one core at most. A line
without its end is not counted. Steps of a file that was truncated, rotated or replaced are kept,
unless its steps begin anew.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollcast.calibration.live.monitor import State, late, state
from rollcast.calibration.logs.errors import LogError, NoStepsError
from rollcast.calibration.logs.growing import GrowingLog
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError

EVERY_S = 2.0
REST = 9.0
LEAST_EVERY_S = 0.05
_PATIENCE_S, _PATIENCE_STEPS = 600.0, 10.0
_HEAD = 256
_WHOLE_ANEW = (".json",)
"""Files that their trainer writes anew each time."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file's state. head: its first bytes; ended: whether its last byte ends a line."""

    inode: int
    size: int
    changed_ns: int
    head: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of one look. new: whether it differs from the one before. state: None until a step
    could be read. now_s: by the clock. waited_s: since the files last changed. late: a sentence
    where no step came for long. notices: events of the files. waiting: why there is no step yet.
    over: why this is the last look."""

    now_s: float
    state: State | None = None
    waited_s: float = 0.0
    late: str | None = None
    notices: tuple[str, ...] = ()
    waiting: str = ""
    over: str = ""
    new: bool = True


@dataclass(frozen=True, slots=True)
class Clock:
    """Seconds since the epoch, and a wait of some."""

    now: Callable[[], float] = time.time
    wait: Callable[[float], None] = time.sleep


@dataclass(frozen=True, slots=True)
class Asked:
    """paths, stack: as of `GrowingLog`. steps: updates of the run, where its settings do not say.
    every_s: between two looks at the files. patience_s: without a change in any, after which it is
    over; None: ten times the longest step, and ten minutes at least."""

    paths: tuple[Path, ...]
    stack: str | None = None
    steps: int | None = None
    every_s: float = EVERY_S
    patience_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ScenarioError for what makes no sense."""
        if self.steps is not None and self.steps < 1:
            raise ScenarioError("--steps", f"must be 1 or more, got {self.steps}")
        if not LEAST_EVERY_S <= self.every_s <= 86_400:
            raise ScenarioError(
                "--every", f"must be {LEAST_EVERY_S:g} to 86400 seconds, got {self.every_s:g}"
            )
        if self.patience_s is not None and not 0 < self.patience_s <= 1e7:
            raise ScenarioError(
                "--patience", f"must be seconds above 0 and at most 1e7, got {self.patience_s:g}"
            )
        for path in self.paths:
            if not path.exists():
                raise LogError(f"{path} does not exist")


def follow(asked: Asked, clock: Clock | None = None) -> Iterator[Seen]:
    """Yields each look; the last says why it is over.

    Raises LogError as `GrowingLog.read` does, where no further lines could help.
    """
    import pandas  # noqa: F401 - so that the first reading is not timed with the imports
    import scipy.stats  # noqa: F401

    clock = clock or Clock()
    state_of = _Reading(GrowingLog(asked.paths, asked.stack))
    files: Mapping[str, Stamp] = {}
    changed_s, steady = clock.now(), False
    pending = True
    while True:
        began = time.perf_counter()
        now = clock.now()
        files_now = look(asked.paths, files)
        if files_now != files:
            state_of.lost = state_of.lost or _damage(files, files_now)
            files, changed_s, pending, steady = files_now, now, True, False
        elif not steady and not pending and state_of.unfinished:
            pending = steady = True  # its writer is not coming back to that line
        seen: Seen | None = None
        gone = any(not path.exists() for path in asked.paths)  # to be written anew, perhaps
        if pending and not gone:
            pending = False
            seen = state_of.read(asked, files, steady, now)
        waited = now - changed_s
        over = state_of.over(asked, waited, pending and not gone)
        stalled = late(state_of.state, waited) if state_of.state is not None else None
        new = bool(over) or seen is not None or (bool(stalled) and not state_of.stalled)
        state_of.stalled = bool(stalled)
        base = seen or Seen(now, state_of.state, waiting=state_of.why)
        yield replace(base, waited_s=waited, late=stalled, over=over, new=new)
        if over:
            return
        clock.wait(max(asked.every_s, REST * (time.perf_counter() - began)))


@dataclass
class _Reading:
    """The log as far as it was read."""

    growing: GrowingLog
    log: RunLog | None = None
    state: State | None = None
    why: str = ""
    lost: str = ""
    stalled: bool = False
    unfinished: bool = False
    error: LogError | None = None

    def read(
        self, asked: Asked, files: Mapping[str, Stamp], steady: bool, now: float
    ) -> Seen | None:
        """Reads what was added; None where nothing is new."""
        try:
            log = self.growing.read()
        except NoStepsError as error:
            was, self.why = self.why, error.message
            notices = self._noticed(None)
            same = was == self.why and not notices
            return None if same else Seen(now, self.state, notices=notices, waiting=self.why)
        except LogError as error:
            # a file that is being replaced may be read by halves: the second time it is meant so
            if self.error is not None and self.error.message == error.message:
                raise
            self.error, self.unfinished = error, True
            return None
        self.error, self.why = None, ""
        log, self.unfinished = _without_unfinished(log, {} if steady else files)
        if log.steps.empty:
            return None
        notices = self._noticed(log)
        log = joined(self.log, log)
        current = state(log, asked.steps)
        if current.seen_s is None:  # the log has no times: a step was logged when the file changed
            last = max((stamp.changed_ns for stamp in files.values()), default=0) / 1e9
            had = self.state
            seen_s = had.seen_s if had is not None and had.step == current.step else last or now
            current = replace(current, seen_s=seen_s)
        new = self.state is None or current != self.state
        self.log, self.state = log, current
        return Seen(now, current, notices=notices) if new or notices else None

    def _noticed(self, log: RunLog | None) -> tuple[str, ...]:
        """A sentence on steps lost with a file, once."""
        lost, self.lost = self.lost, ""
        if not lost or self.log is None:
            return ()
        if log is None:
            return (f"{lost}; it holds no step yet",)
        before, now = self.log.steps["step"], log.steps["step"]
        gone = before[~before.isin(now)]
        if gone.empty:
            return (lost,)
        kept = "are kept" if gone.max() < now.min() else "are forgotten: it starts again"
        return (f"{lost}: steps {gone.min()} to {gone.max()}, which it no longer holds, {kept}",)

    def over(self, asked: Asked, waited: float, pending: bool) -> str:
        """Why the run counts as over; empty where it does not."""
        if self.state is not None and self.state.finished:
            return "all steps are logged"
        patience = asked.patience_s
        if patience is None:
            longest = self.state.longest_s if self.state is not None else 0.0
            longest = longest if longest == longest else 0.0
            patience = max(_PATIENCE_S, _PATIENCE_STEPS * longest)
        if waited < patience or pending:
            return ""
        if self.state is None:
            raise LogError(self.why or f"{asked.paths[0]} holds no step")
        return f"the log has not grown for {waited:.0f} s"


def joined(before: RunLog | None, now: RunLog) -> RunLog:
    """``now`` with the earlier steps and settings of ``before``, unless its steps begin anew."""
    if before is None or before.stack != now.stack:
        return now
    import pandas as pd

    first = now.steps["step"].min()
    earlier = before.steps[before.steps["step"] < first]
    if earlier.empty:
        return now
    steps = pd.concat([earlier, now.steps.astype(earlier.dtypes.to_dict())], ignore_index=True)
    return replace(now, steps=steps, settings={**before.settings, **now.settings})


def _without_unfinished(log: RunLog, files: Mapping[str, Stamp]) -> tuple[RunLog, bool]:
    """Without rows of tables whose last line has no end: its last figure may be cut."""
    cut = {
        name for name, stamp in files.items() if not stamp.ended and name.endswith((".csv", ".tsv"))
    }
    if not cut:
        return log, False
    last = {t.file: t.lines for t in log.tallies if t.file in cut}
    rows = [
        not (file in last and line >= last[file])
        for file, line in zip(log.steps["file"], log.steps["line"], strict=True)
    ]
    return replace(log, steps=log.steps[rows]), not all(rows)


def look(paths: Sequence[Path], before: Mapping[str, Stamp]) -> dict[str, Stamp]:
    """The present state of the files; a file that vanishes meanwhile is left out."""
    stamps: dict[str, Stamp] = {}
    for path in paths:
        inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        for entry in inside if path.is_dir() else [path]:
            try:
                stamps[str(entry)] = _stamp(entry, before.get(str(entry)))
            except OSError:
                continue
    return stamps


def _stamp(path: Path, had: Stamp | None) -> Stamp:
    status = path.stat()
    known = (status.st_ino, status.st_size, status.st_mtime_ns)
    if had is not None and (had.inode, had.size, had.changed_ns) == known:
        return had
    with path.open("rb") as file:
        head = file.read(_HEAD)
        ended = True
        if status.st_size:
            file.seek(max(status.st_size - 1, 0))
            ended = file.read(1) in (b"\n", b"")
    return Stamp(*known, head, ended)


def _damage(before: Mapping[str, Stamp], now: Mapping[str, Stamp]) -> str:
    """A sentence on a file that was not merely appended to; empty for none."""
    for name, had in before.items():
        if name.endswith(_WHOLE_ANEW):
            continue
        new = now.get(name)
        if new is None:
            return f"{name} is gone"
        if new.inode != had.inode:
            return f"{name} was replaced"
        if new.size < had.size:
            return f"{name} was truncated"
        shorter = min(len(had.head), len(new.head))
        if new.head[:shorter] != had.head[:shorter]:
            return f"{name} was written again"
    return ""
