"""A log that grows: each look reads what was added, and returns what `read_log` would.

Consoles, lines of JSON and event files are continued after the last whole line or record; a part
without its end counts for that look alone. Other files (tables, documents, packed ones, dumps of
other kinds) are read again where they changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.gather import Dumps, gathered, named, read_log
from rollcast.calibration.logs.opened import START, LogFile, Reached, find
from rollcast.calibration.logs.run_log import RunLog
from rollcast.calibration.logs.scan import begun
from rollcast.calibration.logs.scanned import Reader, Scanned

_TAIL = 256


class _Mark(NamedTuple):
    """A file's state."""

    inode: int
    size: int
    changed_ns: int

    @classmethod
    def of(cls, file: LogFile) -> _Mark:
        """Raises LogError for a file that is gone."""
        try:
            status = file.path.stat()
        except OSError as error:
            raise LogError(f"cannot read {file.name}: {error.strerror}") from None
        return cls(status.st_ino, status.st_size, status.st_mtime_ns)


@dataclass(slots=True)
class _Known:
    """A file read up to ``reached``, after ``tail``. reader: None for one that is read whole."""

    mark: _Mark
    found: Scanned
    reader: Reader | None
    reached: Reached = field(default_factory=Reached)
    tail: bytes = b""

    def grew(self, file: LogFile, mark: _Mark) -> bool:
        """Whether nothing but its end has changed. Raises LogError."""
        if self.reader is None or self.reached.offset < START:
            return False  # its kind was told by fewer bytes than `START`
        if mark.inode != self.mark.inode or mark.size < self.reached.offset:
            return False
        return _before(file, self.reached.offset) == self.tail


class GrowingLog:
    """The log of a run that continues. paths, stack: as in `read_log`."""

    def __init__(self, paths: Sequence[Path], stack: str | None = None) -> None:
        self._paths, self._stack, self._wanted = paths, stack, named(stack)
        self._known: dict[str, _Known] = {}
        self._dumps = Dumps(self._wanted)

    def read(self) -> RunLog:
        """What `read_log` would read now. Raises LogError as it does."""
        try:
            files = find(self._paths)
            marks = {file.name: _Mark.of(file) for file in files}
            again = self._changed(files, marks)
            if any(known.found.dumped for known in again.values()):
                self._forget()  # rollouts are not told apart by file
            for name in again:
                self._known.pop(name, None)
            for file in files:
                self._read(file, marks[file.name])
            dumps = self._dumps.copied()
            scanned = [_finished(self._known[file.name], dumps) for file in files]
            if dumps.mingled:  # groups that only the order of reading tells
                self._forget()
                return read_log(self._paths, self._stack)
            return gathered(self._paths, scanned, dumps, self._wanted)
        except LogError:
            self._forget()  # a file may have been read in part
            raise

    def _forget(self) -> None:
        self._known, self._dumps = {}, Dumps(self._wanted)

    def _changed(self, files: Sequence[LogFile], marks: dict[str, _Mark]) -> dict[str, _Known]:
        """Files that are gone or were not merely appended to."""
        here = {file.name: file for file in files}
        return {
            name: known
            for name, known in self._known.items()
            if name not in here
            or (marks[name] != known.mark and not known.grew(here[name], marks[name]))
        }

    def _read(self, file: LogFile, mark: _Mark) -> None:
        """Reads what was added to a file, or all of a new one."""
        known = self._known.get(file.name)
        if known is None:
            scanned, reader = begun(file, self._dumps.take)
            if reader is not None and not scanned.file.plain:
                reader.read(Reached(), whole=False)
                reader.close()
                reader = None
            known = self._known[file.name] = _Known(mark, scanned, reader)
        elif known.mark == mark:
            return
        known.mark = mark
        if known.reader is not None:
            known.reader.read(known.reached, whole=True)
            known.tail = _before(file, known.reached.offset)


def _finished(known: _Known, dumps: Dumps) -> Scanned:
    """A file's content, with a last part that has no end yet."""
    if known.reader is None:
        return known.found
    scanned = known.found.copied()
    reader = known.reader.copied(scanned, dumps.take)
    reader.read(replace(known.reached), whole=False)
    reader.close()
    return scanned


def _before(file: LogFile, offset: int) -> bytes:
    """The last bytes of a file before ``offset``. Raises LogError."""
    with file.open() as opened:
        opened.seek(max(offset - _TAIL, 0))
        return opened.read(min(offset, _TAIL))
