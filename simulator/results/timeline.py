"""Timelines of `simulator.results.lanes` as matplotlib pictures, reproducible to the byte."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollcast.simulator.core.spans import Run
from rollcast.simulator.results.drawing import (
    AWAY,
    DOWN,
    FAINT,
    HATCH,
    INK,
    ROLLOUT,
    SYNC,
    TAIL,
    TRAIN,
    WIDTH_IN,
    Target,
    hide_frame,
    legend,
    mixed,
    new_figure,
    rgb,
    save,
    shade,
    style,
    time_axis,
)
from rollcast.simulator.results.figures import NAMED
from rollcast.simulator.results.intervals import FloatArray
from rollcast.simulator.results.lanes import STEPS_SHOWN, Timeline, gpu_shares, timeline_of
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.over_time import CAUSES, WAITED_FOR
from rollcast.simulator.results.steady import per_rollout
from rollcast.simulator.results.text import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS = 1400


def draw_run(run: Run, target: Target, title: str | None = None, steps: int | None = None) -> None:
    """Draws one run: a lane per replica, coloured by running rollouts, then trainer and sync; idle
    time is hatched.

    target: a path (png, svg or pdf by its ending), or a binary file for a png. steps: the first
    steps to show; default `STEPS_SHOWN`. Raises ValueError for a run without steps and ``steps``
    below 1.
    """
    shown = _steps_shown([run], steps)
    with style():
        save(_run_figure(run, title or "Where the GPUs' time goes", shown), target)


def draw_comparison(runs: Mapping[str, Run], target: Target, steps: int | None = None) -> None:
    """Draws runs below each other on one time axis, with step time, speed-up, throughput, bubble.

    runs: by policy. target, steps, errors: see `draw_run`; all runs show the same number of steps.
    Raises ValueError for no runs.
    """
    if not runs:
        raise ValueError("there is no run to draw")
    shown = _steps_shown(list(runs.values()), steps)
    with style():
        save(_comparison_figure(runs, shown), target)


def _steps_shown(runs: Sequence[Run], steps: int | None) -> int:
    fewest = min(len(run.steps) for run in runs)
    if fewest == 0:
        raise ValueError("a run without a complete step has nothing to draw")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if any(run.makespan_s <= 0 for run in runs):
        raise ValueError("a run in which no time passed has nothing to draw")
    return min(steps or STEPS_SHOWN, fewest)


def _timeline(run: Run, name: str, summary: Mapping[str, Any], steps: int) -> Timeline:
    shown = timeline_of(run, name, summary, bins=BINS, steps=steps)
    assert shown is not None  # `_steps_shown` has refused such runs
    return shown


# One run


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the picture: one per replica, then ``tall`` each for trainer, sync, environments."""

    replicas: int
    tall: int
    row_in: float
    others: tuple[str, ...]

    @classmethod
    def of(cls, shown: Timeline) -> _Rows:
        replicas = len(shown.lanes)
        row_in = min(0.42, max(0.02, 3.6 / (replicas + 2)))
        others = ("trainer", "sync") if shown.away is None else ("trainer", "sync", "away")
        return cls(replicas, math.ceil(0.15 / row_in), row_in, others)

    @property
    def count(self) -> int:
        return self.replicas + len(self.others) * self.tall

    @property
    def height_in(self) -> float:
        return self.count * self.row_in

    def place(self, name: str) -> slice:
        """Rows of the trainer, sync or environments."""
        first = self.replicas + self.others.index(name) * self.tall
        return slice(first, first + self.tall)


def _run_figure(run: Run, title: str, steps: int) -> Figure:
    summary = summarise(run)
    shown = _timeline(run, title, summary, steps)
    rows = _Rows.of(shown)
    top_in, bottom_in = 1.16, 0.84
    height = top_in + rows.height_in + bottom_in
    figure = new_figure(height)
    axes = figure.add_axes(
        (0.85 / WIDTH_IN, bottom_in / height, 8.2 / WIDTH_IN, rows.height_in / height)
    )
    _paint_lanes(axes, shown, rows)
    _label_lanes(axes, shown, rows)
    time_axis(axes, shown.span_s)
    _name_steps(axes, shown, 0.22 / rows.height_in)
    left = 0.12 / WIDTH_IN
    figure.text(
        left, 1 - 0.24 / height, title, fontsize=12, weight="bold", va="center", parse_math=False
    )
    for line, text in enumerate(_run_caption(summary, shown)):
        figure.text(left, 1 - (0.48 + 0.2 * line) / height, text, color=FAINT, va="center")
    legend(figure, height, shown.most_on_one, shown.most_away, down=bool(run.downs))
    return figure


