"""Accuracy over hours (`simulator.results.curves`) as SVG, and what the target takes as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rollcast.simulator.report import parts
from rollcast.simulator.report.markup import Markup, tag
from rollcast.simulator.report.series import Box
from rollcast.simulator.results.curves import Curves, Panel, curves_of
from rollcast.simulator.results.learning import sentences
from rollcast.simulator.results.scale import marks, time_unit
from rollcast.simulator.results.target_figures import AFTER, SOONER, TO_TARGET


def learning_section(summaries: Mapping[str, Mapping[str, Any]], chosen: str = "") -> Markup:
    """The part of a page on learning; empty for runs without a law. summaries: of runs, by policy,
    the baseline first. chosen: the page's policy."""
    said = sentences(summaries)
    if not said:
        return Markup()
    curves = curves_of(summaries)
    picture = None if curves is None else parts.figure(_panels(curves), "", _key(curves))
    return parts.section(
        "Accuracy over time", picture, _table(summaries, chosen), about=" ".join(said)
    )


def _table(summaries: Mapping[str, Mapping[str, Any]], chosen: str) -> Markup | None:
    rows = list(summaries.values())
    figures = [f for f in (AFTER, *TO_TARGET, *SOONER) if any(f.value_in(row) for row in rows)]
    if not figures:
        return None
    columns = (
        parts.Column("policy", text=True),
        *(parts.Column(figure.label, figure.meaning) for figure in figures),
    )
    lines = [
        parts.Row(
            [parts.breakable(name), *(parts.lines(figure.text(row)) for figure in figures)],
            chosen=name == chosen,
        )
        for name, row in summaries.items()
    ]
    return parts.table(columns, lines, "Accuracy")


def _panels(curves: Curves) -> Markup:
    return tag("div", [_panel(panel, curves) for panel in curves.panels], class_="panels")


def _panel(panel: Panel, curves: Curves) -> Markup:
    box = Box((0.0, curves.hours), (curves.least, curves.most))
    unit_s, unit = time_unit(3600 * curves.hours)
    ticks = marks(0.0, 3600 * curves.hours / unit_s, 5)
    ends = (0.0, curves.hours)
    lines = [box.band(panel.hours, panel.low, panel.high)]
    if curves.target is not None:
        lines.append(box.line(ends, (curves.target, curves.target), "target"))
    if panel.base is not None:
        lines.append(box.line(*panel.base, "base"))
    lines.append(box.line(panel.hours, panel.accuracy, "forecast"))
    return box.panel(
        panel.title,
        f"{panel.title}: accuracy over {unit}",
        (
            (value * unit_s / 3600, f"{value:g} {unit}" if value == ticks[-1] else f"{value:g}")
            for value in ticks
        ),
        ((value, f"{value:g}") for value in marks(curves.least, curves.most, 4)),
        box.stretched(*lines),
        panel.note,
    )


def _key(curves: Curves) -> Markup:
    entries: Sequence[tuple[str, str]] = [
        ("line-forecast", "accuracy"),
        ("band", "90 % interval"),
        *([("line-base", curves.first)] if curves.first else []),
        *([] if curves.target is None else [("line-target", f"target {curves.target:g}")]),
    ]
    return parts.key(entries)
