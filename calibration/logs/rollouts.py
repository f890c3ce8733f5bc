"""Rollouts and requests, gathered record by record into columns of numbers."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Hashable, Mapping
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING

from rollcast.calibration.logs import columns
from rollcast.calibration.logs.errors import LogError
from rollcast.calibration.logs.opened import LogFile
from rollcast.simulator.stacks.log_format import Request, Rollout, Session, StackLog

if TYPE_CHECKING:
    import pandas as pd

_KEYS = ("step", "group", "index")
_NUMBERS = tuple(name for name in columns.ROLLOUTS.names if name not in _KEYS)
_ASKED = tuple(name for name in columns.REQUESTS.names if name not in _KEYS)
_NAN = math.nan
MOST_ROLLOUTS = 20_000_000
MOST_TOKENS = 1e9
"""Of a rollout: beyond it, a figure is damaged."""
_COUNTS = ("prompt_tokens", "new_tokens", "tool_tokens", "characters")


class Rollouts:
    """Rollouts of one stack. Groups are numbered in the order in which they first appear. tokens:
    counts those of a response whose text alone was dumped. some_unnamed: whether only their order
    tells some of the groups; mingled: whether such rollouts of several files came in turns."""

    def __init__(self, stack: StackLog, tokens: Callable[[str], int] | None = None) -> None:
        self._stack, self._tokens = stack, tokens
        self._keys = {name: array("q") for name in _KEYS}
        self._given = {name: array("d") for name in _NUMBERS}  # up to the last row that has one
        self._prompts = array("q")
        self._by_prompt = array("b")
        self._requests: dict[int, tuple[Request, ...]] = {}
        self._groups: dict[tuple[int, Hashable], int] = {}
        self._members: dict[Hashable, list[int]] = {}
        self._sessions: dict[
            Hashable, dict[str, tuple[tuple[Request, ...], Mapping[str, float | None]]]
        ] = {}
        self._known: dict[Hashable, int] = {}
        self._files: dict[int, LogFile] = {}
        self._one_file = any(dump.one_file_a_step for dump in stack.dumps)
        self.some_unnamed = False
        self.mingled = False
        self._unnamed_in: list[str] = []

    def __len__(self) -> int:
        return len(self._prompts)

    def copied(self) -> Rollouts:
        """Another of the same, of which no part is shared that taking on, or `tables`, changes."""
        other = copy(self)
        other._keys = {name: values[:] for name, values in self._keys.items()}
        other._given = {name: values[:] for name, values in self._given.items()}
        other._prompts, other._by_prompt = self._prompts[:], self._by_prompt[:]
        other._requests, other._groups = {**self._requests}, {**self._groups}
        other._members = {group: [*rows] for group, rows in self._members.items()}
        other._sessions = {group: {**session} for group, session in self._sessions.items()}
        other._known, other._files = {**self._known}, {**self._files}
        other._unnamed_in = [*self._unnamed_in]
        return other

    def take(self, record: Rollout | Session, file: LogFile) -> None:
        """Adds one. Raises LogError where two files hold one step of a stack that writes it into
        one, and beyond `MOST_ROLLOUTS`."""
        if isinstance(record, Session):
            before, numbers = self._sessions.setdefault(record.group, {}).get(
                record.order, ((), {})
            )
            self._sessions[record.group][record.order] = (
                (*before, *record.requests),
                {**numbers, **record.columns},
            )
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
            self.some_unnamed = True
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
        """rollouts.csv and requests.csv, and the number of steps left out because their rollouts
        are those of the step before. group_size: for rollouts of which only the order tells."""
        import numpy as np
        import pandas as pd

        self._join()
        self._name_groups(group_size)
        self._split(group_size)
        start = min(
            (r.start_s for requests in self._requests.values() for r in requests), default=0.0
        )
        for row, requests in self._requests.items():
            first, last = requests[0].start_s - start, max(r.end_s for r in requests) - start
            self._column("start_s")[row], self._column("end_s")[row] = first, last
        data: dict[str, object] = {
            name: np.array(values, dtype=np.int64) for name, values in self._keys.items()
        }
        data.update({name: np.array(self._column(name), dtype=float) for name in _NUMBERS})
        table = pd.DataFrame(data)
        table["row"] = np.arange(len(table))
        table["prompt"] = np.array(self._prompts, dtype=np.int64)
        again = 0
        if self._stack.dumps_again:
            table, again = _without_repeats(table)
        table = table.sort_values(["step", "group", "index", "row"], kind="stable")
        table["index"] = table.groupby(["step", "group"]).cumcount()
        asked = self._asked(table, start)
        order = list(columns.ROLLOUTS.names)
        return table[order].reset_index(drop=True), asked, again

    def _asked(self, table: pd.DataFrame, start: float) -> pd.DataFrame:
        import pandas as pd

        rows: list[tuple[float | None, ...]] = []
        if self._requests:
            places = table.set_index("row")[list(_KEYS)]
            for row in table["row"]:
                before: float | None = None
                for turn, request in enumerate(self._requests.get(int(row), ())):
                    step, group, index = (int(v) for v in places.loc[row])
                    gap = None if before is None else max(request.start_s - before, 0.0)
                    before = request.end_s
                    rows.append(
                        (
                            step,
                            group,
                            index,
                            turn,
                            request.start_s - start,
                            request.end_s - start,
                            request.queue_s,
                            gap,
                            request.prompt_tokens,
                            request.cached_tokens,
                            request.new_tokens,
                            request.version,
                        )
                    )
        requests = pd.DataFrame(rows, columns=list(columns.REQUESTS.names))
        whole = ["step", "group", "index", "turn"]
        numbers = [name for name in columns.REQUESTS.names if name not in whole]
        return requests.astype(
            {**dict.fromkeys(whole, "int64"), **dict.fromkeys(numbers, "float64")}
        )

    def _join(self) -> None:
        """Sessions to the rollouts of their group, in order."""
        for group, sessions in self._sessions.items():
            rows = sorted(self._members.get(group, ()), key=lambda row: self._keys["index"][row])
            for row, order in zip(rows, sorted(sessions), strict=False):
                requests, numbers = sessions[order]
                if requests:
                    self._requests[row] = requests
                for name, column in numbers.items():
                    if column is not None:
                        self._column(name)[row] = column

    def _name_groups(self, group_size: int | None) -> None:
        """Rollouts without a group: those of one prompt that follow each other are one, cut at the
        group's size where that is known."""
        at, next_group = 0, len(self._groups)
        steps, groups = self._keys["step"], self._keys["group"]
        while at < len(self):
            if groups[at] >= 0:
                at += 1
                continue
            end = at + 1
            while end < len(self) and groups[end] < 0 and steps[end] == steps[at]:
                named = self._prompts[at] != 0
                if named and self._prompts[end] != self._prompts[at]:
                    break
                if group_size is not None and end - at >= group_size:
                    break
                if not named and group_size is None:
                    break
                end += 1
            for row in range(at, end):
                groups[row] = next_group
            next_group += 1
            at = end

    def _split(self, group_size: int | None) -> None:
        """Groups that only their prompt names, and which are several of one size: a step may ask
        the same twice."""
        if group_size is None or not any(self._by_prompt):
            return
        groups = self._keys["group"]
        sizes: dict[int, int] = {}
        for group in groups:
            sizes[group] = sizes.get(group, 0) + 1
        seen: dict[int, int] = {}
        parts: dict[tuple[int, int], int] = {}
        unused = max(sizes, default=0) + 1
        for row, group in enumerate(groups):
            if not self._by_prompt[row] or sizes[group] % group_size or sizes[group] == group_size:
                continue
            part = seen.get(group, 0) // group_size
            seen[group] = seen.get(group, 0) + 1
            if part:
                if (group, part) not in parts:
                    parts[group, part] = unused + len(parts)
                groups[row] = parts[group, part]


def _without_repeats(table: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The table without steps whose rollouts are, in order, those of the step before, and how many
    such steps there were: updates on the same rollouts, dumped again."""
    same = ["prompt", "characters", "new_tokens", "reward"]
    before, drop = None, []
    for step, rows in table.groupby("step", sort=True):
        now = rows[same].to_numpy()
        if before is not None and now.shape == before.shape and _equal(now, before):
            drop.append(step)
        else:
            before = now
    return table[~table["step"].isin(drop)].reset_index(drop=True), len(drop)


def _equal(a: object, b: object) -> bool:
    import numpy as np

    return bool(np.array_equal(a, b, equal_nan=True))  # type: ignore[arg-type]
