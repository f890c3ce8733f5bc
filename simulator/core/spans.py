"""A run's results: tables with the same columns in every world.

A *segment* is one uninterrupted time of a rollout on a replica, a *call* its time with its
environment or judge, a *phase* an interval of a step (rollout, train, sync, switch). Metrics,
pictures and traces derive from them.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.rollout import (
    CALL_ENDS,
    CALL_KINDS,
    ENDINGS,
    Call,
    LateReward,
    Rollout,
    Segment,
)
from rollcast.simulator.core.world import ClusterShape

PENDING, TRAINED, DROPPED = 0, 1, 2
_ROWS_AT_ONCE = 1024

_SEGMENT_COLUMNS = {
    **dict.fromkeys(("step", "group", "prompt", "index", "attempt"), "q"),
    **dict.fromkeys(("version", "versions", "replica"), "q"),
    **dict.fromkeys(("prompt_tokens", "new_tokens", "total_tokens"), "q"),
    **dict.fromkeys(("prefill_tokens", "recomputed_tokens", "preemptions"), "q"),
    **dict.fromkeys(("shared_tokens", "shared_group", "shared_index"), "q"),
    **dict.fromkeys(("finished", "truncated", "resumed", "outcome"), "b"),
    **{"trained_step": "q", "reward": "d"},
    **dict.fromkeys(("submitted_s", "start_s", "end_s"), "d"),
    **{"turn": "q", "observation_tokens": "q", "ending": "b"},
}

_ENDING_NUMBERS = {ending: number for number, ending in enumerate(ENDINGS)}

_CALL_COLUMNS = {
    **dict.fromkeys(("step", "group", "index", "attempt", "turn"), "q"),
    **dict.fromkeys(("kind", "ended"), "b"),
    **dict.fromkeys(("asked_s", "start_s", "end_s"), "d"),
}


class Table:
    """Rows of figures by column. columns: their names; codes: of each that of `array.array`."""

    codes: ClassVar[Mapping[str, str]] = {}
    columns: ClassVar[tuple[str, ...]] = ()
    row_is: ClassVar[str] = "a row"

    def __init__(self) -> None:
        self._columns = {name: array(code) for name, code in self.codes.items()}
        self._rows: list[tuple[Any, ...]] = []  # added since; columns grow faster many at a time
        self._count = 0

    def __getstate__(self) -> dict[str, array[Any]]:
        return self._table()

    def __setstate__(self, data: dict[str, array[Any]]) -> None:
        self.__init__()  # type: ignore[misc]
        self._columns, self._count = data, len(data["step"])

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, column: str) -> NDArray[Any]:
        """A column as a numpy array (a copy, so that the table can go on growing)."""
        return np.array(self._table()[column])

    def _table(self) -> dict[str, array[Any]]:
        """The columns, with all rows in them."""
        if self._rows:
            added = zip(*self._rows, strict=True)
            for column, values in zip(self._columns.values(), added, strict=True):
                column.extend(values)
            self._rows = []
        return self._columns

    def rows(self, first: int = 0) -> Iterator[tuple[Any, ...]]:
        """The rows from ``first`` on, in the order of ``columns``."""
        return zip(*(column[first:] for column in self._table().values()), strict=True)

    def each(self, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows of these columns alone."""
        table = self._table()
        return zip(*(table[column] for column in columns), strict=True)

    def extend(self, rows: Iterable[Sequence[Any]]) -> None:
        """Appends rows as `rows` gives them. Raises ValueError for any other."""
        columns = [*self._table().values()]
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"{self.row_is} has {len(columns)} figures, and not {len(row)}")
            try:
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
                self._count += 1
            except (TypeError, OverflowError) as error:
                raise ValueError(f"{self.row_is.split()[-1]} {len(self)}: {error}") from None


class Segments(Table):
    """The table of segments, in the order they ended.

    Columns: step, group, prompt, index, attempt; version (of the weights at submit), versions
    (distinct ones in the rollout so far); replica; prompt_tokens; new_tokens (of this segment),
    total_tokens (of the response so far); prefill_tokens, recomputed_tokens (by preemptions);
    preemptions; shared_tokens (prompt included, with an earlier segment of this version),
    shared_group, shared_index (whose; -1: none); finished, truncated, resumed; outcome (0 carried,
    1 trained, 2 dropped), trained_step (-1: none); reward (nan until finished); submitted_s (of a
    later turn: when its environment had answered), start_s (first computed), end_s; turn,
    observation_tokens (so far), ending (in `simulator.core.rollout.ENDINGS`).
    """

    codes = _SEGMENT_COLUMNS
    columns = tuple(_SEGMENT_COLUMNS)
    row_is = "a segment"

    def __init__(self) -> None:
        super().__init__()
        self._late: dict[int, LateReward] = {}  # by row

    def add(
        self, step: int, version: int, rollout: Rollout, segment: Segment, sampled: int
    ) -> None:
        """Appends a segment of the rollout, which has taken it in; ``sampled``: its new tokens."""
        rollout.rows.append(self._count)
        self._count += 1
        reward, shared, calls = segment.reward, segment.shared, segment.calls
        if isinstance(reward, LateReward):
            self._late[self._count - 1] = reward
        submitted_s = rollout.submitted_s
        if calls:
            submitted_s = max(submitted_s, calls[-1].end_s)
        self._rows.append(
            (
                step,
                rollout.group,
                rollout.prompt,
                rollout.index,
                rollout.attempt,
                version,
                len(rollout.tokens_by_version),
                segment.replica,
                segment.prompt_tokens,
                sampled,
                rollout.new_tokens,
                segment.prefill_tokens,
                segment.recomputed_tokens,
                segment.preemptions,
                shared[0],
                shared[1],
                shared[2],
                rollout.finished,
                rollout.truncated,
                rollout.new_tokens > sampled,
                PENDING,
                -1,
                math.nan if reward is None else reward,
                submitted_s,
                segment.start_s,
                segment.end_s,
                segment.turn,
                segment.observation_tokens,
                _ENDING_NUMBERS[segment.ending],
            )
        )
        if len(self._rows) == _ROWS_AT_ONCE:
            super()._table()

    def _table(self) -> dict[str, array[Any]]:
        """The columns, with all rewards."""
        data = super()._table()
        for row, reward in self._late.items():
            data["reward"][row] = float(reward)
        self._late.clear()
        return data

    def settle(self, rollout: Rollout, outcome: int, step: int = -1) -> None:
        """Writes what became of the tokens of this attempt's segments."""
        data = super()._table()
        outcomes, trained = data["outcome"], data["trained_step"]
        for row in rollout.rows:
            outcomes[row] = outcome
            trained[row] = step


