"""Reads response lengths out of trace files, in the formats that public traces come in.

| format | file | columns or keys |
|---|---|---|
| rollcast | CSV | group, index, prompt_tokens, new_tokens, and reward if known |
| requests | CSV | prompt_tokens, new_tokens |
| Mooncake | CSV, or JSON lines | input_length, output_length |
| Azure LLM inference | CSV | ContextTokens, GeneratedTokens |
| Vidur | CSV | num_prefill_tokens, num_decode_tokens |
| plain | JSON | {"prompt": 512, "out": [lengths]} |
| responses | CSV | one of new_tokens, response_length and the like; no column of prompts |
| responses | JSON | [lengths] |
| turns | CSV | group, index, turn, observation_tokens, new_tokens, environment_s, maybe reward |

The header decides the format; further columns (arrival times, hashes) are ignored, since the policy
decides when a rollout starts. The first and the last format have groups. In the others a row is one
request, and `Trace.dealt` makes groups of consecutive rows. Responses alone have no prompts:
`Trace.prompted` gives them.

Of turns, each has a row. The first turn's observation is the prompt, which a group's rollouts
share. ``environment_s`` is what the environment took after the turn; after the last one it may be
0. A reward stands in the last turn's row, or the same in every row of its rollout.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.columns import LARGEST_TOKENS
from rollcast.simulator.results.read import NotJsonError, parse_json
from rollcast.simulator.workload.seconds import LARGEST_S

FIELD = "workload.lengths.trace"
T = TypeVar("T")

_GROUPED = ("group", "index", "prompt_tokens", "new_tokens")
_TURNS = ("group", "index", "turn", "observation_tokens", "new_tokens", "environment_s")
_FLAT = {
    "requests": ("prompt_tokens", "new_tokens"),
    "Mooncake": ("input_length", "output_length"),
    "Azure": ("ContextTokens", "GeneratedTokens"),
    "Vidur": ("num_prefill_tokens", "num_decode_tokens"),
}
_RESPONSES = (
    *("new_tokens", "response_tokens", "response_length", "completion_tokens"),
    *("completion_length", "output_tokens", "output_length", "tokens", "length"),
)
_ACCEPTED = (
    "accepted are CSV files with the columns "
    + "; ".join(",".join(columns) for columns in (_GROUPED, *_FLAT.values(), _TURNS))
    + "; new_tokens alone (or "
    + ", ".join(_RESPONSES[1:])
    + "); JSON lines with input_length and output_length; and JSON, "
    + '{"prompt": 512, "out": [...]} or [...]'
)
_WHOLE = re.compile(r"[0-9]{1,18}(\.0*)?", re.ASCII)


class TracedTurn(NamedTuple):
    """A turn: tokens that begin it, tokens that it sampled, and the environment's seconds after."""

    observation_tokens: int
    new_tokens: int
    environment_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """The rollouts of one prompt, each a list of turns, and their rewards if the trace has them."""

    prompt_tokens: int
    rollouts: tuple[tuple[TracedTurn, ...], ...]
    rewards: tuple[float, ...] | None = None

    @property
    def new_tokens(self) -> tuple[int, ...]:
        """Response lengths of rollouts of one turn."""
        return tuple(turns[0].new_tokens for turns in self.rollouts)


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file.

    groups: in rising order of their number in the file; one per row if the format has none.
    grouped: whether the format has groups. warnings: how groups were made of rows. has_prompts:
    whether prompts are known; else they have 0 tokens.
    """

    name: str
    format: str
    groups: tuple[TraceGroup, ...]
    grouped: bool
    warnings: tuple[str, ...] = ()
    has_prompts: bool = True

    @property
    def has_rewards(self) -> bool:
        """Whether every rollout has a reward."""
        return self.groups[0].rewards is not None

    def prompted(self, tokens: int) -> Trace:
        """Responses behind prompts of so many tokens."""
        groups = tuple(
            TraceGroup(tokens, tuple(_after(tokens, new) for new in group.new_tokens))
            for group in self.groups
        )
        return replace(self, groups=groups, has_prompts=True)

    def dealt(self, group_size: int) -> Trace:
        """Requests dealt into groups: each ``group_size`` consecutive rows are one group.

        The group's prompt is that of its first row; rows too few for a last group are left out.
        The rows are different requests, so a group spreads as wide as the whole trace;
        ``within_sd`` builds groups with a spread of their own instead. A trace with groups is
        returned unchanged. Raises ScenarioError on fewer than ``group_size`` rows.
        """
        if self.grouped:
            return self
        rows = self.groups
        if len(rows) < group_size:
            raise ScenarioError(
                FIELD,
                f"{self.name} holds {len(rows)} requests, too few for one group of {group_size}; "
                "lower workload.group_size or set within_sd",
            )
        starts = range(0, len(rows) - group_size + 1, group_size)
        groups = tuple(
            TraceGroup(
                rows[start].prompt_tokens,
                tuple(row.rollouts[0] for row in rows[start : start + group_size]),
            )
            for start in starts
        )
        note = (
            f"{self.name} has no groups: its {len(rows)} requests were dealt into {len(groups)} "
            f"groups of {group_size} consecutive rows, {len(rows) % group_size} left over"
        )
        return replace(self, groups=groups, grouped=True, warnings=(*self.warnings, note))


def _after(prompt: int, new: int) -> tuple[TracedTurn, ...]:
    """A rollout of one turn."""
    return (TracedTurn(prompt, new),)


def read_trace(path: str | Path) -> Trace:
    """The trace in the file at ``path``, in one of the formats above.

    Raises ScenarioError, field ``workload.lengths.trace``, naming line and column of what is wrong.
    """
    file = Path(path)
    text = _text_of(file)
    if text.lstrip()[0] in "{[":
        return _read_json(text, file)
    return _read_csv(text, file)


def _text_of(file: Path) -> str:
    if file.is_dir():
        _fail(f"{file} is a folder; give a trace file")
    if not file.exists():
        _fail(f"there is no file {file}; give the path of a trace")
    if not file.is_file():
        _fail(f"{file} is a device or a pipe; give a trace file")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        _fail(f"{file} is not UTF-8 text (byte {error.start}); {_ACCEPTED}")
    except OSError as error:
        _fail(f"{file} cannot be read ({error.strerror or error})")
    if not text.strip():
        _fail(f"{file} is empty; {_ACCEPTED}")
    return text


def _fail(message: str) -> NoReturn:
    raise ScenarioError(FIELD, message)


def _tokens(value: object, where: str, least: int = 1) -> int:
    """A length in tokens from a cell (text) or a JSON value; where: line and column."""
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if not _WHOLE.fullmatch(text) or (tokens := int(text.partition(".")[0])) < least:
        _fail(f"{where} is {_shown(text)}; a length is a whole number of tokens, at least {least}")
    if tokens > LARGEST_TOKENS:
        _fail(f"{where} is {_shown(text)}; no response or prompt has over {LARGEST_TOKENS} tokens")
    return tokens


def _ordinal(value: str, where: str) -> int:
    if not _WHOLE.fullmatch(value.strip()):
        _fail(f"{where} is {_shown(value)}; give a whole number from 0")
    return int(value.strip().partition(".")[0])


def _number(value: str) -> float:
    """The finite number in a cell; nan for any other text."""
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...") if text else "empty"


def _read_csv(text: str, file: Path) -> Trace:
    rows = _csv_rows(text, file)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    name, columns = _csv_format(names, file)
    grouped = name in ("rollcast", "turns")
    if grouped:
        read = _Grouped(file, names)
        for line, row in rows:
            read.take(line, row)
        groups = read.groups()
    else:
        at = [names.index(column) for column in columns]
        groups = tuple(
            _request([row[i] for i in at], columns, f"{file}, line {line}") for line, row in rows
        )
    if not groups:
        _fail(f"{file} has a header and no rows")
    return Trace(file.name, name, groups, grouped, has_prompts=name != "responses")


def _csv_rows(text: str, file: Path) -> Iterator[tuple[int, list[str]]]:
    """``(line number, cells)`` of each row that is not blank; all rows as long as the first."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    width = 0
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            if width and len(row) != width:
                _fail(
                    f"{file}, line {reader.line_num} has {len(row)} cells; the header has {width}"
                )
            width = len(row)
            yield reader.line_num, row
    except csv.Error as error:
        _fail(f"{file}, line {reader.line_num} is not valid CSV ({error})")


