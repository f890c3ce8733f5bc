"""Plots of pages: a scatter of two costs with its Pareto front, and small multiples of measured
steps and their forecasts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from rollcast.simulator.planner.frontier import on_front
from rollcast.simulator.report.page import Content, Markup, number, tag
from rollcast.simulator.report.parts import figure, key
from rollcast.simulator.results.scale import around, marks
from rollcast.simulator.results.text import seconds

_HEIGHT_PX = 320
_WIDTH_PX = 1000
_LABEL_PX = 15
_LETTER_PX = 6.6
_DOT_PX = 6.0
_LONGEST_LABEL = 44
_SHORT = 18  # letters that a phone has room for
_FEW = 5  # up to so many points are all labelled
_UPON_EACH_OTHER = 1.5  # per cent of the picture


@dataclass(frozen=True, slots=True)
class Point:
    """A choice. x, y: less is better. low, high: ends of x's 90 % interval. tip: tooltip. chosen:
    the page's choice."""

    name: str
    x: float
    y: float
    tip: str
    low: float | None = None
    high: float | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. write: texts of its marks."""

    label: str
    write: Callable[[float], str] = "{:,g}".format


def front(points: Sequence[Point], x: Axis, y: Axis, chosen: str = "the choice") -> Markup:
    """The scatter; empty without points. chosen: the key's text for the chosen point."""
    if not points:
        return Markup()
    ahead = on_front([point.x for point in points], [point.y for point in points])
    best = sorted(np.flatnonzero(ahead).tolist(), key=lambda i: points[i].x)
    wide = [end for p in points for end in (p.x, p.low, p.high) if end is not None]
    across, up = around(wide), around([point.y for point in points])

    def at(point_x: float, point_y: float) -> tuple[float, float]:
        return (
            100 * (point_x - across[0]) / (across[1] - across[0]),
            100 * (up[1] - point_y) / (up[1] - up[0]),
        )

    places = [at(point.x, point.y) for point in points]
    picture = tag(
        "svg",
        _grid(across, up, x, y, at),
        _staircase([places[i] for i in best]),
        [_whisker(p, at) for p in points if p.low is not None and p.high is not None],
        _dots(points, places, set(best)),
        _labels(points, places, set(best)),
        width="100%",
        height=_HEIGHT_PX,
        role="group",
        aria_label=f"{x.label} against {y.label}, {len(points)} choices",
    )
    entries = [("dot-best", "no other is better in both"), ("dot-other", "another is")]
    if any(point.chosen for point in points):
        entries.insert(0, ("dot-chosen", chosen))
    return figure(tag("div", picture, class_="plot"), "", key(entries))


Place = Callable[[float, float], tuple[float, float]]


def _grid(
    across: tuple[float, float], up: tuple[float, float], x: Axis, y: Axis, at: Place
) -> list[Markup]:
    return [
        *up_marks((at(across[0], value)[1], y.write(value)) for value in marks(*up, 5)),
        *across_marks((at(value, up[0])[0], x.write(value)) for value in marks(*across, 5)),
        tag("line", x1="0", x2="100%", y1="100%", y2="100%", class_="grid"),
        tag("text", x.label, x="50%", y="100%", dy="40", text_anchor="middle", class_="axis"),
        tag("text", y.label, x="-8", y="0", dy="-12", class_="axis"),
    ]


def up_marks(values: Iterable[tuple[float, str]]) -> Iterator[Markup]:
    """Grid lines with texts on the left, at per cents from the top."""
    for value, text in values:
        top = _percent(value)
        yield tag("line", x1="0", x2="100%", y1=top, y2=top, class_="grid")
        yield tag("text", text, x="-8", y=top, dy="4", text_anchor="end")


def across_marks(values: Iterable[tuple[float, str]]) -> Iterator[Markup]:
    """Texts below the plot, at per cents from the left."""
    for value, text in values:
        yield tag("text", text, x=_percent(value), y="100%", dy="18", text_anchor="middle")


def _staircase(places: Sequence[tuple[float, float]]) -> list[Markup]:
    """From each point of the front right and down to the next."""
    points = []
    for (left, high), (right, low) in pairwise(places):
        a, b, top, bottom = map(_percent, (left, right, high, low))
        points.append(tag("line", x1=a, x2=b, y1=top, y2=top, class_="front"))
        points.append(tag("line", x1=b, x2=b, y1=top, y2=bottom, class_="front"))
    return points


