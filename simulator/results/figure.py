"""What a figure of a run is: its name, label, meaning and text, and the tables that show it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Values = Mapping[str, Any]
"""Figures by name: a run's summary.json, a row of `simulator.studies.compare.compared`, a row of a
plan."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line in the table of one run. label and note replace the figure's label and meaning; text
    replaces its text. A line without text is left out."""

    label: str = ""
    text: Callable[[Values], str] | None = None
    note: str | Callable[[Values], str] | None = None


@dataclass(frozen=True, slots=True)
class Heading:
    """A column of the terminal's comparison.

    text: the label with line breaks. drop: a narrow terminal drops the lowest first, never 0.
    footnote: whether the meaning stands below the table. if_differs: show it only where policies
    differ.
    """

    text: str = ""
    drop: int = 0
    footnote: bool = False
    if_differs: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a run.

    name: its key in `Values`. write: its text. value: computes it; by default the value under
    ``name``. None becomes "-". saved: whether comparison.json and comparison.csv hold it. run,
    terminal, page: its line in the table of one run, its column in the terminal's comparison and on
    the page of one. narrow: whether a phone shows the page's column.
    """

    name: str
    label: str
    write: Callable[[Any], str]
    meaning: str = ""
    value: Callable[[Values], Any] | None = None
    saved: bool = True
    run: Line | None = None
    terminal: Heading | None = None
    page: bool = False
    narrow: bool = True

    @property
    def heading(self) -> str:
        """The terminal's column heading."""
        return (self.terminal.text if self.terminal else "") or self.label

    def value_in(self, values: Values) -> Any:
        """The figure; None if there is none."""
        return values.get(self.name) if self.value is None else self.value(values)

    def text(self, values: Values) -> str:
        """The figure's text."""
        value = self.value_in(values)
        return "-" if value is None else self.write(value)

    def line(self, summary: Values) -> tuple[str, str, str] | None:
        """Label, text and note in the table of one run; None if it has no line."""
        if self.run is None:
            return None
        text = self.text(summary) if self.run.text is None else self.run.text(summary)
        note = self.meaning if self.run.note is None else self.run.note
        return self.run.label or self.label, text, note if isinstance(note, str) else note(summary)