def _paint_lanes(axes: Axes, shown: Timeline, rows: _Rows) -> None:
    """Draws all lanes as one image over hatched ground; transparent pixels are idle."""
    from matplotlib.patches import Rectangle

    image = np.zeros((rows.count, BINS, 4))
    for row, lane in enumerate(shown.lanes):
        image[row] = mixed(
            (lane.rollout, shade(lane.load)),
            (lane.train, rgb(TRAIN)),
            (lane.sync, rgb(SYNC)),
            (lane.down, rgb(DOWN)),
        )
    training, syncing = (shown.trainer.train, rgb(TRAIN)), (shown.trainer.sync, rgb(SYNC))
    image[rows.place("trainer")] = mixed(training, *([syncing] if shown.apart else []))
    image[rows.place("sync")] = mixed(syncing)
    if shown.away is not None:
        share = np.clip(shown.away / max(1, shown.most_away), 0.0, 1.0)
        image[rows.place("away")] = mixed((share, rgb(AWAY)))
    held = rows.place("trainer").stop if shown.apart else rows.replicas
    span_s = shown.span_s
    axes.add_patch(Rectangle((0, 0), span_s, held, facecolor="white", hatch=HATCH, linewidth=0))
    axes.imshow(
        image, extent=(0, span_s, rows.count, 0), aspect="auto", interpolation="nearest", zorder=2
    )
    gap = 0.08 if rows.row_in >= 0.1 else 0.1
    borders = [*range(rows.replicas + 1), *(rows.place(name).stop for name in rows.others)]
    axes.hlines(borders, 0, span_s, color="white", linewidth=2 * gap * rows.row_in * 72, zorder=3)
    axes.set_xlim(0, span_s)
    axes.set_ylim(rows.count, 0)
    hide_frame(axes)


def _label_lanes(axes: Axes, shown: Timeline, rows: _Rows) -> None:
    """Writes names on the left, idle shares of the whole run on the right."""
    room = rows.replicas - (rows.tall / 2 if rows.tall > 1 else 0)  # for the trainer's name
    named = {
        row + 0.5: lane
        for row, lane in enumerate(shown.lanes)
        if row % rows.tall == 0 and row + 0.5 < room
    }
    middles = {name: (rows.place(name).start + rows.place(name).stop) / 2 for name in rows.others}
    axes.set_yticks(
        [*named, *middles.values()], [*(lane.name for lane in named.values()), *middles]
    )
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    if shown.apart:
        named[middles["trainer"]] = shown.trainer
    for y, lane in named.items():
        beside = axes.get_yaxis_transform()
        axes.text(1.01, y, f"{lane.idle:.0%} idle", transform=beside, va="center", color=FAINT)


def _name_steps(axes: Axes, shown: Timeline, above: float) -> None:
    """Marks ends of steps and names steps that have room. above: height of the marks as a share of
    the axes' height."""
    transform = axes.get_xaxis_transform()
    for step in shown.steps:
        ends = (step.end_s, step.end_s)
        axes.plot(
            ends, (1.0, 1.0 + above), color=INK, linewidth=0.8, clip_on=False, transform=transform
        )
        if step.end_s - step.start_s > 0.05 * shown.span_s:
            axes.text(
                (step.start_s + step.end_s) / 2,
                1.0 + above / 2,
                f"step {step.number}",
                transform=transform,
                ha="center",
                va="center",
                color=FAINT,
                fontsize=8,
            )


def _run_caption(summary: Mapping[str, Any], shown: Timeline) -> tuple[str, str]:
    causes = summary["bubble_by_cause"]
    split = ", ".join(
        f"{WAITED_FOR[c]} ({causes[c]:.1%})" for c in CAUSES if causes.get(c, 0.0) >= 0.0005
    )
    steps = len(shown.steps)
    part = "all" if steps == shown.of_steps else f"first {steps} of"
    first = f"{seconds(shown.step_s)} a step  ·  {part} {shown.of_steps} steps shown"
    idle = f"{shown.bubble:.1%} of GPU time idle"
    if split:
        idle += f", waiting for {split}"
    return first, f"{idle}  ·  {summary['underfilled_fraction']:.0%} of rollout time in the tail"


# Several runs


_ROW_IN, _HEAD_IN, _FOOT_IN = 1.06, 0.78, 0.84
_PLOT_LEFT_IN, _PLOT_WIDTH_IN = 0.5, 5.75
_COLUMNS = {  # right edge in inches, by figure
    "step_s": 6.95,
    "speedup": 7.7,
    "rollout_tokens_per_s": 8.4,
    "bubble_fraction": 9.1,
    "underfilled_fraction": 9.9,
}


