"""Small multiples of measured steps and their forecasts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollcast.simulator.report.front import across_marks, up_marks
from rollcast.simulator.report.markup import Markup, number, tag
from rollcast.simulator.report.parts import figure, key
from rollcast.simulator.results.figures import seconds
from rollcast.simulator.results.scale import marks

_ENTRIES = (("dot-measured", "measured"), ("line-forecast", "forecast"), ("band", "90 % interval"))


@dataclass(frozen=True, slots=True)
class Series:
    """Steps of one run. measured: (step, seconds). forecast, low, high: seconds at steps ``at``."""

    title: str
    measured: Sequence[tuple[float, float]]
    at: Sequence[float]
    forecast: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def series(panels: Sequence[Series]) -> Markup:
    """The pictures side by side."""
    return figure(
        tag("div", [_panel(panel) for panel in panels], class_="panels"), "", key(_ENTRIES)
    )


def _panel(panel: Series) -> Markup:
    numbers = [*(step for step, _ in panel.measured), *panel.at]
    first, last = min(numbers), max(numbers)
    values = [*(value for _, value in panel.measured), *panel.forecast, *panel.high]
    top = 1.06 * max(values) or 1.0
    wide = (last - first) or 1.0

    def left(step: float) -> float:
        return 100 * (step - first) / wide

    def down(value: float) -> float:
        return 100 * (1 - value / top)

    dots = [
        tag(
            "circle",
            cx=f"{left(step):.2f}%",
            cy=f"{down(value):.2f}%",
            r="2.6",
            class_="measured",
            data_tip=f"step {step:g}: measured {seconds(value)}",
        )
        for step, value in panel.measured
    ]
    steps = [value for value in marks(first, last, 5) if value == int(value)]
    picture = tag(
        "svg",
        *up_marks((down(value), f"{value:g}") for value in marks(0.0, top, 4)),
        *across_marks((left(value), f"{value:g}") for value in steps),
        _forecast(panel, left, down),
        dots,
        width="100%",
        height="150",
        role="group",
        aria_label=f"{panel.title}: seconds of each step, measured and forecast",
    )
    return tag("div", tag("h3", panel.title), tag("div", picture, class_="plot small"))


def _forecast(
    panel: Series, left: Callable[[float], float], down: Callable[[float], float]
) -> Markup:
    """The forecast and its band, stretched over the plot."""

    def path(steps: Sequence[float], heights: Sequence[float]) -> str:
        points = zip(steps, heights, strict=True)
        return "L".join(f"{number(10 * left(x))} {number(down(y))}" for x, y in points)

    back = path(panel.at[::-1], panel.low[::-1])
    return tag(
        "svg",
        tag("path", d=f"M{path(panel.at, panel.high)}L{back}z", class_="band"),
        tag(
            "path",
            d=f"M{path(panel.at, panel.forecast)}",
            class_="forecast",
            fill="none",
            vector_effect="non-scaling-stroke",
        ),
        viewBox="0 0 1000 100",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
