"""Files, folders and archives: their bytes and lines, bounded.

A file is held whole only where its format needs it (`content`, up to `MOST_AT_ONCE`). Packed files
(``.gz``, ``.bz2``, ``.xz``, and the members of a ``.zip``) are unpacked as they are read, and given
up where they grow beyond reason.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from rollcast.calibration.logs.errors import LogError, NoStepsError, Tally, TooLargeError
from rollcast.simulator.results.file_starts import UNPACKERS, UTF_16, WHILE_UNPACKING, ZIP

MOST_FILES = 50_000
LONGEST_LINE = 64 * 2**20
"""Bytes: a step's columns in one line, or an episode of a hundred turns, are below it."""
MOST_AT_ONCE = 512 * 2**20
"""Bytes of a file that has to be held whole."""
_BLOCK = 256 * 1024
START = 65_536
"""Bytes by which it is told what a file is."""
MOST_TIMES, ALWAYS_FINE = 100, 64 * 2**20
"""A packed file may unpack to so many times its size, or to so many bytes. Consoles of genuine runs
shrink 5 to 20 times; gzip's most is 1,030."""

_WHILE_UNPACKING = (*WHILE_UNPACKING, zipfile.BadZipFile)
_BROKEN = "is not packed whole"
_PASSED_OVER = {".git", "__pycache__", "node_modules"}


@dataclass(slots=True)
class Reached:
    """Bytes and lines (or records) that were read, up to the end of the last whole one."""

    offset: int = 0
    count: int = 0


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file to read. member: its name within a zip archive."""

    path: Path
    member: str = ""

    @property
    def name(self) -> str:
        """For messages: its path, and within an archive its name there."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def inner(self) -> str:
        """The last part of its name, without the suffix of a packer."""
        last = (self.member or self.path.name).rsplit("/", 1)[-1]
        return last.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz")

    @property
    def parts(self) -> tuple[str, ...]:
        """Its folders, outermost first, then `inner`."""
        inside = self.member.split("/")[:-1] if self.member else []
        return (*self.path.parts[:-1], *inside, self.inner)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its bytes, unpacked. Raises LogError, also while it is read."""
        with ExitStack() as stack:
            try:
                file = self._opened(stack)
            except (RuntimeError, NotImplementedError, LookupError, ValueError) as error:
                raise LogError(f"cannot read {self.name}: {error}") from None
            except (OSError, EOFError, zipfile.BadZipFile) as error:
                raise self._failed(error) from None
            try:
                yield file
            except _WHILE_UNPACKING as error:
                raise self._failed(error) from None

    def _opened(self, stack: ExitStack) -> IO[bytes]:
        file = stack.enter_context(self.path.open("rb"))
        if self.member:
            archive = stack.enter_context(zipfile.ZipFile(file))
            info = archive.getinfo(self.member)
            inside = stack.enter_context(archive.open(info))
            return _bounded(inside, info.compress_size, self.name)
        magic = file.read(6)
        file.seek(0)
        for packed, unpack in UNPACKERS.items():
            if magic.startswith(packed):
                inside = stack.enter_context(cast(IO[bytes], unpack(file)))
                return _bounded(inside, os.fstat(file.fileno()).st_size, self.name)
        if magic.startswith(UTF_16):  # as PowerShell redirects text
            return cast(IO[bytes], codecs.EncodedFile(file, "utf-8", "utf-16", "replace"))
        return file

    def _failed(self, error: Exception) -> LogError:
        reason = getattr(error, "strerror", None)
        if reason:
            return LogError(f"cannot read {self.name}: {reason}")
        return LogError(f"{self.name} {_BROKEN}: {error}")

    @property
    def plain(self) -> bool:
        """Whether it is neither packed, nor in an archive, nor UTF-16. Raises LogError."""
        if self.member:
            return False
        with self.open() as file:
            return isinstance(file, io.BufferedReader) and isinstance(file.raw, io.FileIO)

    def start(self, size: int = START) -> bytes:
        """Its first bytes, unpacked. Raises LogError."""
        with self.open() as file:
            return file.read(size)

    def content(self, most: int = MOST_AT_ONCE) -> bytes:
        """All of it. Raises LogError, a TooLargeError where it is more than ``most`` bytes."""
        with self.open() as file:
            content = file.read(most + 1)
            file.read(1)  # where it breaks off, this says so
        if len(content) > most:
            raise TooLargeError(
                f"{self.name} is larger than {most // 2**20} MiB, and its kind has to be read whole"
            )
        return content

    def lines(
        self,
        tally: Tally,
        cues: Sequence[bytes] = (b"",),
        every: Callable[[], bool] = bool,
        since: Reached | None = None,
        whole: bool = False,
    ) -> Iterator[tuple[int, bytes, bool]]:
        """Yields number from 1, bytes without the end of line, and whether the line has its end.

        cues: bytes of the lines that are wanted. every: whether, at that moment, all lines are.
        since: where to begin in a file that is not packed; it moves on. whole: leaves a last line
        without its end for later. Other lines and lines that are too long are counted; a packed
        file that breaks off is read as far as it goes.
        """
        since = Reached() if since is None else since
        number = since.count
        try:
            for block, ended, until in self._blocks(since.offset):
                if whole and not ended:
                    return
                if block is None:
                    number += 1
                    tally.lines += 1
                    tally.skip(number, f"longer than {LONGEST_LINE // 2**20} MiB")
                    continue
                for passed, line in _wanted(block, cues, every):
                    number += passed
                    tally.lines += passed
                    if line is not None:
                        yield number, line.rstrip(b"\r"), ended
                since.offset, since.count = until, number
        except LogError as error:
            if number == 0 or _BROKEN not in error.message:
                raise
            tally.lines += 1
            tally.skip(number + 1, "the packed file breaks off here")

    def _blocks(self, start: int) -> Iterator[tuple[bytes | None, bool, int]]:
        """Yields many whole lines at once (None for a line that is too long), whether they end with
        an end of line, and the offset after them."""
        parts: list[bytes] = []
        held, until = 0, start
        with self.open() as file:
            if start:
                file.seek(start)
            while data := file.read(_BLOCK):
                cut = data.rfind(b"\n") + 1
                if cut == 0:
                    held += len(data)
                    if held > LONGEST_LINE:
                        parts.clear()  # and go on to its end
                    else:
                        parts.append(data)
                    continue
                until += held + cut
                if held > LONGEST_LINE:
                    first = data.find(b"\n") + 1
                    yield None, True, until
                    whole = data[first:cut]
                else:
                    whole = b"".join([*parts, data[:cut]])
                parts, held = ([data[cut:]], len(data) - cut) if cut < len(data) else ([], 0)
                if whole:
                    yield whole, True, until
        if held > LONGEST_LINE:
            yield None, False, until
        elif parts:
            yield b"".join(parts), False, until


def _wanted(
    block: bytes, cues: Sequence[bytes], every: Callable[[], bool]
) -> Iterator[tuple[int, bytes | None]]:
    """The lines of a block that hold a cue, or all while ``every`` says so: by how many lines each
    is further on, and the line; None for the rest, which is not wanted."""
    if b"" in cues:
        yield from ((1, line) for line in block.removesuffix(b"\n").split(b"\n"))
        return
    places = {cue: block.find(cue) for cue in cues}  # of the next; most blocks hold none
    at, passed = 0, 1
    while at < len(block):
        if not every():
            for cue, place in places.items():
                if 0 <= place < at:
                    places[cue] = block.find(cue, at)
            place = min((place for place in places.values() if place >= 0), default=-1)
            if place < 0:
                rest = block.count(b"\n", at) + (not block.endswith(b"\n"))
                yield rest, None
                return
            start = block.rfind(b"\n", 0, place) + 1
            passed += block.count(b"\n", at, start)
            at = start
        end = block.find(b"\n", at)
        end = len(block) if end < 0 else end
        yield passed, block[at:end]
        at, passed = end + 1, 1


class _Bounded(io.RawIOBase):
    """An unpacked file, given up where it grows beyond reason. Where the packed file breaks off it
    ends, and reading on raises the reason."""

    def __init__(self, file: IO[bytes], packed: int, name: str) -> None:
        self._file, self._name = file, name
        self._most = max(MOST_TIMES * packed, ALWAYS_FINE)
        self._read = 0
        self._broken: Exception | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """As the file below."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        if self._broken is not None:
            raise self._broken
        try:
            chunk = cast(io.BufferedIOBase, self._file).read1(len(view))
        except _WHILE_UNPACKING as error:
            self._broken, chunk = error, b""
        view[: len(chunk)] = chunk
        self._read += len(chunk)
        if self._read > self._most:
            raise LogError(
                f"{self._name} unpacks to more than {MOST_TIMES} times its size: it is no log"
            )
        return len(chunk)


