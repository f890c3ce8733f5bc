"""Forms of a console row that more than one stack has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rollcast.simulator.stacks.log_format import Metrics, RecordError
from rollcast.simulator.stacks.syntax.python_text import flat, opens

_MOST_LINES = 5_000


class DictConsole:
    """``<prefix N>: {python mapping}`` on one line or printed over several. form: a regular
    expression whose group ``step`` is the step and whose end is where the mapping begins."""

    def __init__(self, form: str) -> None:
        self._form = re.compile(form)
        self.open = False
        self._step = self._line = 0
        self._lines: list[str] = []
        self._depth = 0

    def feed(self, line: int, text: str) -> Iterable[Metrics]:
        """What is complete with this line."""
        match = self._form.search(text)
        if match:
            self._step, self._line = int(match["step"]), line
            self._lines, self._depth = [], 0
            text = text[match.end() :]
        elif not self.open:
            return ()
        self.open = True
        self._lines.append(text)
        self._depth += opens(text)
        started = any("{" in line for line in self._lines)
        if len(self._lines) > _MOST_LINES or (started and self._depth <= 0):
            return self._done()
        if not started and len(self._lines) > 1:  # no mapping follows
            self.open = False
        return ()

    def close(self) -> Iterable[Metrics]:
        """A mapping without its end is none."""
        self.open = False
        return ()

    def _done(self) -> Iterable[Metrics]:
        self.open = False
        values, complete = flat(" ".join(self._lines))
        if not complete and self._depth > 0:
            raise RecordError("a printed mapping has no end")
        return (Metrics(self._step, values, self._line),) if values else ()
