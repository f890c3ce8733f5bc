"""The description of a stack's log: data of its ``log.yaml``, functions of its ``log.py``.

``log.yaml`` holds fields of `StackLog` by name, and the console's::

    metrics:                        # our column: their keys, of which the first in a row counts
      step_s: timing_s/step
      mean_reward: [score/mean, reward/mean]
    console:
      start: '\\bstep:(\\d+) - '      # in the first line of a row; group 1, if any, is the step
      cue: "step:"                  # text that such a line holds: looked for first
      form: line                    # how a row goes on, below
    dumps:
      - {needs: [input, output], read: rollouts}     # read: a function of log.py

Forms of a console: ``line``, of which ``row`` of log.py reads the rest; ``mapping``, a printed
Python mapping on one line or several; or a class of log.py, made with ``start``
(`simulator.stacks.consoles`). ``named``, ``overlapped``, ``derive`` and ``follow`` of log.py, each
optional, are those fields of `StackLog`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, cast

from rollcast.simulator.stacks.releases import Span, narrowed
from rollcast.simulator.stacks.settings import Settings, value


class RecordError(ValueError):
    """A record that does not have the form of its kind; the message is the end of a sentence."""


def digest(text: object) -> int:
    """A 56-bit hash of a text, equal in every process."""
    return _digest(text if isinstance(text, bytes) else str(text))


@lru_cache(maxsize=4)  # the rollouts of a group follow each other
def _digest(text: bytes | str) -> int:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")


def length(value: object) -> int:
    """Number of entries of a list or tensor. Raises RecordError."""
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        raise RecordError(f"a list was expected, not {type(value).__name__}") from None


def total(value: object) -> int:
    """Number of set flags in a list or tensor. Raises RecordError."""
    try:
        count = int(sum(cast(Iterable[Any], value)))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise RecordError("a list of numbers was expected") from None
    if not 0 <= count <= length(value):
        raise RecordError("a list of flags was expected")
    return count


def whole(value: object, name: str) -> int:
    """An integer. Raises RecordError, which calls the value ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise RecordError(f"{name} is no number")
    if not -1e15 < value < 1e15 or value != int(value):
        raise RecordError(f"{name} is no whole number")
    return int(value)


def tokens(value: object, name: str) -> int:
    """An integer of at least 0. Raises RecordError."""
    count = whole(value, name)
    if count < 0:
        raise RecordError(f"{name} is negative")
    return count


def real(value: object) -> float | None:
    """A finite number, or the only entry of a list; None for anything else."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) < 1e15 else None


def number_in(name: str) -> int | None:
    """The last number in a file's name, such as 12 of ``train_data_step12.jsonl``."""
    digits = ""
    for letter in reversed(name.partition(".")[0]):
        if letter.isdecimal() and letter.isascii():
            digits = letter + digits
        elif digits:
            break
    return int(digits) if 0 < len(digits) < 12 else None


TRAIN = "train/"
"""Some sinks put it before every key."""
WHOLE = 6
"""Of the keys that are read, as many as make a whole step: published logs have 7 to 30, a chart
has 1 or 2."""
Row = dict[str, float]
"""The numbers of a step, by our columns."""
Raw = Mapping[str, float]
"""The numbers of a step, by the stack's own keys."""
Record = Mapping[str, Any]
_VALIDATED = ("val", "eval")


@dataclass(frozen=True, slots=True)
class Metrics:
    """A row of metrics. line: or record, of its file. logged_s: seconds since the epoch."""

    step: int
    values: Raw
    line: int
    logged_s: float | None = None


class Origin(NamedTuple):
    """A dumped record's place. folders: outermost first. name: of the file, without ``.gz``."""

    folders: Sequence[str]
    name: str
    line: int

    @property
    def of_validation(self) -> bool:
        """Whether file or folder is named as a validation, which is dumped in the same form."""
        last = self.folders[-1] if self.folders else ""
        return last[:4].lower().startswith(_VALIDATED) or self.name.startswith(_VALIDATED)


