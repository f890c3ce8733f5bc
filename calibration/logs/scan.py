"""A file, read once: its rows of metrics, its rollouts, its settings; what cannot be read, counted.

Here it is told what a file *is*, by its first bytes; what a row or record *means* is its stack's.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from rollcast.calibration.logs import recognise
from rollcast.calibration.logs.errors import LogError, TooLargeError
from rollcast.calibration.logs.formats import configs, events, parquet, sqlite, torch_file, trackio
from rollcast.calibration.logs.formats.configs import Given, NotConfigError
from rollcast.calibration.logs.formats.console import Said, said
from rollcast.calibration.logs.opened import LogFile, Reached
from rollcast.calibration.logs.readers import readers
from rollcast.calibration.logs.tally import Tally
from rollcast.simulator.stacks.log_format import (
    Console,
    Metrics,
    Origin,
    Rollout,
    Session,
    StackLog,
)
from rollcast.simulator.stacks.records import RecordError
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse
from rollcast.simulator.stacks.syntax.numbers import number, scalar
from rollcast.simulator.stacks.syntax.python_text import nested, opens

JSON, DATABASE, EVENTS, CONSOLE = 0, 1, 2, 3
"""Kinds of rows, the most exact first: events have 32 bits, old consoles three decimals."""
RESOLVED, COMMAND, WRITTEN = 0, 1, 2
"""Kinds of settings, the surest first."""
_GIVE_UP = 1_000
"""Lines of JSON none of which is of use: it is somebody's data set."""

Take = Callable[[StackLog, Rollout | Session, LogFile], None]
"""What becomes of a rollout, while a file is read."""


@dataclass(slots=True)
class Scanned:
    """What a file gave. rows: by the stack that wrote them; unnamed: of which the keys tell that
    once all are there. settings: given, and how surely."""

    file: LogFile
    tally: Tally
    kind: int = JSON
    rows: dict[str, list[Metrics]] = field(default_factory=dict)
    unnamed: list[Metrics] = field(default_factory=list)
    settings: list[tuple[int, Given]] = field(default_factory=list)
    dumped: set[str] = field(default_factory=set)
    looked_at: bool = True

    def copied(self) -> Scanned:
        """Another of the same, of which no part is shared that reading on would change."""
        return replace(
            self,
            tally=replace(self.tally, examples=[*self.tally.examples]),
            rows={name: [*rows] for name, rows in self.rows.items()},
            unnamed=[*self.unnamed],
            settings=[*self.settings],
            dumped={*self.dumped},
        )


class Reader(Protocol):
    """What reads a file from its beginning to its end, and may be asked to go on where that has
    moved."""

    def read(self, since: Reached, whole: bool) -> None:
        """All from ``since`` on, which moves. whole: leaves what has no end yet for later."""
        ...

    def close(self) -> None:
        """After the last."""
        ...

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """Another that goes on from here into a copy of what this one found."""
        ...


def scan(file: LogFile, take: Take) -> Scanned:
    """Reads a file. Raises LogError where nothing of it can be read, or it is no honest file."""
    scanned, reader = begun(file, take)
    if reader is not None:
        reader.read(Reached(), whole=False)
        reader.close()
    return scanned


def begun(file: LogFile, take: Take) -> tuple[Scanned, Reader | None]:
    """What a file gave, and None; or what reads it line by line or record by record, with nothing
    read yet. Raises LogError."""
    scanned = Scanned(file, Tally(file.name))
    try:
        return scanned, _read(scanned, take)
    except TooLargeError as error:
        scanned.tally.lines += 1
        scanned.tally.skip(0, error.message.removeprefix(f"{file.name} is "))
    return scanned, None


def _read(scanned: Scanned, take: Take) -> Reader | None:
    file = scanned.file
    start = file.start()
    if start.startswith(parquet.MAGIC):
        _records(scanned, parquet.rows, take)
    elif start.startswith(sqlite.MAGIC):
        _database(scanned)
    elif events.is_events(start):
        return _Events(scanned)
    elif start.startswith((torch_file.PICKLE, torch_file.ZIP)):
        if _DUMP.fullmatch(file.inner):
            _records(scanned, _torch, take)
        else:
            scanned.looked_at = False
            if file.inner.endswith((".pkl", ".pickle")):
                scanned.tally.lines = 1
                scanned.tally.skip(0, "a pickle can run code, and is not loaded")
    elif b"\0" in start:
        scanned.looked_at = False
    else:
        return _text(scanned, start, take)
    return None


