"""Rollouts and requests, gathered record by record into columns of numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable
from copy import copy
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING

from rollcast.calibration.logs import columns
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.opened import LogFile
from rollcast.simulator.stacks.log_format import Request, Rollout, Session, StackLog

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_KEYS = ("step", "group", "index")
_NUMBERS = tuple(name for name in columns.ROLLOUTS.names if name not in _KEYS)
_NAN = math.nan
MOST_ROLLOUTS = 20_000_000
MOST_TOKENS = 1e9
"""Of a rollout; a larger figure is damaged."""
_COUNTS = ("prompt_tokens", "new_tokens", "tool_tokens", "characters")


class Rollouts:
    """Rollouts of one stack. Groups are numbered in the order in which they first appear.

    tokens: counts the tokens of a response whose text alone was dumped. some_unnamed: whether some
    groups are shown by the order of rollouts alone. mingled: whether such rollouts of several files
    alternated.
    """

    def __init__(self, stack: StackLog, tokens: Callable[[str], int] | None = None) -> None:
        self._stack, self._tokens = stack, tokens
        self._keys = {name: array("q") for name in _KEYS}
        self._given = {name: array("d") for name in _NUMBERS}  # up to the last row that has one
        self._prompts, self._by_prompt = array("q"), array("b")
        self._requests: dict[int, tuple[Request, ...]] = {}
        self._groups: dict[tuple[int, Hashable], int] = {}
        self._members: dict[Hashable, list[int]] = {}
        self._sessions: dict[Hashable, dict[str, Session]] = {}
        self._known: dict[Hashable, int] = {}
        self._files: dict[int, LogFile] = {}
        self._one_file = any(dump.one_file_a_step for dump in stack.dumps)
        self._unnamed_in: list[str] = []
        self.mingled = False

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def some_unnamed(self) -> bool:
        """See above."""
        return bool(self._unnamed_in)

    def copied(self) -> Rollouts:
        """A copy that shares nothing that taking on, or `tables`, changes."""
        other = copy(self)
        other._keys = {name: values[:] for name, values in self._keys.items()}
        other._given = {name: values[:] for name, values in self._given.items()}
        other._prompts, other._by_prompt = self._prompts[:], self._by_prompt[:]
        other._requests, other._groups = {**self._requests}, {**self._groups}
        other._members = {group: [*rows] for group, rows in self._members.items()}
        other._sessions = {group: {**sessions} for group, sessions in self._sessions.items()}
        other._known, other._files = {**self._known}, {**self._files}
        other._unnamed_in = [*self._unnamed_in]
        return other

    def take(self, record: Rollout | Session, file: LogFile) -> None:
        """Adds one. Raises LogError for two files of one step, and beyond `MOST_ROLLOUTS`."""
        if isinstance(record, Session):
            sessions = self._sessions.setdefault(record.group, {})
            had = sessions.get(record.order)
            if had is not None:
                numbers = {**had.columns, **record.columns}
                requests = had.requests + record.requests
                record = replace(record, requests=requests, columns=numbers)
            sessions[record.order] = record
            return
        if self._one_file:
            held = self._files.setdefault(record.step, file)
            if held is not file and held.name != file.name:
                raise LogError(
                    f"{file.name} and {held.name} both hold the rollouts of "
                    f"step {record.step}: two runs are mixed; import one at a time"
                )
        if record.identity is not None:
            row = self._known.setdefault((record.step, record.identity), len(self))
            if row < len(self):
                if record.columns.get("trained") == 1:
                    self._column("trained")[row] = 1.0
                return
        row = len(self)
        if row >= MOST_ROLLOUTS:
            raise LogError(f"{file.name}: more than {MOST_ROLLOUTS:,} rollouts")
        if record.group is None:
            if not self._unnamed_in or self._unnamed_in[-1] != file.name:
                self.mingled = self.mingled or file.name in self._unnamed_in
                self._unnamed_in.append(file.name)
            group = -1
        else:
            group = self._groups.setdefault((record.step, record.group), len(self._groups))
            self._members.setdefault(record.group, []).append(row)
        self._keys["step"].append(record.step)
        self._keys["group"].append(group)
        self._keys["index"].append(-1 if record.index is None else record.index)
        self._prompts.append(0 if record.prompt is None else record.prompt)
        self._by_prompt.append(record.group is not None and record.group == record.prompt)
        given = record.columns
        if self._tokens and record.text is not None and given.get("new_tokens") is None:
            given = {**given, "new_tokens": float(self._tokens(record.text))}
        for name, value in given.items():
            column = self._given.get(name)
            if value is not None and column is not None:
                if name in _COUNTS and not 0 <= value <= MOST_TOKENS:
                    raise LogError(
                        f"{file.name}: a rollout of step {record.step} has {name} "
                        f"{value:g}, which no response has"
                    )
                if len(column) < row:
                    column.extend(repeat(_NAN, row - len(column)))
                column.append(value)
        if record.requests:
            self._requests[row] = record.requests

    def _column(self, name: str) -> array[float]:
        """Of all rows, NaN where none was given."""
        column = self._given[name]
        column.extend(repeat(_NAN, len(self) - len(column)))
        return column

    def tables(self, group_size: int | None) -> tuple[pd.DataFrame, pd.DataFrame, int]:
        """rollouts.csv and requests.csv, and the number of steps left out because they repeat the
        rollouts of the step before. group_size: cuts groups that only order or prompt show."""
        import numpy as np
        import pandas as pd

        self._join()
        start = min((r.start_s for each in self._requests.values() for r in each), default=0.0)
        for row, requests in self._requests.items():
            self._column("start_s")[row] = requests[0].start_s - start
            self._column("end_s")[row] = max(r.end_s for r in requests) - start
        data: dict[str, object] = {
            name: np.array(values, dtype=np.int64) for name, values in self._keys.items()
        }
        data |= {name: np.array(self._column(name), dtype=float) for name in _NUMBERS}
        data |= {"prompt": np.array(self._prompts, dtype=np.int64), "row": np.arange(len(self))}
        table = pd.DataFrame(data)
        if self.some_unnamed:
            _name_groups(table, group_size)
        if group_size is not None and any(self._by_prompt):
            _split(table, np.array(self._by_prompt, dtype=bool), group_size)
        again = 0
        if self._stack.dumps_again:
            table, again = _without_repeats(table)
        table = table.sort_values(["step", "group", "index", "row"], kind="stable")
        table["index"] = table.groupby(["step", "group"]).cumcount()
        requests_table = self._requests_table(table, start)
        return table[list(columns.ROLLOUTS.names)].reset_index(drop=True), requests_table, again

    def _requests_table(self, table: pd.DataFrame, start: float) -> pd.DataFrame:
        import numpy as np
        import pandas as pd

        names = [name for name in columns.REQUESTS.names if name not in _KEYS]
        if not self._requests:  # as in most logs
            kinds = {**dict.fromkeys(_KEYS, "i8"), **dict.fromkeys(names, "f8"), "turn": "i8"}
            return pd.DataFrame({name: np.empty(0, kind) for name, kind in kinds.items()})
        rows: list[tuple[float | None, ...]] = []
        for row, requests in self._requests.items():
            before: float | None = None
            for turn, r in enumerate(requests):
                gap = None if before is None else max(r.start_s - before, 0.0)
                before = r.end_s
                times = (r.start_s - start, r.end_s - start, r.queue_s, gap)
                rows.append(
                    (row, turn, *times, r.prompt_tokens, r.cached_tokens, r.new_tokens, r.version)
                )
        each = pd.DataFrame(rows, columns=["row", *names]).astype(
            {**dict.fromkeys(names, "float64"), "row": "int64", "turn": "int64"}
        )
        return table[[*_KEYS, "row"]].merge(each, on="row").drop(columns="row")

    def _join(self) -> None:
        """Sessions to the rollouts of their group, in order."""
        for group, sessions in self._sessions.items():
            rows = sorted(self._members.get(group, ()), key=lambda row: self._keys["index"][row])
            for row, order in zip(rows, sorted(sessions), strict=False):
                if sessions[order].requests:
                    self._requests[row] = sessions[order].requests
                for name, number in sessions[order].columns.items():
                    if number is not None:
                        self._column(name)[row] = number


def _name_groups(table: pd.DataFrame, group_size: int | None) -> None:
    """Numbers the groups of rollouts without one: rollouts of one prompt that follow each other,
    cut at the group's size; without prompt and size, each rollout by itself."""
    unnamed = table["group"] < 0
    begins = ~unnamed.shift(fill_value=False)
    for name in ("step", "prompt"):
        begins |= table[name] != table[name].shift()
    if group_size is None:
        begins |= table["prompt"] == 0
    run = begins.cumsum()
    part = run.groupby(run).cumcount() // (group_size or len(table))
    numbers = table[unnamed].groupby([run[unnamed], part[unnamed]], sort=False).ngroup()
    table.loc[unnamed, "group"] = table["group"].max() + 1 + numbers


def _split(table: pd.DataFrame, by_prompt: np.ndarray, group_size: int) -> None:
    """Splits groups of one prompt that are several times as large: a step may ask it twice."""
    by_group = table.groupby("group")["group"]
    sizes, part = by_group.transform("size"), by_group.cumcount() // group_size
    later = by_prompt & (sizes % group_size == 0) & (part > 0)
    numbers = table[later].groupby(["group", part[later]], sort=False).ngroup()
    table.loc[later, "group"] = table["group"].max() + 1 + numbers


def _without_repeats(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The table without steps that repeat the rollouts of the step before, and their number."""
    import numpy as np

    same = ["prompt", "characters", "new_tokens", "reward"]
    before, drop = None, []
    for step, rows in table.groupby("step", sort=True):
        now = rows[same].to_numpy()
        if before is not None and np.array_equal(now, before, equal_nan=True):
            drop.append(step)
        else:
            before = now
    return table[~table["step"].isin(drop)].reset_index(drop=True), len(drop)
