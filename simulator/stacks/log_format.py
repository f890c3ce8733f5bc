"""How a stack's log is described: data, and a few pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol, cast

from rollcast.simulator.stacks.settings import Settings

TRAIN = "train/"
Row = dict[str, float]
"""A step's numbers by our columns."""
Raw = Mapping[str, float]
"""A step's numbers by the stack's own keys."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """A row of metrics as it stands in a log. line: of its file; its record in a binary one.
    logged_s: when it was logged, since the epoch."""

    step: int
    values: Raw
    line: int
    logged_s: float | None = None


class Origin(NamedTuple):
    """Where a record of a dump stands. folders: those that its file lies in. name: the file's,
    without what packing added."""

    folders: Sequence[str]
    name: str
    line: int


@dataclass(frozen=True, slots=True)
class Request:
    """A turn. Seconds are of any one clock."""

    start_s: float
    end_s: float
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    new_tokens: float | None = None
    queue_s: float | None = None
    version: float | None = None


@dataclass(slots=True)  # frozen ones take three times as long to make, and logs have millions
class Rollout:
    """A rollout out of a dump. group: what its prompt's rollouts share; None where only their order
    tells. prompt: of the prompt's text. identity: the same for one rollout that is dumped twice.
    text: of the response, where its tokens are not in the dump.
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
    """Times of a rollout that are dumped apart from it. order: among those of its group."""

    group: Hashable
    order: str
    requests: tuple[Request, ...]
    columns: Mapping[str, float | None] = field(default_factory=dict)


class RecordError(ValueError):
    """A record that is not what its kind promises; the end of a sentence."""


Record = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Dump:
    """A kind of record that holds rollouts. fits: told by the keys of one. one_file_a_step: two
    files for one step are of two runs."""

    fits: Callable[[Record], bool]
    read: Callable[[Record, Origin], Iterable[Rollout | Session]]
    one_file_a_step: bool = False


class Console(Protocol):
    """Reads a stack's metrics off cleaned lines of a console, one after another. ``open`` while a
    block of several lines is being read."""

    open: bool

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """What is complete with this line. Raises RecordError for a row that cannot be read."""
        ...

    def close(self) -> Iterable[Metrics]:
        """What is complete once there are no more lines."""
        ...


class OneLine:
    """A console whose rows have one line each."""

    open = False

    def close(self) -> Iterable[Metrics]:
        """Nothing is left."""
        return ()