# Binary files

_DUMP = re.compile(r"(?i)(?:[\w.-]*rollout[\w.-]*|[a-z]{0,8}[_-]?\d+)\.pth?")
"""Names of dumped rollouts; checkpoints, of which folders are full, have others."""


def _torch(content: bytes) -> Iterator[Mapping[str, Any]]:
    value = torch_file.load(content)
    if isinstance(value, Mapping):
        yield value


def _records(
    scanned: Scanned, read: Callable[[bytes], Iterable[Mapping[str, Any]]], take: Take
) -> None:
    reader = _Dumped(scanned, take)
    try:
        for number, record in enumerate(read(scanned.file.content()), start=1):
            scanned.tally.lines += 1
            reader.take(record, number)
    except parquet.CannotReadError as error:
        scanned.tally.lines += 1
        scanned.tally.skip(0, str(error))


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
        rows = [Metrics(step, values, at) for step, (at, values) in sorted(run.steps.items())]
        _assign(scanned, rows)
        scanned.settings.extend((RESOLVED, given) for given in run.config)


class _Events:
    """An event file, record by record."""

    def __init__(self, scanned: Scanned) -> None:
        self.found = scanned
        scanned.kind = EVENTS
        self._steps: dict[int, tuple[int, float, dict[str, float]]] = {}
        self._last = 0

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally, steps = self.found.tally, self._steps
        with self.found.file.open() as file:
            if since.offset:
                file.seek(since.offset)
            end = since.offset
            try:
                for event in events.events(file, since.count):
                    if event.record > self._last:
                        tally.lines += 1
                        self._last = event.record
                        tally.used += 1
                    if whole:  # up to the record before, since this one may turn out damaged
                        if event.record > since.count + 1:
                            since.offset, since.count = end, event.record - 1
                        end = file.tell()
                    if isinstance(event.value, str):
                        self.found.settings.extend(_summary(event.tag, event.value))
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
        rows = [Metrics(step, values, at, wall) for step, (at, wall, values) in steps]
        _assign(self.found, rows)

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`. Values are shared: reading a record again changes none."""
        other = _Events(scanned)
        other._steps, other._last = self._steps, self._last
        return other


def _summary(tag: str, text: str) -> Iterator[tuple[int, Given]]:
    """Settings that a trainer wrote as a text of JSON; none of a text of another form."""
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
    if name.endswith((".yaml", ".yml")):
        _config(scanned, configs.from_yaml)
    elif name.endswith(".toml"):
        _config(scanned, configs.from_toml)
    elif name.endswith((".sh", ".bash", ".slurm", ".sbatch")):
        _script(scanned)
    elif name.endswith((".csv", ".tsv")):
        _table(scanned, take)
    elif stripped.startswith((b"{", b"[")) and not stripped.startswith((b"{'", b"['")):
        first = stripped.split(b"\n", 1)[0]
        if name.endswith(".json") or not _complete(first, name):
            return _document(scanned, take)
        else:
            return _JsonLines(scanned, take)
    else:
        return _ConsoleLines(scanned)
    return None


def _complete(first: bytes, name: str) -> bool:
    """Whether the first line is a value by itself, or only too long to be seen whole."""
    if name.endswith((".jsonl", ".ndjson")):
        return True
    try:
        parse(first)
    except NotJsonError:
        return False
    return True


def _config(scanned: Scanned, read: Callable[[str], list[Given]]) -> None:
    scanned.tally.lines = 1
    try:
        text = scanned.file.content(configs.MOST_TEXT).decode("utf-8")
        scanned.settings.extend((WRITTEN, given) for given in read(text))
        scanned.tally.used = 1
    except (NotConfigError, UnicodeDecodeError) as error:
        scanned.tally.skip(getattr(error, "line", 0), str(error))
    except LogError:
        scanned.looked_at, scanned.tally.lines = False, 0


def _script(scanned: Scanned) -> None:
    for at, line, _ in scanned.file.lines(scanned.tally):
        given = configs.from_script(line.decode("utf-8", "replace"), at)
        scanned.settings.extend((WRITTEN, setting) for setting in given)
        scanned.tally.used += bool(given)


def _document(scanned: Scanned, take: Take) -> Reader | None:
    """One JSON value over many lines: TRL's state of the trainer, a configuration, a list. What
    reads it where it turns out to be lines of them."""
    content = scanned.file.content()
    tally = scanned.tally
    try:
        value = parse(content)
    except NotJsonError as error:
        if content.count(b"\n") > 1 and content.lstrip().startswith(b"{") and b"\n{" in content:
            return _JsonLines(scanned, take)  # after all, the first of them damaged
        tally.lines = 1
        tally.skip(0, str(error))
        return None
    history = value.get("log_history") if isinstance(value, dict) else value
    if not isinstance(history, list):
        tally.lines = 1
        if isinstance(value, dict) and len(content) <= configs.MOST_TEXT:
            scanned.settings.extend((WRITTEN, Given(k, v, 0)) for k, v in flatten(value).items())
            tally.used = 1
        return None
    if isinstance(value, dict):
        keys = ("logging_steps", "max_steps")
        given = [Given(key, value[key], _line_of(content, key)) for key in keys if key in value]
        scanned.settings.extend((RESOLVED, setting) for setting in given)
    lines = [
        n
        for n, text in enumerate(content.split(b"\n"), start=1)
        if text.lstrip().startswith(b'"step":')
    ]
    reader = _Lines(scanned, take)
    for at, entry in enumerate(history):
        tally.lines += 1
        reader.record(entry, lines[at] if len(lines) >= len(history) else 1)
    reader.close()
    return None


def _line_of(content: bytes, key: str) -> int:
    at = content.find(f'"{key}":'.encode())
    return content.count(b"\n", 0, at) + 1 if at >= 0 else 0


class _JsonLines:
    """Lines of JSON."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        self.found = scanned
        self._records = _Lines(scanned, take)

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally = self.found.tally
        if not self.found.looked_at:
            return
        for at, line, ended in self.found.file.lines(tally, since=since, whole=whole):
            if not line.strip():
                continue
            try:
                value = parse(line)
            except NotJsonError as error:
                why = str(error) if ended else "it is cut off in mid-line"
                tally.skip(at, why, line[:200].decode("utf-8", "replace"))
                continue
            self._records.record(value, at)
            if tally.lines == _GIVE_UP and not tally.used and tally.unread < _GIVE_UP:
                self.found.looked_at = False
                break

    def close(self) -> None:
        """See `Reader.close`."""
        self._records.close()

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`."""
        return _JsonLines(scanned, take)


class _Dumped:
    """Rollouts out of records."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        self._found, self._take = scanned, take
        self._folders = scanned.file.parts[:-1]
        self._name = scanned.file.inner
        self._kinds: dict[tuple[Any, ...], Any] = {}

    def take(self, record: Mapping[str, Any], line: int) -> bool:
        """Whether a record is one of a dump; counts it then."""
        signature = tuple(record)
        try:
            kind = self._kinds[signature]
        except KeyError:
            if len(self._kinds) > 256:
                self._kinds.clear()
            kind = self._kinds[signature] = recognise.by_record(record)
        if kind is None:
            return False
        stack, dump = kind
        try:
            for item in list(dump.read(record, Origin(self._folders, self._name, line))):
                self._take(stack, item, self._found.file)
        except RecordError as error:
            self._found.tally.skip(line, str(error))
            return True
        self._found.tally.used += 1
        self._found.dumped.add(stack.name)
        return True


