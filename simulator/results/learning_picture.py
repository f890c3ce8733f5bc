"""Accuracy over time (`simulator.results.curves`) as a matplotlib picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollcast.simulator.results.curves import Curves, Panel, curves_of
from rollcast.simulator.results.drawing import (
    FAINT,
    FEW,
    IDLE,
    INK,
    ROLLOUT,
    TRAIN,
    WIDTH_IN,
    Target,
    hide_frame,
    key_below,
    new_figure,
    save,
    style,
    time_axis,
)
from rollcast.simulator.results.scale import marks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3  # at most
_LEFT_IN, _GAP_IN, _TALL_IN = 0.5, 0.45, 1.7
_HEAD_IN, _ROW_IN, _FOOT_IN = 0.5, 2.6, 0.42


def draw_learning(summaries: Mapping[str, Mapping[str, Any]], target: Target) -> bool:
    """Draws accuracy over hours, a panel for each policy of which the law says something, on the
    same axes; the first policy's is in the others' panels, too. Returns whether there was any.

    summaries: of runs, by policy. target: a path (png, svg or pdf), or a binary file for a png.
    """
    curves = curves_of(summaries)
    if curves is None:
        return False
    with style():
        save(_figure(curves), target)
    return True


def _figure(curves: Curves) -> Figure:
    columns = min(len(curves.panels), _COLUMNS)
    rows = -(-len(curves.panels) // columns)
    wide_in = (WIDTH_IN - 0.15 - _LEFT_IN + _GAP_IN) / columns - _GAP_IN
    letters = int(13 * wide_in)
    height = _HEAD_IN + _ROW_IN * rows + _FOOT_IN
    figure = new_figure(height)
    title = "Accuracy over time"
    figure.text(0.012, 1 - 0.24 / height, title, fontsize=12, weight="bold", va="center")
    for place, panel in enumerate(curves.panels):
        row, column = divmod(place, columns)
        left = _LEFT_IN + column * (wide_in + _GAP_IN)
        bottom = height - _HEAD_IN - row * _ROW_IN - 0.5 - _TALL_IN
        box = (left / WIDTH_IN, bottom / height, wide_in / WIDTH_IN, _TALL_IN / height)
        _paint(figure.add_axes(box), panel, curves)
        for text, up_in, bold in ((panel.title, 0.3, True), (panel.note, 0.1, False)):
            figure.text(
                left / WIDTH_IN,
                (bottom + _TALL_IN + up_in) / height,
                text if len(text) <= letters else f"{text[: letters - 1]}…",
                weight="bold" if bold else "normal",
                color=INK if bold else FAINT,
                va="center",
                parse_math=False,
            )
    _legend(figure, curves, height)
    return figure


def _paint(axes: Axes, panel: Panel, curves: Curves) -> None:
    def seconds(hours: Any) -> list[float]:
        return [3600 * value for value in hours]

    axes.fill_between(seconds(panel.hours), panel.low, panel.high, color=FEW, linewidth=0)
    if curves.target is not None:
        axes.axhline(curves.target, color=TRAIN, linewidth=0.9, linestyle=(0, (4, 3)))
    if panel.base is not None:
        axes.plot(seconds(panel.base[0]), panel.base[1], color=IDLE, linewidth=1.3)
    axes.plot(seconds(panel.hours), panel.accuracy, color=ROLLOUT, linewidth=1.8)
    axes.set_xlim(0, 3600 * curves.hours)
    axes.set_ylim(curves.least, curves.most)
    axes.set_yticks(marks(curves.least, curves.most, 5))
    axes.tick_params(axis="y", length=0)
    hide_frame(axes)
    time_axis(axes, 3600 * curves.hours)


def _legend(figure: Figure, curves: Curves, height_in: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    keys: list[Any] = [
        Line2D([], [], color=ROLLOUT, linewidth=1.8, label="accuracy"),
        Patch(color=FEW, label="90 % interval"),
    ]
    if curves.first:
        keys.append(Line2D([], [], color=IDLE, linewidth=1.3, label=f"{curves.first}"))
    if curves.target is not None:
        label = f"target {curves.target:g}"
        keys.append(Line2D([], [], color=TRAIN, linewidth=0.9, linestyle="--", label=label))
    key_below(figure, keys, 0.06 / height_in)
