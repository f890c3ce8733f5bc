"""The forms of a console row: one line, a printed mapping, a block of lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping

from rollcast.simulator.stacks.log_format import Metrics, RecordError
from rollcast.simulator.stacks.syntax.python_text import flat, opens

_MOST_LINES = 5_000
Parsed = tuple[int | None, Mapping[str, float | str]] | None
"""Step (None: by ``start``, or the number of the row) and values, a text where one is no number;
None for no row."""


class OneLine:
    """Rows of one line each.

    start: its group 1, if it has one, is the step. row: reads the text after it; raises
    RecordError. keys: those that are read, whose values must be numbers.
    """

    open = False

    def __init__(self, start: str, row: Callable[[str], Parsed], keys: Collection[str]) -> None:
        self._start, self._row, self._keys = re.compile(start), row, keys
        self._rows = 0

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The row of a line."""
        match = self._start.search(text)
        parsed = self._row(text[match.end() :]) if match else None
        if match is None or parsed is None:
            return ()
        self._rows += 1
        step, values = parsed
        if step is None:
            step = int(match[1]) if match.re.groups else self._rows
        wrong = next((k for k, v in values.items() if isinstance(v, str) and k in self._keys), None)
        if wrong is not None:
            raise RecordError(f"{wrong} is no number")
        numbers = {k: v for k, v in values.items() if not isinstance(v, str)}
        return (Metrics(step, numbers, line),) if numbers else ()

    def close(self) -> Iterable[Metrics]:
        """Nothing is left."""
        return ()


class Block:
    """Rows of several lines. start: of the first line; its group 1 is the step.

    A subclass has `more`, which puts numbers into ``values``.
    """

    def __init__(self, start: str) -> None:
        self._start = re.compile(start)
        self.open = False
        self.step = self.line = 0
        self.values: dict[str, float] = {}

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The block that this line ends."""
        match = self._start.search(text)
        if match:
            ended = self.end()
            self.open, self.step, self.line = True, int(match[1]), line
            return ended
        return self.end() if self.open and self.more(text) else ()

    def more(self, text: str) -> bool:
        """Reads a further line; whether it ends the block."""
        raise NotImplementedError

    def end(self) -> Iterable[Metrics]:
        """The block as far as it goes."""
        values, self.values, self.open = self.values, {}, False
        return (Metrics(self.step, values, self.line),) if values else ()

    def close(self) -> Iterable[Metrics]:
        """A block without its end is no row."""
        self.open = False
        return ()


class PrintedMapping(Block):
    """``<start> {Python mapping}``, on one line or printed over several."""

    def __init__(self, start: str) -> None:
        super().__init__(start)
        self._lines: list[str] = []
        self._depth = 0

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """The mapping that this line ends. Raises RecordError for one that is too long."""
        match = self._start.search(text)
        if match:
            self.open, self.step, self.line = True, int(match[1]), line
            self._lines, self._depth = [], 0
            text = text[match.end() :]
        elif not self.open:
            return ()
        self._lines.append(text)
        self._depth += opens(text)
        started = any("{" in part for part in self._lines)
        if len(self._lines) > _MOST_LINES or (started and self._depth <= 0):
            self.values, complete = flat(" ".join(self._lines))
            if not complete and self._depth > 0:
                self.open = False
                raise RecordError("a printed mapping has no end")
            return self.end()
        if not started and len(self._lines) > 1:  # no mapping follows
            self.open = False
        return ()