def _whisker(point: Point, at: Place) -> Markup:
    assert point.low is not None
    assert point.high is not None
    (low, top), (high, _) = at(point.low, point.y), at(point.high, point.y)
    ends = {"x1": _percent(low), "x2": _percent(high), "y1": _percent(top), "y2": _percent(top)}
    return tag("line", **ends, class_="whisker")


def _dots(
    points: Sequence[Point], places: Sequence[tuple[float, float]], best: set[int]
) -> list[Markup]:
    def kind(i: int) -> str:
        return "chosen" if points[i].chosen else "best" if i in best else "other"

    order = sorted(range(len(points)), key=lambda i: (points[i].chosen, places[i]))
    return [
        tag(
            "circle",
            cx=_percent(places[i][0]),
            cy=_percent(places[i][1]),
            r="7" if points[i].chosen else "5.5",
            class_=f"dot {kind(i)}",
            tabindex=0,
            role="img",
            data_tip=points[i].tip,
            aria_label=points[i].tip,
        )
        for i in order
    ]


def _labels(
    points: Sequence[Point], places: Sequence[tuple[float, float]], best: set[int]
) -> list[Markup]:
    """Labels of the chosen point and the front, or of all if few, where they overlap least."""
    few = len(points) <= _FEW
    wanted = best | {i for i, point in enumerate(points) if point.chosen}
    named: list[int] = []
    for i in sorted(range(len(points)) if few else wanted, key=lambda i: not points[i].chosen):
        if not any(math.dist(places[i], places[other]) < _UPON_EACH_OTHER for other in named):
            named.append(i)
    dots = [_Box.around(*_pixels(place), _DOT_PX) for place in places]
    taken: list[_Box] = []
    labels = []
    for i in named:
        name = points[i].name
        name = name if len(name) <= _LONGEST_LABEL else name[: _LONGEST_LABEL - 1] + "…"
        x, y = _pixels(places[i])
        wide = _LETTER_PX * len(name)
        others = [dot for other, dot in enumerate(dots) if other != i] + taken
        boxes = [_Box.of(x, y, wide, side) for side in _SIDES]
        met = [sum(box.meets(other) for other in others) + 3 * box.leaves() for box in boxes]
        best_side = int(np.argmin(met))
        taken.append(boxes[best_side])
        anchor, dx, dy = _SIDES[best_side]
        classes = ["label"] + ["chosen"] * points[i].chosen + ["of-few"] * few
        classes += ["long"] * (len(name) > _SHORT)
        labels.append(
            tag(
                "text",
                name,
                x=_percent(places[i][0]),
                y=_percent(places[i][1]),
                dx=dx,
                dy=dy,
                text_anchor=anchor,
                class_=" ".join(classes),
                aria_hidden="true",
            )
        )
    return labels


_SIDES = (
    ("start", 12, -7),
    ("end", -12, -7),
    ("start", 12, 17),
    ("end", -12, 17),
    ("start", 12, 4),
    ("end", -12, 4),
    ("middle", 0, -13),
    ("middle", 0, 23),
)
"""Where a name may stand beside its dot, the best first: anchor, and its base line from there."""


@dataclass(frozen=True, slots=True)
class _Box:
    """A part of the picture, in pixels of a page of common width."""

    left: float
    right: float
    top: float
    bottom: float

    @classmethod
    def around(cls, x: float, y: float, radius: float) -> _Box:
        return cls(x - radius, x + radius, y - radius, y + radius)

    @classmethod
    def of(cls, x: float, y: float, wide: float, side: tuple[str, float, float]) -> _Box:
        """Of a text beside a dot."""
        anchor, dx, dy = side
        left = x + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
        return cls(left, left + wide, y + dy - 0.75 * _LABEL_PX, y + dy + 0.25 * _LABEL_PX)

    def meets(self, other: _Box) -> bool:
        """Whether the two overlap."""
        apart = self.right < other.left or other.right < self.left
        return not (apart or self.bottom < other.top or other.bottom < self.top)

    def leaves(self) -> bool:
        """Whether a part is outside the picture."""
        return self.left < -50 or self.right > _WIDTH_PX or self.top < -20


def _pixels(place: tuple[float, float]) -> tuple[float, float]:
    return place[0] / 100 * _WIDTH_PX, place[1] / 100 * _HEIGHT_PX


def _percent(value: float) -> str:
    return f"{value:.2f}%"


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