@dataclass(frozen=True, slots=True)
class Request:
    """A turn of a rollout. Its seconds are of any one clock."""

    start_s: float
    end_s: float
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    new_tokens: float | None = None
    queue_s: float | None = None
    version: float | None = None


@dataclass(slots=True)  # frozen ones take three times as long to make, and logs have millions
class Rollout:
    """A dumped rollout.

    group: shared by the rollouts of one prompt; None where only their order shows the group.
    prompt: hash of the prompt's text. identity: equal for one rollout that is dumped twice. text:
    of the response, where the dump lacks its tokens. columns: of rollouts.csv.
    """

    step: int
    group: Hashable | None = None
    index: int | None = None
    prompt: int | None = None
    identity: Hashable | None = None
    requests: tuple[Request, ...] = ()
    columns: Mapping[str, float | None] = field(default_factory=dict)
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """Times of a rollout that are dumped apart from it. order: sorts those of a group."""

    group: Hashable
    order: str
    requests: tuple[Request, ...]
    columns: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dump:
    """A kind of record that holds rollouts. needs: keys that it has. lists: keys that hold lists.
    lacks: keys that it has not. one_file_a_step: whether two files for one step are of two runs."""

    needs: Sequence[str]
    read: Callable[[Record, Origin], Iterable[Rollout | Session]]
    lists: Sequence[str] = ()
    lacks: Sequence[str] = ()
    one_file_a_step: bool = False

    def fits(self, record: Record) -> bool:
        """Whether a record is of this kind."""
        return (
            all(key in record for key in self.needs)
            and all(isinstance(record.get(key), list) for key in self.lists)
            and not any(key in record for key in self.lacks)
        )


