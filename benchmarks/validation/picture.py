"""Forecast against measured, one panel a source."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.validation.case import Case, Source

_COLOURS = {"held out": "#c1440e", "calibrated": "#7a8ca3"}
_COLUMNS = 4


def draw(sources: Sequence[Source], path: Path) -> None:
    """Log-log panels with the diagonal and a band of 15 %; dots of cases, bars of their ranges.

    Sources without cases get no panel.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [panel for source in sources for panel in _panels(source)]
    columns = min(_COLUMNS, max(1, len(shown)))
    rows = max(1, math.ceil(len(shown) / columns))
    figure = Figure(figsize=(4.2 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for number, (title, cases) in enumerate(shown, start=1):
        _panel(figure.add_subplot(rows, columns, number), title, cases)
    figure.savefig(path, dpi=68)


def _panels(source: Source) -> list[tuple[str, list[Case]]]:
    """A source's panel, and one of its own for ratios beside figures with a unit."""
    with_unit = [case for case in source.cases if case.unit]
    ratios = [case for case in source.cases if not case.unit]
    title = source.short_title
    panels = [(title, with_unit), (f"{title}: ratios", ratios)]
    return [(name, cases) for name, cases in panels if cases]


def _panel(axes: Any, title: str, cases: list[Case]) -> None:
    low = 0.8 * min(min(case.measured, case.forecast) for case in cases)
    high = 1.25 * max(max(case.measured, case.forecast) for case in cases)
    axes.fill_between(
        [low, high], [0.85 * low, 0.85 * high], [1.15 * low, 1.15 * high], color="#e8e8e8"
    )
    axes.plot([low, high], [low, high], color="#444444", linewidth=0.8)
    for role in ("calibrated", "held out"):
        members = [case for case in cases if case.role == role]
        if members:
            _dots(axes, members, role, small=len(cases) > 60)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
    axes.set_title(title, fontsize=9)
    units = ", ".join(dict.fromkeys(case.unit or "ratio" for case in cases))
    axes.set_xlabel(f"measured ({units})", fontsize=8)
    axes.set_ylabel("forecast", fontsize=8)
    axes.tick_params(labelsize=7)
    axes.legend(fontsize=7, loc="upper left")


def _dots(axes: Any, cases: list[Case], role: str, small: bool) -> None:
    axes.errorbar(
        [case.measured for case in cases],
        [case.forecast for case in cases],
        yerr=[  # a forecast by the best guesses may lie outside what all guesses give
            [max(case.forecast - (case.low or case.forecast), 0.0) for case in cases],
            [max((case.high or case.forecast) - case.forecast, 0.0) for case in cases],
        ],
        fmt=".",
        markersize=3 if small else 7,
        alpha=0.5 if small else 0.9,
        elinewidth=0.8,
        color=_COLOURS[role],
        label=f"{role} ({len(cases)})",
    )