def _comparison_figure(runs: Mapping[str, Run], steps: int) -> Figure:
    height = _HEAD_IN + _ROW_IN * len(runs) + _FOOT_IN
    figure = new_figure(height)
    summaries = [summarise(run) for run in runs.values()]
    shown = [
        _timeline(run, name, summary, steps)
        for (name, run), summary in zip(runs.items(), summaries, strict=True)
    ]
    for name, at_in in _COLUMNS.items():
        y, text = 1 - (_HEAD_IN - 0.12) / height, NAMED[name].heading
        figure.text(at_in / WIDTH_IN, y, text, ha="right", va="bottom", color=FAINT, fontsize=8)
    factors = per_rollout([*runs.values()])
    longest_s, most = max(lane.span_s for lane in shown), max(lane.peak for lane in shown)
    for row, (run, timeline, summary) in enumerate(
        zip(runs.values(), shown, summaries, strict=True)
    ):
        top = height - _HEAD_IN - row * _ROW_IN
        area, strip = _comparison_axes(figure, timeline.name, top)
        _paint_running(area, timeline, most)
        _paint_shares(strip, gpu_shares(run, timeline.span_s, BINS), timeline.span_s)
        for axes in (area, strip):
            axes.set_xlim(0, longest_s)
        if row == len(shown) - 1:
            strip.spines["bottom"].set_visible(True)
            time_axis(strip, longest_s)
        step_s = summary["step_s"] * factors[row]
        speedup = shown[0].step_s / step_s if step_s else None
        _write_figures(figure, {**summary, "speedup": speedup}, (top - 0.5) / height)
    heading = f"The first {steps} steps under each policy" if steps > 1 else "The first step"
    figure.text(0.012, 1 - 0.24 / height, heading, fontsize=12, weight="bold", va="center")
    total = max(lane.of_steps for lane in shown)
    if steps < total:
        note = f"Figures are of whole runs, {total} steps."
        figure.text(0.012, 1 - 0.47 / height, note, color=FAINT, va="center")
    legend(figure, height)
    return figure


def _comparison_axes(figure: Figure, name: str, top_in: float) -> tuple[Axes, Axes]:
    """Axes of a run: running rollouts above, GPUs below."""
    width, height = figure.get_size_inches()
    left, wide = _PLOT_LEFT_IN / width, _PLOT_WIDTH_IN / width
    area = figure.add_axes((left, (top_in - 0.66) / height, wide, 0.44 / height))
    strip = figure.add_axes((left, (top_in - 0.90) / height, wide, 0.20 / height))
    figure.text(
        left, (top_in - 0.1) / height, _short(name), weight="bold", va="center", parse_math=False
    )
    for axes in (area, strip):
        hide_frame(axes)
        axes.set_xticks([])
    strip.set_yticks([])
    strip.spines["bottom"].set_visible(False)
    return area, strip


def _middles(span_s: float) -> FloatArray:
    return (np.arange(BINS) + 0.5) * span_s / BINS


def _paint_running(axes: Axes, shown: Timeline, most: int) -> None:
    axes.fill_between(_middles(shown.span_s), shown.running, color=ROLLOUT, linewidth=0)
    axes.set_ylim(0, most * 1.02)
    axes.set_yticks([0, most])
    axes.tick_params(axis="y", labelsize=7, length=2, pad=1.5)
    for step in shown.steps:
        axes.axvline(step.end_s, color=INK, linewidth=0.8)


def _paint_shares(axes: Axes, shares: Mapping[str, FloatArray], span_s: float) -> None:
    """Stacks the GPUs' uses; the rest at the top is idle."""
    x, below = _middles(span_s), np.zeros(BINS)
    colours = {"rollout": ROLLOUT, "tail": TAIL, "train": TRAIN, "sync": SYNC}
    for kind, colour in colours.items():
        above = below + shares[kind]
        axes.fill_between(x, below, above, color=colour, linewidth=0)
        below = above
    idle = below < 0.999
    axes.fill_between(x, below, 1, where=idle, facecolor="white", hatch=HATCH, linewidth=0)
    axes.set_ylim(0, 1)


def _write_figures(figure: Figure, values: Mapping[str, Any], y: float) -> None:
    """Texts of a run's figures, right of its picture."""
    for name, at_in in _COLUMNS.items():
        weight = "bold" if name == "speedup" else "normal"
        text = NAMED[name].text(values)
        figure.text(
            at_in / WIDTH_IN, y, text, ha="right", va="center", fontsize=10.5, weight=weight
        )


def _short(name: str, limit: int = 88) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"
