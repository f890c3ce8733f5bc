"""Reads response lengths out of trace files, in the formats that public traces come in.

| format | file | columns or keys |
|---|---|---|
| rollcast | CSV | group, index, prompt_tokens, new_tokens, and reward if known |
| requests | CSV | prompt_tokens, new_tokens |
| Mooncake | CSV, or JSON lines | input_length, output_length |
| Azure LLM inference | CSV | ContextTokens, GeneratedTokens |
| Vidur | CSV | num_prefill_tokens, num_decode_tokens |
| plain | JSON | {"prompt": 512, "out": [lengths]} |

The format is told by the header; further columns (arrival times, hashes) are ignored, since the
policy decides when a rollout starts. Only the first format knows groups. In the others a row is one
request, and `Trace.dealt` makes groups of consecutive rows.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.columns import LARGEST_TOKENS
from rollcast.simulator.results.read import NotJsonError, parse_json

FIELD = "workload.lengths.trace"

_GROUPED = ("group", "index", "prompt_tokens", "new_tokens")
_FLAT = {
    "requests": ("prompt_tokens", "new_tokens"),
    "Mooncake": ("input_length", "output_length"),
    "Azure": ("ContextTokens", "GeneratedTokens"),
    "Vidur": ("num_prefill_tokens", "num_decode_tokens"),
}
_ACCEPTED = (
    "accepted are CSV files with the columns "
    + "; ".join(",".join(columns) for columns in (_GROUPED, *_FLAT.values()))
    + '; JSON lines with input_length and output_length; and JSON {"prompt": 512, "out": [...]}'
)
_WHOLE = re.compile(r"[0-9]{1,18}(\.0*)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TraceGroup:
    """The rollouts of one prompt: their lengths, and their rewards where the trace has them."""

    prompt_tokens: int
    new_tokens: tuple[int, ...]
    rewards: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace file.

    groups: in rising order of their number in the file; one per row where the format has none.
    grouped: whether the file knows groups. warnings: what was done to make groups of rows.
    """

    name: str
    format: str
    groups: tuple[TraceGroup, ...]
    grouped: bool
    warnings: tuple[str, ...] = ()

    @property
    def has_rewards(self) -> bool:
        """Whether every rollout has a reward."""
        return self.groups[0].rewards is not None

    def dealt(self, group_size: int) -> Trace:
        """Requests dealt into groups: each ``group_size`` consecutive rows are one group.

        The group's prompt is that of its first row; rows too few for a last group are left out.
        The rows are different requests, so such a group spreads as wide as the whole trace does;
        ``within_sd`` builds groups with a spread of their own instead. A trace that knows its
        groups is returned as it is. Raises ScenarioError on fewer than ``group_size`` rows.
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
                tuple(row.new_tokens[0] for row in rows[start : start + group_size]),
            )
            for start in starts
        )
        note = (
            f"{self.name} has no groups: its {len(rows)} requests were dealt into {len(groups)} "
            f"groups of {group_size} consecutive rows, {len(rows) % group_size} left over"
        )
        return Trace(self.name, self.format, groups, True, (*self.warnings, note))


def read_trace(path: str | Path) -> Trace:
    """The trace in the file at ``path``; the module says which formats there are.

    Raises ScenarioError, field ``workload.lengths.trace``, naming line and column of what is wrong.
    """
    file = Path(path)
    text = text_of(file)
    if text.lstrip()[0] in "{[":
        return _read_json(text, file)
    return _read_csv(text, file)


def text_of(file: Path) -> str:
    """What a trace file says. Raises ScenarioError where it cannot be read, or is empty."""
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


def tokens_of(value: object, where: str, least: int = 1) -> int:
    """A length in tokens out of a cell (text) or a JSON value; ``where`` names line and column."""
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if not _WHOLE.fullmatch(text) or (tokens := int(text.partition(".")[0])) < least:
        _fail(f"{where} is {shown(text)}; a length is a whole number of tokens, at least {least}")
    if tokens > LARGEST_TOKENS:
        _fail(f"{where} is {shown(text)}; no response or prompt has over {LARGEST_TOKENS} tokens")
    return tokens


def ordinal(value: str, where: str) -> int:
    """A number that counts from 0."""
    if not _WHOLE.fullmatch(value.strip()):
        _fail(f"{where} is {shown(value)}; give a whole number from 0")
    return int(value.strip().partition(".")[0])


def reward_of(value: str, where: str) -> float:
    """A reward out of a cell."""
    try:
        reward = float(value)
    except ValueError:
        reward = math.nan
    if not math.isfinite(reward):
        _fail(f"{where} is {shown(value)}; a reward is a finite number")
    return reward


def shown(text: str) -> str:
    """A cell as an error shows it."""
    text = text.strip()
    return repr(text if len(text) <= 40 else text[:37] + "...") if text else "empty"


def _read_csv(text: str, file: Path) -> Trace:
    rows = csv_rows(text, file)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    name, columns = _csv_format(names, file)
    if name != "rollcast":
        at = [names.index(column) for column in columns]
        groups = [
            TraceGroup(*_request([row[i] for i in at], columns, f"{file}, line {line}"))
            for line, row in rows
        ]
        if not groups:
            _fail(f"{file} has a header and no rows")
        return Trace(file.name, name, tuple(groups), grouped=False)
    return Trace(file.name, name, _grouped(rows, names, file), grouped=True)


def csv_rows(text: str, file: Path) -> Iterator[tuple[int, list[str]]]:
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
    knows_groups = not present.isdisjoint(("group", "index"))
    formats = {"rollcast": _GROUPED} if knows_groups else _FLAT
    for name, columns in formats.items():
        if present.issuperset(columns):
            return name, columns
    for columns in formats.values():
        if present.intersection(columns):
            missing = [column for column in columns if column not in present]
            _fail(f"{file} lacks the column {', '.join(missing)}; {_ACCEPTED}")
    _fail(f"{file} has no header that is known ({shown(','.join(names))}); {_ACCEPTED}")


def _request(
    values: Sequence[object], columns: Sequence[str], where: str
) -> tuple[int, tuple[int, ...]]:
    """``(prompt_tokens, (new_tokens,))`` of one row."""
    prompt, new = (
        tokens_of(value, f"{where}, {column}")
        for value, column in zip(values, columns, strict=True)
    )
    return prompt, (new,)


def _grouped(
    rows: Iterator[tuple[int, list[str]]], names: Sequence[str], file: Path
) -> tuple[TraceGroup, ...]:
    group_at, index_at, prompt_at, new_at = (names.index(column) for column in _GROUPED)
    reward_at = names.index("reward") if "reward" in names else None
    prompts: dict[int, int] = {}
    members: dict[int, dict[int, tuple[int, float]]] = {}
    for line, row in rows:
        where = f"{file}, line {line}"
        group = ordinal(row[group_at], f"{where}, group")
        index = ordinal(row[index_at], f"{where}, index")
        prompt = tokens_of(row[prompt_at], f"{where}, prompt_tokens")
        new = tokens_of(row[new_at], f"{where}, new_tokens")
        reward = 0.0 if reward_at is None else reward_of(row[reward_at], f"{where}, reward")
        if prompts.setdefault(group, prompt) != prompt:
            _fail(
                f"{where} gives group {group} a prompt of {prompt} tokens, an earlier line "
                f"{prompts[group]}; the rollouts of a group share one prompt"
            )
        rollouts = members.setdefault(group, {})
        if index in rollouts:
            _fail(f"{where} repeats group {group}, index {index}; each rollout has one row")
        rollouts[index] = (new, reward)
    if not members:
        _fail(f"{file} has a header and no rows")
    groups = []
    for group in sorted(members):
        rollouts = members[group]
        for index in range(len(rollouts)):
            if index not in rollouts:
                _fail(
                    f"{file}, group {group} has {len(rollouts)} rollouts and none with index "
                    f"{index}; indices count 0, 1, 2, ... without gaps"
                )
        ordered = [rollouts[index] for index in range(len(rollouts))]
        rewards = None if reward_at is None else tuple(reward for _, reward in ordered)
        groups.append(TraceGroup(prompts[group], tuple(new for new, _ in ordered), rewards))
    return tuple(groups)


def _read_json(text: str, file: Path) -> Trace:
    try:
        whole = parse_json(text)
    except NotJsonError:
        return _read_json_lines(text, file)  # several values, or none: the lines tell
    if isinstance(whole, dict) and "input_length" in whole:
        return _read_json_lines(json.dumps(whole), file)
    if not isinstance(whole, dict) or "prompt" not in whole or "out" not in whole:
        _fail(f'{file} is JSON without the keys "prompt" and "out"; {_ACCEPTED}')
    prompt = tokens_of(whole["prompt"], f'{file}, "prompt"')
    lengths = whole["out"]
    if not isinstance(lengths, list) or not lengths:
        _fail(f'{file}, "out" is not a list of lengths; give at least one')
    groups = tuple(
        TraceGroup(prompt, (tokens_of(length, f'{file}, "out"[{i}]'),))
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
        values = [row[column] for column in columns]
        groups.append(TraceGroup(*_request(values, columns, where)))
    return Trace(file.name, "Mooncake", tuple(groups), grouped=False)