def _csv_format(names: Sequence[str], file: Path) -> tuple[str, Sequence[str]]:
    """The format whose columns the header has, as (name, columns)."""
    for name in names:
        if names.count(name) > 1:
            _fail(f"{file} has the column {name!r} {names.count(name)} times; once is enough")
    present = set(names)
    formats: Mapping[str, Sequence[str]] = _FLAT
    if "turn" in present:
        formats = {"turns": _TURNS}
    elif not present.isdisjoint(("group", "index")):
        formats = {"rollcast": _GROUPED}
    for name, columns in formats.items():
        if present.issuperset(columns):
            return name, columns
    alone = [name for name in names if name in _RESPONSES]
    prompts = present.intersection(columns[0] for columns in _FLAT.values())
    if formats is _FLAT and len(alone) == 1 and not prompts:
        return "responses", alone
    for columns in formats.values():
        if present.intersection(columns):
            missing = [column for column in columns if column not in present]
            _fail(f"{file} lacks the column {', '.join(missing)}; {_ACCEPTED}")
    _fail(f"{file} has no header that is known ({_shown(','.join(names))}); {_ACCEPTED}")


def _request(values: Sequence[object], columns: Sequence[str], where: str) -> TraceGroup:
    """A row of a format without groups: prompt, if there is one, and response."""
    *prompts, new = (
        _tokens(value, f"{where}, {column}") for value, column in zip(values, columns, strict=True)
    )
    prompt = prompts[0] if prompts else 0
    return TraceGroup(prompt, (_after(prompt, new),))


