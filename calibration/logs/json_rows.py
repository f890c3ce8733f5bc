"""Rows of metrics and dumped records in JSON, CSV and parquet."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rollcast.calibration.logs import recognise
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.formats import configs
from rollcast.calibration.logs.formats.configs import Given
from rollcast.calibration.logs.opened import Reached
from rollcast.calibration.logs.readers import readers
from rollcast.calibration.logs.scanned import RESOLVED, WRITTEN, Reader, Scanned, Take
from rollcast.simulator.stacks.log_format import Metrics, Origin, RecordError
from rollcast.simulator.stacks.syntax.json_text import NotJsonError, flatten, parse
from rollcast.simulator.stacks.syntax.scalars import number, scalar

_GIVE_UP = 1_000
"""Lines of JSON without one of use after which a file is taken for a data set."""
_STEPS = (
    *("step", "_step", "global_step", "training/global_step", "train/global_step"),
    *("trainer/global_step", "Step"),
)
_OF_ALL = ("global_step/max_steps", "iteration")
"""Keys of ms-swift, whose value is the text ``12/500``."""
_DECIMAL = re.compile(r"[-+]?\d+,\d+(?:[eE][-+]?\d+)?", re.ASCII)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+", re.ASCII)
_CLOCKS = ("_timestamp", "time", "timestamp")


class Records:
    """Sorts records, one after another, into rollouts and rows of metrics."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        self._scanned, self._take = scanned, take
        self._folders, self._name = scanned.file.parts[:-1], scanned.file.inner
        self._kinds: dict[tuple[Any, ...], Any] = {}
        self.rows: list[Metrics] = []

    def record(self, value: object, line: int) -> None:
        """A record of either kind, or neither."""
        tally = self._scanned.tally
        if not isinstance(value, dict) or self.rollout(value, line):
            return
        figures = _figures(value)
        row = _row(value, figures, line)
        if row is None:
            return
        if row.values:
            self.rows.append(row)
        if lists := _lists(figures):
            verb = "is a list" if len(lists) == 1 else "are lists"
            tally.skip(line, f"{', '.join(lists)} {verb}; a figure of a step is one number")
        elif row.values:
            tally.used += 1

    def rollout(self, record: Mapping[str, Any], line: int) -> bool:
        """Reads a record of a dump; False for another, which is not counted."""
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
                self._take(stack, item, self._scanned.file)
        except RecordError as error:
            self._scanned.tally.skip(line, str(error))
            return True
        self._scanned.tally.used += 1
        self._scanned.dumped.add(stack.name)
        return True

    def close(self) -> None:
        """After the last record: only all keys together name the stack."""
        self._scanned.add_recognised(self.rows)


def has_step(value: Mapping[str, Any]) -> bool:
    """Whether a record may be a row of metrics."""
    return any(key in value for key in (*_STEPS, *_OF_ALL))