class Calls(Table):
    """The table of calls of environments and judges, in the order in which their segments ended.

    Columns: step, group, index, attempt, turn; kind (in `simulator.core.rollout.CALL_KINDS`), ended
    (in `CALL_ENDS`); asked_s, start_s (of its slot), end_s.
    """

    codes = _CALL_COLUMNS
    columns = tuple(_CALL_COLUMNS)
    row_is = "a call"

    def add(self, step: int, rollout: Rollout, call: Call) -> None:
        """Appends a call of the rollout."""
        kind, ended = CALL_KINDS.index(call.kind), CALL_ENDS.index(call.ended)
        key = (rollout.group, rollout.index, rollout.attempt)
        times = (call.asked_s, call.start_s, call.end_s)
        self._count += 1
        self._rows.append((step, *key, call.turn, kind, ended, *times))
        if len(self._rows) == _ROWS_AT_ONCE:
            self._table()


@dataclass(frozen=True, slots=True)
class PhaseSpan:
    """An interval of a step on a track. kind: ``rollout``, or of a `simulator.core.world.Phase`."""

    step: int
    kind: str
    track: str
    start_s: float
    end_s: float
    tokens: int = 0

    @property
    def seconds(self) -> float:
        """Its length."""
        return self.end_s - self.start_s


@dataclass(slots=True)
class Ledger:
    """Where every generated token ended: ``generated == trained + masked + dropped + carried``.
    reprefilled: prefill work repeated by resumes and preemptions, outside the balance."""

    generated_tokens: int = 0
    trained_tokens: int = 0
    masked_tokens: int = 0
    dropped_tokens: int = 0
    carried_tokens: int = 0
    prefill_tokens: int = 0
    reprefilled_tokens: int = 0
    preemptions: int = 0

    @property
    def balance(self) -> int:
        """0 where nothing is lost or counted twice."""
        ends = self.trained_tokens + self.masked_tokens + self.dropped_tokens + self.carried_tokens
        return self.generated_tokens - ends


@dataclass(slots=True)
class StepRecord:
    """One step. Times are of the world's clock; step_s is from one step's end to the next one's.
    groups and rollouts are those trained on, taken_rollouts those before selection; tokens are of
    responses. staleness maps versions behind to tokens."""

    step: int
    start_s: float
    rollout_start_s: float = 0.0
    rollout_end_s: float = 0.0
    end_s: float = 0.0
    group_size: int = 0
    launched_groups: int = 0
    resumed_groups: int = 0
    complete_groups: int = 0
    rejected_groups: int = 0
    trained_groups: int = 0
    taken_rollouts: int = 0
    trained_rollouts: int = 0
    buffered_groups: int = 0
    generated_tokens: int = 0
    trained_tokens: int = 0
    masked_tokens: int = 0
    dropped_tokens: int = 0
    resumed_tokens: int = 0
    stragglers: int = 0
    mean_reward: float = float("nan")
    train_s: float = 0.0
    sync_s: float = 0.0
    switch_s: float = 0.0
    step_s: float = 0.0
    staleness: dict[int, int] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def rollout_s(self) -> float:
        """Seconds from the first submit to the last rollout's stop."""
        return self.rollout_end_s - self.rollout_start_s


@dataclass(slots=True)
class DownSpan:
    """A time in which a replica was down, in seconds from the run's start; end_s may be infinite,
    where it never came back."""

    replica: int
    start_s: float
    end_s: float = math.inf


@dataclass(slots=True)
class Run:
    """Everything that a run left, in memory. evaluations: mean reward of held-out prompts, by the
    step after which they were asked. downs: of replicas that died."""

    world: str
    shape: ClusterShape
    segments: Segments = field(default_factory=Segments)
    calls: Calls = field(default_factory=Calls)
    phases: list[PhaseSpan] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    decisions: list[dict[str, Any]] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    warnings: list[str] = field(default_factory=list)
    start_s: float = 0.0
    end_s: float = 0.0
    evaluations: dict[int, float] = field(default_factory=dict)
    downs: list[DownSpan] = field(default_factory=list)

    @property
    def makespan_s(self) -> float:
        """Seconds from the first submit to the last sync."""
        return self.end_s - self.start_s

    def spans(self) -> Iterator[tuple[int, str, str, int, int, float, float, int]]:
        """Rows of `simulator.results.schema.SPANS`: phases, then segments, in the order they ended;
        group and index are -1 for a phase."""
        for phase in self.phases:
            span = (phase.start_s, phase.end_s, phase.tokens)
            yield (phase.step, phase.kind, phase.track, -1, -1, *span)
        names = ("step", "replica", "group", "index", "start_s", "end_s", "new_tokens")
        for step, replica, *rest in self.segments.each(*names):
            yield (step, "segment", f"replica {replica}", *rest)