_STEPS = (
    "step",
    "_step",
    "global_step",
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "Step",
)
_CLOCKS = ("_timestamp", "time", "timestamp")


class _Lines:
    """Rows of metrics and records of dumps, of which a file of JSON lines may hold either."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        self._found = scanned
        self._dumped = _Dumped(scanned, take)

    def record(self, value: object, line: int) -> None:
        """A line's value."""
        tally = self._found.tally
        if not isinstance(value, dict) or self._dumped.take(value, line):
            return
        figures = _figures(value)
        row = _row(value, figures, line)
        if row is None:
            return
        if row.values:
            self._found.unnamed.append(row)
        if lists := _lists(figures):
            verb = "is a list" if len(lists) == 1 else "are lists"
            tally.skip(line, f"{', '.join(lists)} {verb}; a figure of a step is one number")
        elif row.values:
            tally.used += 1

    def close(self) -> None:
        """After the last."""
        _assign(self._found, self._found.unnamed)


def _figures(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The mapping that holds a line's figures: the line itself, or one beside its step."""
    inner = next((value[k] for k in ("data", "metrics") if isinstance(value.get(k), dict)), None)
    return inner if inner is not None and "step" in value else value


def _row(value: Mapping[str, Any], figures: Mapping[str, Any], line: int) -> Metrics | None:
    """A row of metrics; None for a mapping without a step."""
    step = next((scalar(value[key]) for key in _STEPS if key in value), None)
    if step is None or step != step or abs(step) > 1e12:
        return None
    named: Mapping[str, float] = {
        key: parsed for key, item in figures.items() if (parsed := scalar(item)) is not None
    }
    clock = next((scalar(value[key]) for key in _CLOCKS if key in value), None)
    for stack in readers():
        named = stack.named(named)
    return Metrics(int(step), recognise.of_interest(named), line, clock)


def _lists(figures: Mapping[str, Any]) -> list[str]:
    """Keys that hold several numbers, of which none is the step's."""
    several = {k: 0.0 for k, item in figures.items() if isinstance(item, list) and len(item) > 1}
    return list(recognise.of_interest(several))


def _assign(scanned: Scanned, rows: list[Metrics]) -> None:
    """Gives rows to the stack whose keys they have."""
    rows = [Metrics(r.step, recognise.of_interest(r.values), r.line, r.logged_s) for r in rows]
    keys = {key for row in rows for key in row.values}
    stack = recognise.by_metrics(keys)
    if stack is not None:
        scanned.rows.setdefault(stack.name, []).extend(row for row in rows if row.values)


def _table(scanned: Scanned, take: Take) -> None:
    """A CSV file with a header: an exported history, or a table of our own."""
    tally = scanned.tally
    reader = _Lines(scanned, take)
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for at, line, ended in scanned.file.lines(tally):
            if not ended and at > 1 and not _whole(line, header, delimiter):
                tally.skip(at, "it is cut off in mid-line", line[:200].decode("utf-8", "replace"))
                return
            numbers.append(at)
            yield line.decode("utf-8-sig", "replace").replace("\0", "")

    header: list[str] = []
    delimiter = _delimiter(scanned.file.start())
    rows = csv.reader(texts(), delimiter=delimiter)
    while True:
        try:
            cells = next(rows, None)
        except csv.Error as error:
            tally.skip(numbers[-1] if numbers else 0, f"no CSV: {error}")
            continue
        if cells is None:
            break
        line = numbers[-1]
        if not header:
            header.extend(cells)
        elif len(cells) != len(header):
            if cells:
                tally.skip(line, f"{len(cells)} cells; the header has {len(header)}")
        else:
            reader.record(dict(zip(header, map(_cell, cells), strict=True)), line)
    reader.close()


def _delimiter(start: bytes) -> str:
    """What separates the cells of the first line: a spreadsheet may write semicolons."""
    first = start.split(b"\n", 1)[0]
    return max((",", "\t", ";"), key=lambda mark: first.count(mark.encode()))


def _whole(line: bytes, header: list[str], delimiter: str) -> bool:
    between = delimiter.encode()
    return line.count(between) + 1 >= len(header) and not line.endswith(between)


def _cell(text: str) -> object:
    if not text:
        return None
    value = number(text)
    if value is None:
        return text
    return int(value) if value == value and abs(value) < 1e15 and value == int(value) else value


# Consoles

_CUES = (
    b"{'",
    b"python",
    b"torchrun",
    b"accelerate",
    b"ray job",
    b"uv run",
    b"....",
    b"KV cache size",
)


@cache
def _starts(stacks: tuple[StackLog, ...]) -> tuple[re.Pattern[bytes], tuple[bytes, ...]]:
    """What a console's lines begin with, a group for each stack, and bytes that such lines hold."""
    forms = (b"(?P<%s>%s)" % (s.name.encode(), s.start) for s in stacks if s.start is not None)
    return re.compile(b"|".join(forms)), (*{s.cue for s in stacks if s.cue}, *_CUES)


_KV = re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")
_MOST_CONFIG = 20_000


class _ConsoleLines:
    """Lines that people see: rows of a stack, printed configurations, command lines."""

    def __init__(self, scanned: Scanned) -> None:
        self.found = scanned
        scanned.kind = CONSOLE
        self._consoles, self._config = _Consoles(scanned), _Printed(scanned)
        self._ended = True

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally, consoles, config = self.found.tally, self._consoles, self._config
        starts, cues = _starts(readers())
        lines = self.found.file.lines(
            tally, cues, lambda: config.open or consoles.open, since, whole
        )
        for at, line, self._ended in lines:
            start = starts.search(line)
            used, wrong = False, ""
            for piece in said(line):
                try:
                    used = consoles.feed(at, piece, start and start.lastgroup, self._ended) or used
                except (RecordError, ValueError) as error:
                    wrong = str(error)
                used = config.feed(at, piece.actor, piece.text) or used
            if wrong:
                tally.skip(at, wrong, line[:200].decode("utf-8", "replace"))
            elif used:
                tally.used += 1

    def close(self) -> None:
        """See `Reader.close`."""
        if self._ended:
            self._consoles.close()

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`."""
        other = _ConsoleLines(scanned)
        other._consoles, other._config = (
            self._consoles.copied(scanned),
            self._config.copied(scanned),
        )
        other._ended = self._ended
        return other


class _Consoles:
    """The consoles of the stacks that speak in a file. A block of lines is of one process: those of
    others in between are not of it."""

    def __init__(self, scanned: Scanned) -> None:
        self._found = scanned
        self._consoles: dict[str, tuple[Console, str]] = {}

    @property
    def open(self) -> bool:
        """Whether a block is being read."""
        return bool(self._consoles) and any(console.open for console, _ in self._consoles.values())

    def feed(self, line: int, piece: Said, begins: str | None, ended: bool) -> bool:
        """Whether a line is of a stack's metrics. begins: the stack of which it begins a row.
        Raises RecordError for a row that cannot be read, or is cut off."""
        used = False
        if begins is not None:
            stack = recognise.named(begins)
            if stack is not None and stack.console is not None:
                console, _ = self._consoles.get(begins) or (stack.console(), "")
                self._consoles[begins] = (console, piece.actor)
        for name, (console, actor) in self._consoles.items():
            was_open = console.open
            if name != begins and not (was_open and actor == piece.actor):
                continue
            rows = list(console.feed(line, piece.text))
            if rows and not ended and not console.open:
                raise RecordError("it is cut off in mid-line")
            self._keep(name, rows)
            used = used or bool(rows) or was_open or console.open
        return used

    def close(self) -> None:
        """After the last line: a block may be whole without one that ends it."""
        for name, (console, _) in self._consoles.items():
            self._keep(name, console.close())

    def copied(self, scanned: Scanned) -> _Consoles:
        """Another that goes on from here."""
        other = _Consoles(scanned)
        other._consoles = deepcopy(self._consoles)
        return other

    def _keep(self, name: str, rows: Iterable[Metrics]) -> None:
        self._found.rows.setdefault(name, []).extend(
            Metrics(row.step, recognise.of_interest(row.values), row.line) for row in rows
        )


class _Printed:
    """Settings on a console: a printed mapping, a command line, Megatron's table, vLLM's pool."""

    def __init__(self, scanned: Scanned) -> None:
        self._found = scanned
        self._lines: list[tuple[int, str]] = []
        self._actor = ""
        self._depth = 0

    @property
    def open(self) -> bool:
        """Whether a mapping is being read."""
        return bool(self._lines)

    def feed(self, line: int, actor: str, text: str) -> bool:
        """Whether a line is of a configuration."""
        if self._lines:
            if actor != self._actor:
                return False
            return self._more(line, text)
        if text.lstrip().startswith("{'") and (depth := opens(text)) > 0:
            self._actor, self._depth = actor, depth
            self._lines = [(line, text)]
            return True
        kv = _KV.search(text)
        if kv:
            given = [Given("vllm: GPU KV cache size", int(kv[1].replace(",", "")), line)]
        else:
            one = configs.argument(text, line)
            given = [one] if one else configs.from_command(text, line)
        self._found.settings.extend((COMMAND, setting) for setting in given)
        return bool(given)

    def copied(self, scanned: Scanned) -> _Printed:
        """Another that goes on from here."""
        other = _Printed(scanned)
        other._lines, other._actor, other._depth = [*self._lines], self._actor, self._depth
        return other

    def _more(self, line: int, text: str) -> bool:
        self._lines.append((line, text))
        self._depth += opens(text)
        if self._depth > 0 and len(self._lines) < _MOST_CONFIG:
            return True
        lines, self._lines = self._lines, []
        for key, value, at in nested([text for _, text in lines]):
            self._found.settings.append((RESOLVED, Given(key, value, lines[at][0])))
        return True