def _bounded(file: IO[bytes], packed: int, name: str) -> IO[bytes]:
    return cast(IO[bytes], io.BufferedReader(_Bounded(file, packed, name), 1 << 20))


def find(paths: Sequence[Path]) -> list[LogFile]:
    """The files of ``paths``, folders and zip archives, in natural order (``2.jsonl`` before
    ``10.jsonl``).

    Raises LogError for a path that does not exist, one given twice, and too many files.
    """
    if not paths:
        raise LogError("none was given; name a file or a folder that a trainer left")
    files: list[LogFile] = []
    seen: set[Path] = set()
    for path in paths:
        for file in _below(path):
            real = file.path.resolve()
            if real in seen and not file.member:
                continue
            seen.add(real)
            files.append(file)
            if len(files) > MOST_FILES:
                raise LogError(
                    f"{path} holds more than {MOST_FILES:,} files; name those of one run"
                )
    if not files:
        raise NoStepsError(f"{paths[0]} is an empty folder")
    return files


def _below(path: Path) -> Iterator[LogFile]:
    try:
        if path.is_dir():
            for folder, folders, names in os.walk(path):
                folders[:] = sorted((f for f in folders if f not in _PASSED_OVER), key=natural)
                for name in sorted(names, key=natural):
                    inside = Path(folder, name)
                    if inside.is_file():
                        yield from _one(inside)
        elif not path.exists():
            raise LogError(f"{path} does not exist")
        elif not path.is_file():
            raise LogError(f"{path} is neither a file nor a folder")
        else:
            yield from _one(path)
    except (OSError, ValueError) as error:
        raise LogError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None


def _one(path: Path) -> Iterator[LogFile]:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from None
    if magic != ZIP or path.suffix != ".zip":  # torch's own files are zip archives as well
        yield LogFile(path)
        return
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if not info.is_dir()]
    except zipfile.BadZipFile as error:
        raise LogError(f"{path} {_BROKEN}: {error}") from None
    for name in sorted(names, key=natural):
        yield LogFile(path, name)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key under which numbers within names sort as numbers."""
    pieces = re.split(r"(\d{1,18})", name)
    return tuple((0, int(p), "") if p.isdecimal() else (1, 0, p) for p in pieces)