def _nothing(row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
    return


def _nothing_either(rows: Sequence[tuple[Row, Raw]], settings: Settings) -> None:
    return


def _as_it_is(values: Raw) -> Raw:
    return values


def _never(rows: Iterable[Raw], settings: Settings) -> bool:
    return False


@dataclass(frozen=True, eq=False)
class StackLog:
    """How a stack's log is read.

    metrics: our column, and their keys for it, of which the first that is there counts. marks: keys
    that tell it from the others; a key that ends in ``/`` stands for all below it. also: further
    keys that ``derive`` and ``overlapped`` look at. sums: our column, and their keys that add up to
    it. differences: our column, and their key less another, where both are there. start: what the
    first line of a row on the console looks like (a regular expression of bytes). cue: bytes that
    such a line holds, which are looked for first. named: their row with keys that mean two things
    told apart. overlapped: whether rollouts were made beside the training, from all rows, None
    where the log does not tell (then it counts as so). generation_waits: whether their time of
    generation is the trainer's wait then. inside: phases that their step's time holds, or leaves
    out. derive: what the keys of a row do not say by themselves. follow: what follows from one row
    after another, all in order. outside: phases that their step's time always leaves out. how: what
    to switch on for a level. console_counts: whether their console names no step, so that its rows
    are only counted. dumps_again: whether an update on the same rollouts dumps them again. pads:
    whether updates pad every rollout to the longest of the batch. exceeded: what becomes of groups
    beyond their bound on staleness, as `fully_async` calls it. tool_tokens_inside: whether their
    length of a response holds what tools wrote.
    """

    name: str
    metrics: Mapping[str, tuple[str, ...]]
    marks: tuple[str, ...]
    also: tuple[str, ...] = ()
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    start: bytes | None = None
    cue: bytes = b""
    console: Callable[[], Console] | None = None
    dumps: tuple[Dump, ...] = ()
    named: Callable[[Raw], Raw] = _as_it_is
    overlapped: Callable[[Iterable[Raw], Settings], bool | None] = _never
    derive: Callable[[Row, Raw, Settings, bool], None] = _nothing
    follow: Callable[[Sequence[tuple[Row, Raw]], Settings], None] = _nothing_either
    generation_waits: bool = False
    inside: Mapping[str, bool] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    how: Mapping[int, str] = field(default_factory=dict)
    console_counts: bool = False
    dumps_again: bool = False
    pads: bool = False
    exceeded: str = "wait"
    tool_tokens_inside: bool = False

    @cached_property
    def keys(self) -> frozenset[str]:
        """Their keys that are read."""
        tables = (self.metrics, self.sums, self.differences)
        named = (key for table in tables for keys in table.values() for key in keys)
        return frozenset(named).union(self.also)

    def marked(self, key: str) -> bool:
        """Whether a key tells it from the others."""
        key = key if key in self.keys else key.removeprefix(TRAIN)
        return any(key == m or (m.endswith("/") and key.startswith(m)) for m in self.marks)

    def known(self, raw: Raw) -> dict[str, float]:
        """What of a row is read, by key; some sinks put ``train/`` before every key."""
        keys, values = self.keys, {}
        for key, item in raw.items():
            plain = key if key in keys else key.removeprefix(TRAIN)
            if plain in keys:
                values[plain] = item
        return values

    def row(self, raw: Raw) -> Row:
        """Their numbers, as `known` gives them, under our columns."""
        row = {}
        for column, keys in self.metrics.items():
            for key in keys:
                if key in raw:
                    row[column] = raw[key]
                    break
        return row

    def complete(self, row: Row, raw: Raw, settings: Settings, overlapped: bool) -> None:
        """Adds to a row what follows from its keys, and calls a wait a wait."""
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


def digest(text: object) -> int:
    """A number for a text, the same in every process."""
    return _digest(text if isinstance(text, bytes) else str(text))


@lru_cache(maxsize=4)  # the rollouts of a group follow each other
def _digest(text: bytes | str) -> int:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "replace")
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "big")


def length(value: object) -> int:
    """Entries of a list or tensor. Raises RecordError."""
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        raise RecordError(f"a list was expected, not {type(value).__name__}") from None


def total(value: object) -> int:
    """How many of a list or tensor of flags are set. Raises RecordError."""
    try:
        count = int(sum(cast(Iterable[Any], value)))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise RecordError("a list of numbers was expected") from None
    if not 0 <= count <= length(value):
        raise RecordError("a list of flags was expected")
    return count


def whole(value: object, name: str) -> int:
    """A count. Raises RecordError, in which the value is called ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise RecordError(f"{name} is no number")
    if not -1e15 < value < 1e15 or value != int(value):
        raise RecordError(f"{name} is no whole number")
    return int(value)


def tokens(value: object, name: str) -> int:
    """A count that is not negative. Raises RecordError."""
    count = whole(value, name)
    if count < 0:
        raise RecordError(f"{name} is negative")
    return count


def real(value: object) -> float | None:
    """A finite number, or None."""
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


_VALIDATED = ("val", "eval")


def of_validation(origin: Origin) -> bool:
    """Whether a dump is of a validation, which stacks put into the same form: by its name, or that
    of its folder."""
    last = origin.folders[-1] if origin.folders else ""
    return last[:4].lower().startswith(_VALIDATED) or origin.name.startswith(_VALIDATED)


def number_in(name: str) -> int | None:
    """The last number in a file's name, such as 12 of ``train_data_step12.jsonl``."""
    digits = ""
    for letter in reversed(name.partition(".")[0]):
        if letter.isdecimal() and letter.isascii():
            digits = letter + digits
        elif digits:
            break
    return int(digits) if 0 < len(digits) < 12 else None
