"""Reads response lengths out of trace files: those of public traces, of engines and of one's own.

| file | groups |
|---|---|
| CSV with group, index, prompt_tokens, new_tokens, and reward if known | as numbered |
| CSV with group, index, turn, observation_tokens, new_tokens, environment_s | as numbered |
| CSV, JSON lines, list of objects: lengths of responses, maybe of prompts, maybe groups | those \
given, or dealt |
| JSON objects with a list of responses to one prompt | each object |
| JSON objects with a list of prompts and one of responses | dealt |
| JSON [[lengths], ...] | each list |
| JSON [lengths], {"prompt": 512, "out": [lengths]} | dealt |

`trace_rows` tells the columns by their names: Mooncake's and Azure's
traces, BurstGPT's, Bailian's, Vidur's, and what ``vllm bench serve --save-detailed`` and SGLang's
``bench_serving --output-details`` write. Further columns (arrival times, hashes) are ignored, since
the policy decides when a rollout starts. Where nothing says the groups, a row is one request, and
`Trace.dealt` makes groups of consecutive rows; requests of 0 new tokens, which failed, are left
out. Responses alone have no prompts: `Trace.prompted` gives them.

Of turns, each has a row. The first turn's observation is the prompt, which a group's rollouts
share. ``environment_s`` is what the environment took after the turn; after the last one it may be
0. A reward stands in the last turn's row, or the same in every row of its rollout.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.results import parquet
from rollcast.simulator.results.columns import LARGEST_TOKENS
from rollcast.simulator.results.read import NotJsonError, parse_json
from rollcast.simulator.values.words import counted
from rollcast.simulator.workload import trace_columns, trace_rows
from rollcast.simulator.workload.seconds import LARGEST_S
from rollcast.simulator.workload.trace_rows import ACCEPTED, FIELD, Row, fail, shown

__all__ = ["FIELD", "Trace", "TraceGroup", "TracedTurn", "read_trace"]

T = TypeVar("T")

_WHOLE = re.compile(r"([0-9]{1,18})(\.0*|,0{1,2})?", re.ASCII)
"""Three zeros behind a comma might be thousands."""
_BY_NUMPY = re.compile(r"[0-9](?:\.[0-9]{1,20})?e[+-]?[0-9]{1,2}", re.ASCII | re.IGNORECASE)
"""As ``numpy.savetxt`` writes a number."""


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
            TraceGroup(
                tokens, tuple(_after(tokens, new) for new in group.new_tokens), group.rewards
            )
            for group in self.groups
        )
        return replace(self, groups=groups, has_prompts=True)

    def dealt(self, group_size: int) -> Trace:
        """Requests dealt into groups: each ``group_size`` consecutive rows are one group.

        The group's prompt is that of its first row; rows too few for a last group are left out.
        The rows are different requests, so a group spreads as wide as the whole trace;
        ``within_sd`` builds groups with a spread of their own instead. Of a trace with groups,
        those of fewer rollouts are left out, unless all are; where each has a single one, as where
        every request has a number of its own, they are requests. Raises ScenarioError on fewer than
        ``group_size`` rows.
        """
        single = all(len(group.rollouts) == 1 for group in self.groups)
        if self.grouped and not (single and group_size > 1):
            return self._of_size(group_size)
        rows = self.groups
        if len(rows) < group_size:
            fail(
                f"{self.name} holds {counted(len(rows), 'request')}, too few for one group of "
                f"{group_size}; lower workload.group_size or set within_sd"
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
            f"{self.name} has no groups: its rows ({len(rows):,} in all) were dealt into "
            f"{counted(len(groups), 'group')} of {group_size} consecutive rows, "
            f"{len(rows) % group_size} left over"
        )
        if _in_order(np.array([group.new_tokens for group in groups])):
            note += "; neighbours are of like lengths: shuffle the rows if groups are not so"
        return replace(self, groups=groups, grouped=True, warnings=(*self.warnings, note))

    def _of_size(self, group_size: int) -> Trace:
        whole = tuple(group for group in self.groups if len(group.rollouts) >= group_size)
        small = len(self.groups) - len(whole)
        if not small or not whole:
            return self
        note = (
            f"{small} of {len(self.groups)} groups of {self.name} have fewer than {group_size} "
            "rollouts and were left out"
        )
        return replace(self, groups=whole, warnings=(*self.warnings, note))


def _in_order(lengths: NDArray[np.int64]) -> bool:
    """Whether lengths spread far less within a group, a row each, than over all."""
    logs = np.log(lengths)
    if logs.shape[0] < 10 or logs.shape[1] < 2:
        return False
    return bool(logs.var(axis=1, ddof=1).mean() < 0.5 * logs.var())


def _after(prompt: int, new: int) -> tuple[TracedTurn, ...]:
    """A rollout of one turn."""
    return (TracedTurn(prompt, new),)


def read_trace(path: str | Path) -> Trace:
    """The trace in the file at ``path``, in one of the formats above.

    Raises ScenarioError, field ``workload.lengths.trace``, naming line and column of what is wrong.
    """
    file = Path(path)
    return _parsed(trace_rows.content_of(file), file)


@lru_cache(maxsize=1)
def _parsed(content: bytes, file: Path) -> Trace:
    """Kept, since a run with other seeds asks for the same trace again."""
    if content.startswith(parquet.MAGIC):
        return _of_objects(trace_rows.of_parquet(content, file), file)
    text = trace_rows.text_of(content, file)
    if text.lstrip()[0] in "{[":
        return _of_json(text, file)
    if numbers := trace_rows.plain_numbers(text, file):
        return _of_rows(numbers, file)
    trace_rows.refuse_metrics(text, file)
    names, rows = trace_rows.csv_table(text, file)
    if trace_rows.is_histogram(names):
        return _of_rows(trace_rows.of_histogram(names, rows, file), file)
    numbered = {"group", "index"}.issubset(names)
    if not _has_turns(names):
        with _uncollected():
            quick = _of_columns(names, rows, file, numbered)
        if quick is not None:
            return quick
        names, rows = trace_rows.csv_table(text, file)
    if _has_turns(names) or numbered:
        return _of_table(names, rows, file)
    return _of_rows(trace_rows.of_csv(names, rows, file), file)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, which would go through millions of tuples that have none,
    again and again."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _of_columns(
    names: Sequence[str], rows: Iterable[tuple[str, list[str]]], file: Path, numbered: bool
) -> Trace | None:
    """As `_of_table` and `_of_rows` read it, of whole numbers; None of any other table."""
    if numbered:
        found = trace_columns.grouped(names, rows, trace_rows.GROUPED)
        if found is None:
            return None
        groups = tuple(
            TraceGroup(prompt, tuple(_after(prompt, new) for new in of_group), rewards)
            for prompt, of_group, rewards in found
        )
        return Trace(file.name, "rollcast", groups, grouped=True)
    roles = trace_rows.roles_of(names, str(file))
    read = trace_columns.requests(names, rows, roles)
    if read is None:
        return None
    alone = tuple(TraceGroup(prompt, (_after(prompt, new),)) for prompt, new in read[0])
    return _of_requests(alone, read[1], "prompt" in roles, file)


def _tokens(cell: str, where: str, least: int = 1) -> int:
    """A length in tokens; where: line and column."""
    text = cell.strip()
    whole = _WHOLE.fullmatch(text)
    if not whole and _BY_NUMPY.fullmatch(text) and (number := float(text)).is_integer():
        whole = _WHOLE.fullmatch(f"{number:.0f}")
    if not whole or (tokens := int(whole[1])) < least:
        fail(f"{where} is {shown(text)}; a length is a whole number of tokens, at least {least}")
    if tokens > LARGEST_TOKENS:
        fail(f"{where} is {shown(text)}; no response or prompt has over {LARGEST_TOKENS} tokens")
    return tokens


def _ordinal(value: str, where: str) -> int:
    if not (whole := _WHOLE.fullmatch(value.strip())):
        fail(f"{where} is {shown(value)}; give a whole number from 0")
    return int(whole[1])


def _number(value: str) -> float:
    """The finite number in a cell; nan for any other text."""
    try:
        number = float(value)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _of_table(names: Sequence[str], rows: Iterable[tuple[str, list[str]]], file: Path) -> Trace:
    """The trace of a table that numbers its groups, their rollouts and maybe their turns."""
    with_turns = _has_turns(names)
    wanted = trace_rows.TURNS if with_turns else trace_rows.GROUPED
    if missing := [column for column in wanted if column not in names]:
        fail(f"{file} lacks the column {', '.join(missing)}; {ACCEPTED}")
    read = _Grouped(file, names)
    for where, cells in rows:
        read.take(where, cells)
    if not (groups := read.groups()):
        fail(f"{file} has a header and no rows")
    return Trace(file.name, "turns" if with_turns else "rollcast", groups, grouped=True)


def _of_rows(rows: Iterable[Row], file: Path) -> Trace:
    """The trace of responses in groups, or, without groups, of one request a row."""
    groups: dict[str, list[Row]] = {}
    requests: list[TraceGroup] = []
    failed = 0
    has_prompts = False
    row = None
    for row in rows:
        has_prompts = has_prompts or row.prompt is not None
        if row.group is not None:
            groups.setdefault(row.group.strip(), []).append(row)
        elif row.response.strip() in ("0", "0.0"):
            failed += 1
        else:
            requests.append(_request(row))
    if row is None:
        fail(f"{file} has a header and no rows")
    if groups and (requests or failed):
        fail(f"{file} has groups of responses beside single requests; give one or the other")
    if groups:
        made = tuple(_group(name, of_group) for name, of_group in groups.items())
        if any(group.rewards for group in made) and not all(group.rewards for group in made):
            fail(f"{file} has rewards of some responses; give every one a reward, or none")
        return Trace(file.name, "groups", made, grouped=True, has_prompts=has_prompts)
    if not requests:
        fail(f"{file} has {failed} responses, all of 0 tokens; a response has at least 1")
    return _of_requests(tuple(requests), failed, has_prompts, file)


def _of_requests(
    requests: tuple[TraceGroup, ...], failed: int, has_prompts: bool, file: Path
) -> Trace:
    note = (
        f"{file.name}: left out {counted(failed, 'response')} of 0 tokens, as failed requests "
        "have, or with an error"
    )
    return Trace(
        file.name,
        "requests" if has_prompts else "responses",
        requests,
        grouped=False,
        warnings=(note,) if failed else (),
        has_prompts=has_prompts,
    )


def _request(row: Row) -> TraceGroup:
    """A response that is a group of its own."""
    prompt = 0 if row.prompt is None else _tokens(row.prompt, row.place("prompt"))
    return TraceGroup(prompt, (_after(prompt, _tokens(row.response, row.place("response"))),))


def _group(name: str, rows: Sequence[Row]) -> TraceGroup:
    """The responses to one prompt, in the order of the file."""
    alone = [_request(row) for row in rows]
    prompt = alone[0].prompt_tokens
    for row, one in zip(rows, alone, strict=True):
        if one.prompt_tokens != prompt:
            fail(
                f"{row.where} gives group {shown(name)} a prompt of {one.prompt_tokens} tokens, an "
                f"earlier row {prompt}; the rollouts of a group share one prompt: without "
                f"{row.columns.get('group', 'groups')} each row is a request of its own"
            )
    rewards = tuple(_reward(row) for row in rows if row.reward is not None and row.reward.strip())
    if len(rewards) not in (0, len(rows)):
        fail(
            f"{rows[0].where}: group {shown(name)} has rewards of {len(rewards)} of {len(rows)} "
            "responses; give every one a reward, or none"
        )
    return TraceGroup(prompt, tuple(one.rollouts[0] for one in alone), rewards or None)


def _reward(row: Row) -> float:
    assert row.reward is not None
    reward = _number(row.reward)
    if math.isnan(reward):
        fail(f"{row.place('reward')} is {shown(row.reward)}; a reward is a finite number")
    return reward


class _Grouped:
    """Reads the rows of a format with groups, in any order."""

    def __init__(self, file: Path, names: Sequence[str]) -> None:
        self._file = file
        self._at = {name: place for place, name in enumerate(names)}
        self._prompts: dict[int, int] = {}
        self._turns: dict[tuple[int, int], dict[int, TracedTurn]] = {}
        self._rewards: dict[tuple[int, int], float] = {}

    def take(self, where: str, row: list[str]) -> None:
        """Takes one row. Raises ScenarioError."""
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
            fail(f"{where} repeats group {group}, index {index}{also}; each{each} has one row")
        if not turn and self._prompts.setdefault(group, observed) != observed:
            fail(
                f"{where} gives group {group} a prompt of {observed} tokens, an earlier line "
                f"{self._prompts[group]}; the rollouts of a group share one prompt"
            )
        turns[turn] = TracedTurn(observed, new, seconds)
        if "reward" in cell and (cell["reward"].strip() or not with_turns):
            reward = _number(cell["reward"])
            if math.isnan(reward):
                fail(f"{where}, reward is {shown(cell['reward'])}; a reward is a finite number")
            if self._rewards.setdefault((group, index), reward) != reward:
                fail(
                    f"{where} gives group {group}, index {index} a reward of {reward:g}, an "
                    f"earlier line {self._rewards[group, index]:g}"
                )

    @staticmethod
    def _seconds(text: str, where: str) -> float:
        seconds = _number(text)
        if not 0 <= seconds <= LARGEST_S:
            fail(f"{where}, environment_s is {shown(text)}; give seconds, from 0 to {LARGEST_S:g}")
        return seconds

    def groups(self) -> tuple[TraceGroup, ...]:
        """The groups by their number. Raises ScenarioError for gaps and missing rewards."""
        rollouts: dict[int, dict[int, tuple[TracedTurn, ...]]] = {}
        for (group, index), turns in sorted(self._turns.items()):
            of = f"{self._file}, group {group}, index {index} has {len(turns)} turns and none with"
            rollouts.setdefault(group, {})[index] = _numbered(
                turns, of, "number {}; turns count 0, 1, 2, ..."
            )
        if len(self._rewards) not in (0, len(self._turns)):
            fail(
                f"{self._file} has rewards of {len(self._rewards)} of {len(self._turns)} rollouts; "
                "give every one a reward, or none"
            )
        made = []
        for group, of_group in rollouts.items():
            of = f"{self._file}, group {group} has {len(of_group)} rollouts and none with"
            ordered = _numbered(of_group, of, "index {}; indices count 0, 1, 2, ... without gaps")
            rewards = None
            if self._rewards:
                rewards = tuple(self._rewards[group, index] for index in range(len(ordered)))
            made.append(TraceGroup(self._prompts[group], ordered, rewards))
        return tuple(made)


def _numbered(items: Mapping[int, T], of: str, gap: str) -> tuple[T, ...]:
    """The items numbered 0, 1, 2, ... Raises ScenarioError for a number that is missing."""
    for number in range(len(items)):
        if number not in items:
            fail(f"{of} {gap.format(number)}")
    return tuple(items[number] for number in range(len(items)))


def _of_json(text: str, file: Path) -> Trace:
    try:
        whole = parse_json(text)
    except NotJsonError:  # several values, or none: the lines tell
        return _of_objects(trace_rows.lines_of(text, file), file)
    if isinstance(whole, dict):
        if whole.keys() >= {"prompt", "out"}:
            return _of_rows(_plain(whole["prompt"], whole["out"], file), file)
        if requests := trace_rows.benchmarked(whole, file):
            return _of_rows(trace_rows.of_objects(iter(requests)), file)
        if trace_rows.is_of_prompts(whole):
            groups = [(f"{file}, {prompt}", lengths) for prompt, lengths in whole.items()]
            return _of_rows(trace_rows.of_lists(groups), file)
        return _of_rows(_ungrouped(trace_rows.of_objects(iter([(str(file), whole)]))), file)
    if not isinstance(whole, list) or not whole:
        fail(f"{file} holds no response; {ACCEPTED}")
    entries = [(f"{file}, entry {i}", entry) for i, entry in enumerate(whole)]
    if isinstance(whole[0], dict):
        return _of_objects(iter(entries), file)
    return _of_rows(trace_rows.of_lists(entries), file)


def _has_turns(names: Collection[str]) -> bool:
    """Whether these are columns of our table of turns. Others number turns of a conversation, each
    of which is a request."""
    ours = {"group", "index", "observation_tokens", "environment_s"}
    return "turn" in names and not ours.isdisjoint(names)


def _of_objects(objects: Iterator[tuple[str, object]], file: Path) -> Trace:
    """The trace of objects, each a response, the responses to a prompt, or a turn."""
    first = next(objects, None)
    if first is None:
        fail(f"{file} has no rows; {ACCEPTED}")
    objects = chain((first,), objects)
    if isinstance(first[1], dict) and _has_turns(first[1]):
        return _of_table(*trace_rows.table_of_turns(list(objects)), file)
    return _of_rows(trace_rows.of_objects(objects), file)


def _ungrouped(rows: Iterable[Row]) -> Iterator[Row]:
    """A file that is one object of lengths alone has single responses, not one group of all."""
    for row in rows:
        alone = "prompt" not in row.columns and "group" not in row.columns
        yield row._replace(group=None) if alone and row.reward is None else row


def _plain(prompt: object, out: object, file: Path) -> list[Row]:
    """Single requests with prompts of one length."""
    if not isinstance(out, list) or not out:
        fail(f'{file}, "out" is not a list of lengths; give at least one')
    return [trace_rows.request(f'{file}, "out"[{i}]', prompt, one) for i, one in enumerate(out)]
