"""One file, read once: its rows of metrics, its rollouts, its settings; what cannot be read is
counted.

The kind of the file is told by its first bytes and its name; its rows and records are read by the
stacks' formats.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from rollcast.calibration.logs import json_rows, recognise
from rollcast.calibration.logs.console_lines import ConsoleLines
from rollcast.calibration.logs.errors import LogError, Tally, TooLargeError
from rollcast.calibration.logs.formats import (
    configs,
    events,
    machine,
    sqlite,
    torch_file,
    trackio,
    wandb_file,
)
from rollcast.calibration.logs.formats.configs import Given, NotConfigError
from rollcast.calibration.logs.opened import LONGEST_LINE, LogFile, Reached
from rollcast.calibration.logs.scanned import (
    COMMAND,
    DATABASE,
    EVENTS,
    MACHINE,
    RESOLVED,
    WRITTEN,
    Reader,
    Scanned,
    Take,
)
from rollcast.simulator.results import parquet
from rollcast.simulator.results.file_starts import ZSTD
from rollcast.simulator.stacks.log_format import Metrics
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse

_DUMP = re.compile(r"(?i)(?:[\w.-]*rollout[\w.-]*|[a-z]{0,8}[_-]?\d+)\.pth?")
"""Names of dumped rollouts; checkpoints, of which folders are full, have others."""
_JSON = re.compile(rb"\{(?!')|\[\s*[\[{\]]")
"""How a file of mappings begins; ``[2026-03-01 ...`` is a console's clock."""
_KEPT = re.compile(rb"\d{12,14} \S+ \d+\s")
"""How a metric that MLflow keeps begins."""
_CONTROLS = bytes({*range(9), *range(14, 27), *range(28, 32)})
_MOST_CONTROLS = 0.02
"""Share of a text: a machine that stopped leaves zero bytes in its logs."""


def scan(file: LogFile, take: Take) -> Scanned:
    """Reads a file. Raises LogError where it cannot be read or unpacks beyond reason."""
    scanned, reader = begun(file, take)
    if reader is not None:
        reader.read(Reached(), whole=False)
        reader.close()
    return scanned


def begun(file: LogFile, take: Take) -> tuple[Scanned, Reader | None]:
    """The content of a file that is read whole, and None; or of a console, lines of JSON or events,
    nothing yet, and the reader. Raises LogError."""
    scanned = Scanned(file, Tally(file.name))
    try:
        return scanned, _begin(scanned, take)
    except TooLargeError as error:
        scanned.tally.lines += 1
        scanned.tally.skip(0, error.message.removeprefix(f"{file.name} is "))
    return scanned, None


def _begin(scanned: Scanned, take: Take) -> Reader | None:
    file = scanned.file
    start = file.start()
    if start.startswith(parquet.MAGIC):
        _records(scanned, parquet.rows, take)
    elif start.startswith(sqlite.MAGIC):
        _database(scanned)
    elif start.startswith(wandb_file.MAGIC):
        _kept_run(scanned, take)
    elif events.is_events(start):
        return _Events(scanned, take)
    elif why := _not_read(start, file.inner):
        scanned.looked_at, scanned.tally.lines = False, 1
        scanned.tally.skip(0, why)
    elif start.startswith((torch_file.PICKLE, torch_file.ZIP)):
        if _DUMP.fullmatch(file.inner):
            _records(scanned, _torch, take)
        else:
            scanned.looked_at = False
            if file.inner.endswith((".pkl", ".pickle")):
                scanned.tally.lines = 1
                scanned.tally.skip(0, "a pickle can run code, and is not loaded")
    elif b"\0" in start and _controls(start) > _MOST_CONTROLS:
        scanned.looked_at = False
    else:
        return _text(scanned, start, take)
    return None


# Binary files


def _controls(text: bytes) -> float:
    return 1 - len(text.translate(None, _CONTROLS)) / len(text)


def _not_read(start: bytes, name: str) -> str:
    """What would have to be done with a file before it can be read; '' for others."""
    if start.startswith(ZSTD):
        return "it is packed by zstd; unpack it"
    if start[257:262] == b"ustar":
        return "it is a tar archive; unpack it and give its folder"
    return "it is a workbook; save it as CSV" if name.endswith((".xlsx", ".ods")) else ""


def _torch(content: bytes) -> Iterator[Mapping[str, Any]]:
    value = torch_file.load(content)
    if isinstance(value, Mapping):
        yield value


def _records(
    scanned: Scanned, read: Callable[[bytes], Iterable[Mapping[str, Any]]], take: Take
) -> None:
    """Rollouts of a dump, or rows of a history."""
    records = json_rows.Records(scanned, take)
    try:
        for number, record in enumerate(read(scanned.file.content()), start=1):
            scanned.tally.lines += 1
            records.record(record, number)
    except parquet.CannotReadError as error:
        scanned.tally.lines += 1
        scanned.tally.skip(0, str(error))
    records.close()


def _database(scanned: Scanned) -> None:
    scanned.kind = DATABASE
    try:
        runs = trackio.read(scanned.file.content())
    except parquet.CannotReadError as error:
        scanned.tally.lines += 1
        scanned.tally.skip(0, str(error))
        return
    if len(runs) > 1:
        names = ", ".join(sorted(runs)[:3])
        raise LogError(
            f"{scanned.file.name} holds {len(runs)} runs ({names}): two runs are mixed; "
            "import one at a time"
        )
    for run in runs.values():
        scanned.tally.lines = run.rows
        for row in run.damaged:
            scanned.tally.skip(row, "a row is no JSON mapping")
        scanned.tally.used = run.rows - scanned.tally.unread
        steps = sorted(run.steps.items())
        scanned.add_recognised(Metrics(step, values, at) for step, (at, values) in steps)
        scanned.settings.extend((RESOLVED, given) for given in run.config)


def _kept_run(scanned: Scanned, take: Take) -> None:
    records = json_rows.Records(scanned, take)
    try:
        for number, settings, values in wandb_file.read(scanned.file.content()):
            scanned.tally.lines = number
            if settings:
                given = (Given(key, value, 0) for key, value in flatten(values).items())
                scanned.settings.extend((RESOLVED, one) for one in given)
            else:
                records.record(values, number)
    except events.DamagedError as error:
        scanned.tally.lines = error.record
        scanned.tally.skip(error.record, str(error))
    records.close()


class _Events(Reader):
    """An event file, record by record."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        super().__init__(scanned, take)
        scanned.kind = EVENTS
        self._steps: dict[int, tuple[int, float, dict[str, float]]] = {}
        self._last = 0

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally, steps = self.scanned.tally, self._steps
        with self.scanned.file.open() as file:
            if since.offset:
                file.seek(since.offset)
            end, count = since.offset, since.count
            try:
                for event in events.events(file, since.count):
                    if event.record > self._last:
                        tally.lines += 1
                        self._last = event.record
                        tally.used += 1
                    if whole:  # up to the record before, since this one may turn out damaged
                        if event.record > count:
                            since.offset, since.count = end, count
                        end, count = file.tell(), event.record
                    if isinstance(event.value, str):
                        self.scanned.settings.extend(_settings(event.value))
                        continue
                    if event.step not in steps:
                        steps[event.step] = (event.record, event.wall_s, {})
                    steps[event.step][2][event.tag] = event.value
            except events.DamagedError as error:
                if not whole:
                    tally.lines += 1
                    tally.skip(error.record, str(error))

    def close(self) -> None:
        """See `Reader.close`."""
        steps = sorted(self._steps.items())
        rows = (Metrics(step, values, at, wall) for step, (at, wall, values) in steps)
        self.scanned.add_recognised(rows)

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`. Values are shared: reading a record again changes none."""
        other = _Events(scanned, take)
        other._steps, other._last = self._steps, self._last
        return other


def _settings(text: str) -> Iterator[tuple[int, Given]]:
    """Settings that a trainer logged as a text of JSON."""
    if "{" in text[:20]:
        try:
            for given in configs.from_json(text):
                yield RESOLVED, given
        except NotConfigError:
            return


# Texts


def _text(scanned: Scanned, start: bytes, take: Take) -> Reader | None:
    name = scanned.file.inner.lower()
    stripped = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if Path(name).name == machine.FILE:
        _config(scanned, _of_machine)
    elif name.endswith((".yaml", ".yml")):
        _config(scanned, lambda text: _written(configs.from_yaml(text)))
    elif name.endswith(".toml"):
        _config(scanned, lambda text: _written(configs.from_toml(text)))
    elif name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        _script(scanned)
    elif name.endswith((".csv", ".tsv")):
        json_rows.table(scanned, take)
    elif _JSON.match(stripped):
        first = stripped.split(b"\n", 1)[0]
        if key := _wrapped(first):
            scanned.file = _Unwrapped(scanned.file.path, scanned.file.member, key)
            return ConsoleLines(scanned, take)
        if name.endswith(".json") or not _complete(first, name):
            return json_rows.document(scanned, take)
        return json_rows.JsonLines(scanned, take)
    elif "metrics" in scanned.file.parts[:-1] and _KEPT.match(start):
        json_rows.kept_metric(scanned)
    else:
        return ConsoleLines(scanned, take)
    return None


_MESSAGES = ("log", "textPayload", "message", "msg")
"""Where containers' logs, cloud services and loggers of JSON keep a line of a console."""


def _wrapped(first: bytes) -> str:
    """The key under which a line of JSON has a line of a console; '' where it has figures."""
    try:
        value = parse(first)
    except NotJsonError:
        return ""
    if not isinstance(value, dict) or json_rows.has_step(value) or recognise.by_record(value):
        return ""
    return next((key for key in _MESSAGES if isinstance(value.get(key), str)), "")


@dataclass(frozen=True, slots=True)
class _Unwrapped(LogFile):
    """A console whose lines are each in a line of JSON, under a key."""

    key: str = ""

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Its lines as they were printed. Raises LogError."""
        with LogFile.open(self) as file:
            yield cast(IO[bytes], io.BufferedReader(_Messages(file, self.key)))


class _Messages(io.RawIOBase):
    """The lines under a key of lines of JSON; an empty one for a line that has none."""

    def __init__(self, file: IO[bytes], key: str) -> None:
        self._file, self._key = file, key
        self._left = b""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """As the file below."""
        view = memoryview(buffer)  # type: ignore[arg-type]
        while not self._left and (line := self._file.readline(LONGEST_LINE)):
            self._left = self._message(line) + (b"\n" if line.endswith(b"\n") else b"")
        chunk, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(chunk)] = chunk
        return len(chunk)

    def _message(self, line: bytes) -> bytes:
        try:
            text = parse(line).get(self._key)
        except (NotJsonError, AttributeError):
            return b""
        return text.encode(errors="replace").strip(b"\r\n") if isinstance(text, str) else b""


def _complete(first: bytes, name: str) -> bool:
    """Whether the first line is a value by itself, or only too long to be seen whole."""
    if name.endswith((".jsonl", ".ndjson")):
        return True
    try:
        parse(first)
    except NotJsonError:
        return False
    return True


def _decoded(scanned: Scanned) -> str:
    """Of a whole file. Raises LogError for one that is too large, NotConfigError for no text."""
    try:
        return scanned.file.content(configs.MOST_TEXT).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotConfigError(f"not text in UTF-8 from byte {error.start} on") from None


def _config(scanned: Scanned, read: Callable[[str], Iterable[tuple[int, Given]]]) -> None:
    """read: the settings of the file's text, each with how surely."""
    scanned.tally.lines = 1
    try:
        scanned.settings.extend(read(_decoded(scanned)))
        scanned.tally.used = 1
    except NotConfigError as error:
        scanned.tally.skip(error.line, str(error))
    except LogError:
        scanned.looked_at, scanned.tally.lines = False, 0


def _written(found: Iterable[Given]) -> list[tuple[int, Given]]:
    return [(WRITTEN, given) for given in found]


def _of_machine(text: str) -> list[tuple[int, Given]]:
    both = zip((MACHINE, COMMAND), machine.from_metadata(text), strict=True)
    return [(sure, given) for sure, some in both for given in some]


def _script(scanned: Scanned) -> None:
    for at, line, _ in scanned.file.lines(scanned.tally):
        given = configs.from_script(line.decode("utf-8", "replace"), at)
        scanned.settings.extend(_written(given))
        scanned.tally.used += bool(given)