def _figures(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """The figures of a record: itself, or a mapping beside its step, or several, whose names are
    the first parts of their keys."""
    named = (value[key] for key in ("data", "metrics") if isinstance(value.get(key), dict))
    inner: Mapping[str, Any] | None = next(named, None)
    if inner is not None and "step" in value:
        return inner
    if "step" in value and any(isinstance(item, dict) for item in value.values()):
        return {key.replace(".", "/"): item for key, item in flatten(value).items()}
    return value


def _row(value: Mapping[str, Any], figures: Mapping[str, Any], line: int) -> Metrics | None:
    """A row of metrics; None for a record without a step."""
    step = next((scalar(value[key]) for key in _STEPS if key in value), None)
    if step is None:
        of_all = (str(value[key]).partition("/") for key in _OF_ALL if key in value)
        step = next((number(done) for done, slash, _ in of_all if slash), None)
    if step is None or step != step or abs(step) > 1e12:
        return None
    values: Mapping[str, float] = {
        key: parsed for key, item in figures.items() if (parsed := scalar(item)) is not None
    }
    if figures is value:  # a table, as pandas writes it, has nan where it has no figure
        values = {key: figure for key, figure in values.items() if figure == figure}
    clock = next((scalar(value[key]) for key in _CLOCKS if key in value), None)
    for stack in readers():
        values = stack.named(values)
    return Metrics(int(step), recognise.of_interest(values), line, clock)


def _lists(figures: Mapping[str, Any]) -> list[str]:
    """Keys whose value is a list of several numbers."""
    several = {k: 0.0 for k, item in figures.items() if isinstance(item, list) and len(item) > 1}
    return list(recognise.of_interest(several))


class JsonLines(Reader):
    """Lines of JSON."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        super().__init__(scanned, take)
        self._records = Records(scanned, take)

    def read(self, since: Reached, whole: bool) -> None:
        """See `Reader.read`."""
        tally = self.scanned.tally
        if not self.scanned.looked_at:
            return
        for at, line, ended in self.scanned.file.lines(tally, since=since, whole=whole):
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
                self.scanned.looked_at = False
                break

    def close(self) -> None:
        """See `Reader.close`."""
        self._records.close()

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """See `Reader.copied`."""
        other = JsonLines(scanned, take)
        other._records.rows = [*self._records.rows]
        return other


def document(scanned: Scanned, take: Take) -> Reader | None:
    """Reads one JSON value over many lines: TRL's state of the trainer, a configuration, a list.
    Returns a reader where it turns out to be lines of JSON, the first of them damaged."""
    content = scanned.file.content()
    tally = scanned.tally
    try:
        value = parse(content)
    except NotJsonError as error:
        if content.count(b"\n") > 1 and content.lstrip().startswith(b"{") and b"\n{" in content:
            return JsonLines(scanned, take)
        tally.lines = 1
        tally.skip(0, str(error))
        return None
    history = value.get("log_history") if isinstance(value, dict) else value
    if history is None:
        history = _of_frame(value)
    if not isinstance(history, list):
        tally.lines = 1
        if isinstance(value, dict) and len(content) <= configs.MOST_TEXT:
            scanned.settings.extend((WRITTEN, Given(k, v, 0)) for k, v in flatten(value).items())
            tally.used = 1
        return None
    for key in ("logging_steps", "max_steps"):
        if isinstance(value, dict) and key in value:
            scanned.settings.append((RESOLVED, Given(key, value[key], _line_of(content, key))))
    lines = [
        n
        for n, text in enumerate(content.split(b"\n"), start=1)
        if text.lstrip().startswith(b'"step":')
    ]
    records = Records(scanned, take)
    for at, entry in enumerate(history):
        tally.lines += 1
        records.record(entry, lines[at] if len(lines) >= len(history) else 1)
    records.close()
    return None


def _of_frame(value: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The rows of a table that pandas wrote (``to_json``) by columns, or split from their names."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list):
        names = [str(column) for column in columns]
        return [dict(zip(names, row, strict=False)) for row in data if isinstance(row, list)]
    step = next((value[key] for key in _STEPS if isinstance(value.get(key), dict)), None)
    if step is None or not all(isinstance(column, dict) for column in value.values()):
        return None
    return [{name: column.get(row) for name, column in value.items()} for row in step]


def _line_of(content: bytes, key: str) -> int:
    at = content.find(f'"{key}":'.encode())
    return content.count(b"\n", 0, at) + 1 if at >= 0 else 0


def table(scanned: Scanned, take: Take) -> None:
    """Reads a CSV file with a header: an exported history, or a table with our columns."""
    tally = scanned.tally
    records = Records(scanned, take)
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for at, line, ended in scanned.file.lines(tally):
            if not ended and at > 1 and not _whole(line, header, delimiter):
                tally.skip(at, "it is cut off in mid-line", line[:200].decode("utf-8", "replace"))
                return
            if named and at == 1:
                continue
            numbers.append(at)
            yield line.decode("utf-8-sig", "replace").replace("\0", "")

    header: list[str] = []
    charted = False
    head = scanned.file.start().removeprefix(b"\xef\xbb\xbf").split(b"\n", 2)
    named = head[0].startswith(b"sep=")  # Excel's line before the header
    first = head[named] if len(head) > named else b""
    delimiter = max((",", "\t", ";"), key=lambda mark: first.count(mark.encode()))
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
            shown = of_tag(cells, scanned.file.inner) or of_chart(cells)
            charted = shown != cells
            header.extend(recognise.spelt(shown))
        elif len(cells) != len(header):
            if cells:
                tally.skip(line, f"{len(cells)} cells; the header has {len(header)}")
        else:
            read = [_cell(cell, delimiter == ";") for cell in cells]
            records.record(dict(zip(header, read, strict=True)), line)
    records.close()
    if charted and not scanned.rows:
        scanned.charted = records.rows


def of_tag(header: list[str], name: str) -> list[str] | None:
    """The keys of a tag that TensorBoard's page exported, which only the file's name tells, with
    ``_`` for ``/``; None for another header."""
    _, mark, tag = name.removesuffix(".csv").rpartition("tag-")
    if not mark or header != ["Wall time", "Step", "Value"]:
        return None
    return ["_timestamp", "Step", recognise.unflattened(tag)]


def kept_metric(scanned: Scanned) -> None:
    """Reads a metric as MLflow keeps it in a folder: a file whose path is the key, and in each line
    milliseconds since 1970, the figure and the step."""
    parts = scanned.file.parts
    key = "/".join(parts[len(parts) - parts[::-1].index("metrics") :])
    rows = []
    for at, line, ended in scanned.file.lines(scanned.tally):
        cells = [number(cell) for cell in line.decode("utf-8", "replace").split()]
        clock, figure, step = cells if len(cells) == 3 else (None, None, None)
        if clock is None or figure is None or step is None or not 0 <= step < 1e12:
            scanned.tally.skip(at, "no time, figure and step" if ended else "it is cut off")
        elif figure == figure:
            rows.append(Metrics(int(step), recognise.of_interest({key: figure}), at, clock / 1000))
            scanned.tally.used += 1
    scanned.add_recognised(rows)
    if not scanned.rows:
        scanned.charted = rows


def of_chart(header: list[str]) -> list[str]:
    """The keys of a chart that Weights & Biases exported, whose columns are ``Step`` and, of each
    key, ``RUN - KEY`` with its least and most; any other header as it is. Raises LogError for a
    chart of several runs."""
    first, named = header[:1], [cell.rpartition(" - ") for cell in header[1:]]
    if first and "Time" in first[0] and named and all(mark for _, mark, _ in named):
        raise LogError(f"the chart's first column is {first[0]!r}; export it over steps (Step)")
    if not set(first) & set(_STEPS) or not named or not all(mark for _, mark, _ in named):
        return header
    runs = sorted({run for run, _, _ in named})
    if len(runs) > 1:
        raise LogError(
            f"the table has {len(runs)} runs ({', '.join(runs[:3])}); export the chart of one"
        )
    return [*first, *(key for _, _, key in named)]


def _whole(line: bytes, header: list[str], delimiter: str) -> bool:
    between = delimiter.encode()
    return line.count(between) + 1 >= len(header) and not line.endswith(between)


def _cell(text: str, commas: bool) -> object:
    """commas: whether a comma is decimal, even before three digits."""
    if not text:
        return None
    value = number(text)
    if value is None and _DECIMAL.fullmatch(text) and (commas or not _THOUSANDS.fullmatch(text)):
        value = number(text.replace(",", "."))
    if value is None:
        return text
    return int(value) if value == value and abs(value) < 1e15 and value == int(value) else value
