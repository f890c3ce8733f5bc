"""Small multiples of measured steps and their forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.simulator.report.markup import Markup, number, tag
from rollcast.simulator.report.parts import figure, key
from rollcast.simulator.results.figures import seconds
from rollcast.simulator.results.scale import marks

_WIDE, _HIGH = 1000, 100
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
        return (step - first) / wide

    def path(steps: Sequence[float], heights: Sequence[float]) -> str:
        return "L".join(
            f"{number(_WIDE * left(step))} {number(_HIGH * (1 - value / top))}"
            for step, value in zip(steps, heights, strict=True)
        )

    back = path(panel.at[::-1], panel.low[::-1])
    drawn = tag(
        "svg",
        tag("path", d=f"M{path(panel.at, panel.high)}L{back}z", class_="band"),
        tag(
            "path",
            d=f"M{path(panel.at, panel.forecast)}",
            class_="forecast",
            fill="none",
            vector_effect="non-scaling-stroke",
        ),
        viewBox=f"0 0 {_WIDE} {_HIGH}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    dots = [
        tag(
            "circle",
            cx=f"{100 * left(step):.2f}%",
            cy=f"{100 * (1 - value / top):.2f}%",
            r="2.6",
            class_="measured",
            data_tip=f"step {step:g}: measured {seconds(value)}",
        )
        for step, value in panel.measured
    ]
    grid = [
        part
        for value in marks(0.0, top, 4)
        for part in (
            tag(
                "line",
                x1="0",
                x2="100%",
                y1=f"{100 * (1 - value / top):.2f}%",
                y2=f"{100 * (1 - value / top):.2f}%",
                class_="grid",
            ),
            tag(
                "text",
                f"{value:g}",
                x="-6",
                y=f"{100 * (1 - value / top):.2f}%",
                dy="4",
                text_anchor="end",
            ),
        )
    ]
    steps = [
        tag(
            "text",
            f"{value:g}",
            x=f"{100 * left(value):.2f}%",
            y="100%",
            dy="16",
            text_anchor="middle",
        )
        for value in marks(first, last, 5)
        if value == int(value)
    ]
    picture = tag(
        "svg",
        grid,
        steps,
        drawn,
        dots,
        width="100%",
        height="150",
        role="group",
        aria_label=f"{panel.title}: seconds of each step, measured and forecast",
    )
    return tag("div", tag("h3", panel.title), tag("div", picture, class_="plot small"))