class Console(Protocol):
    """Reads metrics from a console's cleaned lines, in order. open: within a block of lines."""

    open: bool

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The rows that this line completes. Raises RecordError for a row that cannot be read."""
        ...

    def close(self) -> Iterable[Metrics]:
        """The rows that the end of the log completes."""
        ...


def _nothing(*arguments: object) -> None:
    return


def _as_it_is(values: Raw) -> Raw:
    return values


@dataclass(frozen=True, eq=False)
class StackLog:
    """How a stack's log is read.

    metrics: keys by our column. marks: keys that only this stack has; one that ends in ``/`` stands
    for all below it. also: further keys that its functions read. sums: keys to add up, by column.
    differences: a key less another, by column, where a row has both. overlap_keys: keys of runs
    that generate beside the training (as in marks).

    start, cue: of a console row (see above), in bytes. console: makes its reader. dumps: kinds of
    records.

    named: a row with ambiguous keys renamed. overlapped: whether the run generates beside the
    training, from all rows and the settings; None where the log does not say (then it counts as
    so). derive: adds to a row what its keys do not say by themselves; arguments row, raw, settings,
    overlapped. follow: the same from one row to the next; arguments [(row, raw)], settings.

    generation_waits: where overlapped, the time of generation is the trainer's wait. inside: by
    phase (validation, checkpoint), whether a step's time includes it. outside: columns of phases
    that a step's time never includes. how: what to switch on for a level (1 to 3). console_counts:
    its console names no step, so rows are counted. dumps_again: an update on the same rollouts
    dumps them again. pads: an update pads every rollout to the longest of the batch. fully_async:
    options of the policy of that name that the stack runs; in_flight may be ``max_staleness``: as
    many batches, max_staleness ``syncs``: the stack counts those. tool_tokens_inside: lengths of
    responses include tokens written by tools. logs_apart: the trainer has a console of its own,
    which tells nothing of rollouts.

    mlperf: the stack's key for each that a log of MLPerf's has, of the time of a step first.
    of_mlperf: further settings, from values of such a log, a first step's figures, and the number
    of systems that it names.

    releases: since and until, as in `launch`, of keys that some releases write; ``always``: every
    step has it since, so that a log without it is older.
    """

    name: str
    metrics: Mapping[str, Sequence[str]]
    marks: Sequence[str]
    also: Sequence[str] = ()
    sums: Mapping[str, Sequence[str]] = field(default_factory=dict)
    differences: Mapping[str, Sequence[str]] = field(default_factory=dict)
    overlap_keys: Sequence[str] = ()
    start: bytes | None = None
    cue: bytes = b""
    console: Callable[[], Console] | None = None
    dumps: Sequence[Dump] = ()
    named: Callable[[Raw], Raw] = _as_it_is
    overlapped: Callable[[Iterable[Raw], Settings], bool | None] | None = None
    derive: Callable[[Row, Raw, Settings, bool], None] = _nothing
    follow: Callable[[Sequence[tuple[Row, Raw]], Settings], None] = _nothing
    generation_waits: bool = False
    inside: Mapping[str, bool] = field(default_factory=dict)
    outside: Sequence[str] = ()
    how: Mapping[int, str] = field(default_factory=dict)
    console_counts: bool = False
    dumps_again: bool = False
    pads: bool = False
    fully_async: Mapping[str, Any] = field(default_factory=lambda: {"exceeded": "wait"})
    tool_tokens_inside: bool = False
    logs_apart: bool = False
    releases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    mlperf: Mapping[str, str] = field(default_factory=dict)
    of_mlperf: Callable[[Record, Raw, int | None], Record] | None = None

    @cached_property
    def keys(self) -> frozenset[str]:
        """The stack's keys that are read."""
        tables = (self.metrics, self.sums, self.differences)
        named = (key for table in tables for keys in table.values() for key in keys)
        return frozenset(named).union(self.also, self.overlap_keys, self.releases)

    def written_by(self, rows: Iterable[Raw]) -> Span:
        """The releases that write rows with these keys and, where the rows are whole, without
        others: a chart that was exported alone lacks keys of any release."""
        seen = frozenset(key for row in rows for key in row)
        whole = len(seen & self.keys) >= WHOLE
        span = Span()
        for key in seen & self.releases.keys():
            bounds = self.releases[key]
            span = narrowed(span, Span(bounds.get("since"), bounds.get("until")))
        for key, bounds in self.releases.items():
            if whole and key not in seen and bounds.get("always"):
                span = narrowed(span, Span(until=bounds["since"]))
        return span

    def marked(self, key: str) -> bool:
        """Whether only this stack has the key."""
        key = key if key in self.keys else key.removeprefix(TRAIN)
        return _among(key, self.marks)

    def known(self, raw: Raw) -> dict[str, float]:
        """The entries of a row that are read, by key without `TRAIN`."""
        keys, values = self.keys, {}
        for key, item in raw.items():
            plain = key if key in keys else key.removeprefix(TRAIN)
            if plain in keys:
                values[plain] = item
        return values

    def row(self, raw: Raw) -> Row:
        """A row of `known` keys under our columns."""
        row = {}
        for column, keys in self.metrics.items():
            for key in keys:
                if key in raw:
                    row[column] = raw[key]
                    break
        return row

    def overlaps(self, rows: Sequence[Raw], settings: Settings) -> bool | None:
        """Whether rollouts were made beside the training; None where the log does not say."""
        if self.overlapped is None:
            overlaps: bool | None = value(settings, "run.asynchronous") is True
        else:
            overlaps = self.overlapped(rows, settings)
        if overlaps or not self.overlap_keys:
            return overlaps
        return any(_among(key, self.overlap_keys) for row in rows for key in row)

    def complete(self, row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
        """Adds to a row what follows from its keys, and moves a wait to ``wait_s``."""
        for column, keys in self.sums.items():
            parts = [raw[key] for key in keys if key in raw]
            if parts:
                row[column] = sum(parts)
        for column, (whole_key, part_key) in self.differences.items():
            if whole_key in raw and part_key in raw:
                row[column] = max(raw[whole_key] - raw[part_key], 0.0)
        for phase, inside in self.inside.items():
            if f"{phase}_s" in row:
                row[f"{phase}_inside"] = float(inside)
        self.derive(row, raw, settings, overlapped)
        if overlapped and self.generation_waits and "generation_s" in row:
            row.setdefault("wait_s", row.pop("generation_s"))


def _among(key: str, names: Sequence[str]) -> bool:
    return any(key == name or (name.endswith("/") and key.startswith(name)) for name in names)
