"""The seconds of a step by phase, as a table of a page."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.simulator.report import parts
from rollcast.simulator.report.markup import Content, Markup, joined, tag
from rollcast.simulator.results.figure import Values
from rollcast.simulator.results.figures import BOUND_BY, BY_PHASE, NAMED, NOTES


def phase_table(rows: Sequence[tuple[Content, Values, bool]], of: str = "policy") -> Markup:
    """rows: name, what is said of the phases (`simulator.results.phases.said`), whether it is the
    page's choice. of: what the names are of."""
    figures = [figure for figure in BY_PHASE if any(figure.value_in(said) for _, said, _ in rows)]
    figures.append(BOUND_BY)
    columns = (
        parts.Column(of, text=True),
        *(parts.Column(figure.label, figure.meaning) for figure in figures),
    )
    lines = [
        parts.Row((name, *(parts.lines(figure.text(said)) for figure in figures)), chosen=chosen)
        for name, said, chosen in rows
    ]
    shown = [note for name, note in NOTES.items() if NAMED[f"phases.{name}"] in figures]
    about = [tag("p", " ".join(shown), class_="about")] if shown else []
    return joined([*about, parts.table(columns, lines, "Seconds of a step by phase")])
