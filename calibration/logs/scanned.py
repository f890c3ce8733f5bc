"""The content of one file, and the interface of what reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from rollcast.calibration.logs import recognise
from rollcast.calibration.logs.errors import Tally
from rollcast.calibration.logs.formats.configs import Given
from rollcast.calibration.logs.opened import LogFile, Reached
from rollcast.simulator.stacks.log_format import Metrics, Rollout, Session, StackLog

JSON, DATABASE, EVENTS, CONSOLE = 0, 1, 2, 3
"""Kinds of rows, the most exact first: events have 32 bits, old consoles three decimals."""
RESOLVED, COMMAND, WRITTEN, MACHINE = 0, 1, 2, 3
"""Kinds of settings, the surest first."""

Take = Callable[[StackLog, Rollout | Session, LogFile], None]
"""Receives each rollout while a file is read."""


@dataclass(slots=True)
class Scanned:
    """The content of a file. kind: of its rows. rows: by stack; charted: those of a chart
    whose one key names no stack. settings: (kind, setting). dumped: stacks whose rollouts it has.
    looked_at: False for a file of no kind that trainers write."""

    file: LogFile
    tally: Tally
    kind: int = JSON
    rows: dict[str, list[Metrics]] = field(default_factory=dict)
    charted: list[Metrics] = field(default_factory=list)
    settings: list[tuple[int, Given]] = field(default_factory=list)
    dumped: set[str] = field(default_factory=set)
    looked_at: bool = True

    def copied(self) -> Scanned:
        """A copy that shares nothing that reading on changes."""
        return replace(
            self,
            tally=replace(self.tally, examples=[*self.tally.examples]),
            rows={name: [*rows] for name, rows in self.rows.items()},
            charted=[*self.charted],
            settings=[*self.settings],
            dumped={*self.dumped},
        )

    def add(self, stack: str, rows: Iterable[Metrics]) -> None:
        """Adds rows of a stack, without keys that no stack reads."""
        self.rows.setdefault(stack, []).extend(map(_of_interest, rows))

    def add_recognised(self, rows: Iterable[Metrics]) -> None:
        """Adds rows to the stack that has their keys, if any."""
        kept = [row for row in map(_of_interest, rows) if row.values]
        stack = recognise.by_metrics({key for row in kept for key in row.values})
        if stack is not None:
            self.rows.setdefault(stack.name, []).extend(kept)


def _of_interest(row: Metrics) -> Metrics:
    return Metrics(row.step, recognise.of_interest(row.values), row.line, row.logged_s)


class Reader:
    """Reads a file that may grow into a `Scanned`, from where it stopped the last time."""

    def __init__(self, scanned: Scanned, take: Take) -> None:
        self.scanned, self.take = scanned, take

    def read(self, since: Reached, whole: bool) -> None:
        """Reads from ``since``, which moves, to the end. whole: leaves out a last line or record
        that has no end yet."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the reading."""

    def copied(self, scanned: Scanned, take: Take) -> Reader:
        """A copy that reads on into ``scanned``, a copy of this one's."""
        raise NotImplementedError
