"""Small multiples: of measured steps and their forecasts, and what others are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rollcast.simulator.report.front import across_marks, up_marks
from rollcast.simulator.report.page import Content, Markup, number, tag
from rollcast.simulator.report.parts import figure, key
from rollcast.simulator.results.scale import marks
from rollcast.simulator.results.text import seconds

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
    box = Box((first, last), (0.0, top))
    dots = [
        tag(
            "circle",
            cx=f"{box.left(step):.2f}%",
            cy=f"{box.down(value):.2f}%",
            r="2.6",
            class_="measured",
            data_tip=f"step {step:g}: measured {seconds(value)}",
        )
        for step, value in panel.measured
    ]
    steps = [value for value in marks(first, last, 5) if value == int(value)]
    return box.panel(
        panel.title,
        f"{panel.title}: seconds of each step, measured and forecast",
        ((value, f"{value:g}") for value in steps),
        ((value, f"{value:g}") for value in marks(0.0, top, 4)),
        [
            box.stretched(
                box.band(panel.at, panel.low, panel.high),
                box.line(panel.at, panel.forecast, "forecast"),
            ),
            dots,
        ],
    )


@dataclass(frozen=True, slots=True)
class Box:
    """A small plot. across, up: ends of its axes."""

    across: tuple[float, float]
    up: tuple[float, float]

    def left(self, x: float) -> float:
        """Per cent from the left."""
        return 100 * (x - self.across[0]) / ((self.across[1] - self.across[0]) or 1.0)

    def down(self, y: float) -> float:
        """Per cent from the top."""
        return 100 * (self.up[1] - y) / ((self.up[1] - self.up[0]) or 1.0)

    def panel(
        self,
        title: str,
        label: str,
        across: Iterable[tuple[float, str]],
        up: Iterable[tuple[float, str]],
        content: Content,
        note: str = "",
    ) -> Markup:
        """The plot below its title. label: for who cannot see it. across, up: marks with texts."""
        picture = tag(
            "svg",
            *up_marks((self.down(value), text) for value, text in up),
            *across_marks((self.left(value), text) for value, text in across),
            content,
            width="100%",
            height="150",
            role="group",
            aria_label=label,
        )
        return tag(
            "div",
            tag("h3", title),
            tag("p", note, class_="about") if note else None,
            tag("div", picture, class_="plot small"),
        )

    def stretched(self, *paths: Markup) -> Markup:
        """Paths of `line` and `band`, stretched over the plot."""
        return tag(
            "svg",
            *paths,
            viewBox="0 0 1000 100",
            preserveAspectRatio="none",
            width="100%",
            height="100%",
        )

    def band(self, at: Sequence[float], low: Sequence[float], high: Sequence[float]) -> Markup:
        """The area between two lines."""
        there, back = self._points(at, high), self._points(at[::-1], low[::-1])
        return tag("path", d=f"M{there}L{back}z", class_="band")

    def line(self, at: Sequence[float], heights: Sequence[float], kind: str) -> Markup:
        """A line of a CSS class."""
        path = f"M{self._points(at, heights)}"
        return tag("path", d=path, class_=kind, fill="none", vector_effect="non-scaling-stroke")

    def _points(self, at: Sequence[float], heights: Sequence[float]) -> str:
        points = zip(at, heights, strict=True)
        return "L".join(f"{number(10 * self.left(x))} {number(self.down(y))}" for x, y in points)