class _Grouped:
    """Reads the rows of a format with groups, in any order."""

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        self._file = file
        self._at = {name: place for place, name in enumerate(names)}
        self._prompts: dict[int, int] = {}
        self._turns: dict[tuple[int, int], dict[int, TracedTurn]] = {}
        self._rewards: dict[tuple[int, int], float] = {}

    def take(self, line: int, row: list[str]) -> None:
        """Takes one row. Raises ScenarioError."""
        where = f"{self._file}, line {line}"
        cell = {name: row[place] for name, place in self._at.items()}
        with_turns = "turn" in cell
        group, index = (_ordinal(cell[name], f"{where}, {name}") for name in ("group", "index"))
        turn = _ordinal(cell["turn"], f"{where}, turn") if with_turns else 0
        first = "observation_tokens" if with_turns else "prompt_tokens"
        observed = _tokens(cell[first], f"{where}, {first}", 0 if turn else 1)
        new = _tokens(cell["new_tokens"], f"{where}, new_tokens")
        seconds = self._seconds(cell["environment_s"], where) if with_turns else 0.0
        turns = self._turns.setdefault((group, index), {})
        if turn in turns:
            also = f", turn {turn}" if with_turns else ""
            each = "" if with_turns else " rollout"
            _fail(f"{where} repeats group {group}, index {index}{also}; each{each} has one row")
        if not turn and self._prompts.setdefault(group, observed) != observed:
            _fail(
                f"{where} gives group {group} a prompt of {observed} tokens, an earlier line "
                f"{self._prompts[group]}; the rollouts of a group share one prompt"
            )
        turns[turn] = TracedTurn(observed, new, seconds)
        if "reward" in cell and (cell["reward"].strip() or not with_turns):
            reward = _number(cell["reward"])
            if math.isnan(reward):
                _fail(f"{where}, reward is {_shown(cell['reward'])}; a reward is a finite number")
            if self._rewards.setdefault((group, index), reward) != reward:
                _fail(
                    f"{where} gives group {group}, index {index} a reward of {reward:g}, an "
                    f"earlier line {self._rewards[group, index]:g}"
                )

    @staticmethod
    def _seconds(text: str, where: str) -> float:
        seconds = _number(text)
        if not 0 <= seconds <= LARGEST_S:
            _fail(
                f"{where}, environment_s is {_shown(text)}; give seconds, from 0 to {LARGEST_S:g}"
            )
        return seconds

    def groups(self) -> tuple[TraceGroup, ...]:
        """The groups by their number. Raises ScenarioError for gaps and missing rewards."""
        rollouts: dict[int, dict[int, tuple[TracedTurn, ...]]] = {}
        for (group, index), turns in sorted(self._turns.items()):
            of = f"{self._file}, group {group}, index {index} has {len(turns)} turns and none with"
            rollouts.setdefault(group, {})[index] = _in_order(
                turns, of, "number {}; turns count 0, 1, 2, ..."
            )
        if len(self._rewards) not in (0, len(self._turns)):
            _fail(
                f"{self._file} has rewards of {len(self._rewards)} of {len(self._turns)} rollouts; "
                "give every one a reward, or none"
            )
        made = []
        for group, of_group in rollouts.items():
            of = f"{self._file}, group {group} has {len(of_group)} rollouts and none with"
            ordered = _in_order(of_group, of, "index {}; indices count 0, 1, 2, ... without gaps")
            rewards = None
            if self._rewards:
                rewards = tuple(self._rewards[group, index] for index in range(len(ordered)))
            made.append(TraceGroup(self._prompts[group], ordered, rewards))
        return tuple(made)


def _in_order(items: Mapping[int, T], of: str, gap: str) -> tuple[T, ...]:
    """The items numbered 0, 1, 2, ... Raises ScenarioError for a number that is missing."""
    for number in range(len(items)):
        if number not in items:
            _fail(f"{of} {gap.format(number)}")
    return tuple(items[number] for number in range(len(items)))


def _read_json(text: str, file: Path) -> Trace:
    try:
        whole = parse_json(text)
    except NotJsonError:
        return _read_json_lines(text, file)  # several values, or none: the lines tell
    if isinstance(whole, dict) and "input_length" in whole:
        return _read_json_lines(json.dumps(whole), file)
    if isinstance(whole, list) and whole:
        alone = tuple(_request([one], (f"entry {i}",), str(file)) for i, one in enumerate(whole))
        return Trace(file.name, "responses", alone, grouped=False, has_prompts=False)
    if not isinstance(whole, dict) or "prompt" not in whole or "out" not in whole:
        _fail(f'{file} is JSON without the keys "prompt" and "out"; {_ACCEPTED}')
    lengths = whole["out"]
    if not isinstance(lengths, list) or not lengths:
        _fail(f'{file}, "out" is not a list of lengths; give at least one')
    groups = tuple(
        _request([whole["prompt"], length], ('"prompt"', f'"out"[{i}]'), str(file))
        for i, length in enumerate(lengths)
    )
    return Trace(file.name, "plain", groups, grouped=False)


def _read_json_lines(text: str, file: Path) -> Trace:
    columns = _FLAT["Mooncake"]
    groups = []
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        where = f"{file}, line {line}"
        try:
            row = parse_json(content)
        except NotJsonError:
            _fail(f"{where} is not valid JSON; {_ACCEPTED}")
        if not isinstance(row, dict):
            _fail(f"{where} is not a JSON object; {_ACCEPTED}")
        for column in columns:
            if column not in row:
                _fail(f"{where} lacks {column}; {_ACCEPTED}")
        groups.append(_request([row[column] for column in columns], columns, where))
    return Trace(file.name, "Mooncake", tuple(groups), grouped=False)
