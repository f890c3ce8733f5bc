"""Pictures of runs: where the bubble is, and what a policy does to it.

Every picture draws `simulator.results.metrics.gpu_lanes`, the very intervals that the bubble is
computed from. The same run gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from simulator.results.drawing import (
    AWAY,
    BINS,
    FAINT,
    HATCH,
    INK,
    ROLLOUT,
    SYNC,
    TAIL,
    TRAIN,
    WIDTH_IN,
    Target,
    bin_edges,
    covered,
    legend,
    mean_running,
    mixed,
    rgb,
    save,
    shade,
    style,
    time_axis,
)
from simulator.results.metrics import (
    CAUSES,
    FloatArray,
    GpuLane,
    away_over_time,
    gpu_lanes,
    intersection,
    running_over_time,
    summarise,
    total_s,
    underfilled_intervals,
)
from simulator.spans import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TIMES = "\N{MULTIPLICATION SIGN}"

STEPS_SHOWN = 4  # where the caller does not say


def draw_run(run: Run, target: Target, title: str | None = None, steps: int | None = None) -> None:
    """Draws one run: a lane a replica, in which colour says how many rollouts run, then trainer and
    sync; white hatched is idle.

    target: a path, whose ending says the format (png, svg, pdf), or a binary file for a png. steps:
    how many of the first steps to show, `STEPS_SHOWN` if None. Raises ValueError for a run without
    steps, or ``steps`` below 1.
    """
    shown = _steps_shown([run], steps)
    with style():
        save(_run_figure(run, title, shown), target)


def draw_comparison(runs: Mapping[str, Run], target: Target, steps: int | None = None) -> None:
    """Draws runs below each other on one time axis, with their step time, speed-up against the
    first, throughput and bubble.

    runs: by the name of their policy. target and steps: as in `draw_run`; every run shows the same
    number of steps, so that a faster one ends further to the left. Raises ValueError as there, and
    for no runs.
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


def _end_s(run: Run, steps: int) -> float:
    return max(record.end_s for record in run.steps[:steps])


# One run


def _run_figure(run: Run, title: str | None, steps: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = gpu_lanes(run)
    layout = _Rows.of(run)
    top_in, bottom_in = 1.16, 0.84
    height = top_in + layout.height_in + bottom_in
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes(
        (0.85 / WIDTH_IN, bottom_in / height, 8.2 / WIDTH_IN, layout.height_in / height)
    )
    end_s = _end_s(run, steps)
    peak = _paint_lanes(axes, run, lanes, layout, end_s)
    _label_lanes(axes, run, lanes, layout)
    time_axis(axes, end_s - run.start_s)
    _name_steps(axes, run, steps, 0.22 / layout.height_in)
    left = 0.12 / WIDTH_IN
    heading = title or "Where the GPUs' time goes"
    figure.text(
        left, 1 - 0.24 / height, heading, fontsize=12, weight="bold", va="center", parse_math=False
    )
    for line, text in enumerate(_run_caption(run, steps)):
        figure.text(left, 1 - (0.48 + 0.2 * line) / height, text, color=FAINT, va="center")
    legend(figure, height, peak, int(away_over_time(run)[1].max()) if len(run.calls) else 0)
    return figure


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of the picture of one run: one a replica, then ``tall`` each for trainer and sync, which
    is as many as a line of text needs, and for environments where there are any."""

    replicas: int
    tall: int
    row_in: float
    away: bool

    @classmethod
    def of(cls, run: Run) -> _Rows:
        row_in = min(0.42, max(0.02, 3.6 / (run.shape.replicas + 2)))
        return cls(run.shape.replicas, math.ceil(0.15 / row_in), row_in, len(run.calls) > 0)

    @property
    def count(self) -> int:
        return self.replicas + (3 if self.away else 2) * self.tall

    @property
    def height_in(self) -> float:
        return self.count * self.row_in

    @property
    def trainer(self) -> slice:
        return slice(self.replicas, self.replicas + self.tall)

    @property
    def sync(self) -> slice:
        return slice(self.replicas + self.tall, self.replicas + 2 * self.tall)

    @property
    def environments(self) -> slice:
        return slice(self.sync.stop, self.count)


def _paint_lanes(
    axes: Axes, run: Run, lanes: Sequence[GpuLane], layout: _Rows, end_s: float
) -> int:
    """One image of all lanes over hatched ground: what it leaves clear is idle. Returns the most
    rollouts that a replica runs at once, which have the darkest colour."""
    from matplotlib.patches import Rectangle

    edges, replicas = bin_edges(run, end_s), run.shape.replicas
    span_s = end_s - run.start_s
    running = [running_over_time(run, replica) for replica in range(replicas)]
    peak = max(int(counts[times < end_s].max(initial=0)) for times, counts in running)
    image = np.zeros((layout.count, BINS, 4))
    by_replica: dict[int, GpuLane] = {}
    for lane in lanes:
        by_replica.setdefault(lane.replica, lane)
    for replica in range(replicas):
        busy = by_replica[replica].busy
        level = mean_running(running[replica], edges) / max(1, peak)
        image[replica] = mixed(
            (covered(busy["rollout"], edges), shade(level)),
            (covered(busy["train"], edges), rgb(TRAIN)),
            (covered(busy["sync"], edges), rgb(SYNC)),
        )
    own = by_replica.get(-1, lanes[0])  # with no GPUs of its own it is on replica 0's
    training = (covered(own.busy["train"], edges), rgb(TRAIN))
    syncing = (covered(own.busy["sync"], edges), rgb(SYNC))
    image[layout.trainer] = mixed(training, syncing) if -1 in by_replica else mixed(training)
    image[layout.sync] = mixed(syncing)
    if layout.away:
        away = away_over_time(run)
        most = max(1, int(away[1].max(initial=0)))
        share = np.clip(mean_running(away, edges) / most, 0.0, 1.0)
        image[layout.environments] = mixed((share, rgb(AWAY)))
    grounds = layout.trainer.stop if -1 in by_replica else replicas
    axes.add_patch(Rectangle((0, 0), span_s, grounds, facecolor="white", hatch=HATCH, linewidth=0))
    axes.imshow(
        image, extent=(0, span_s, layout.count, 0), aspect="auto", interpolation="nearest", zorder=2
    )
    gap = 0.08 if layout.row_in >= 0.1 else 0.1
    borders = [*range(replicas + 1), layout.trainer.stop, layout.sync.stop, layout.count]
    axes.hlines(borders, 0, span_s, color="white", linewidth=2 * gap * layout.row_in * 72, zorder=3)
    axes.set_xlim(0, span_s)
    axes.set_ylim(layout.count, 0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    return peak


def _label_lanes(axes: Axes, run: Run, lanes: Sequence[GpuLane], layout: _Rows) -> None:
    """Names on the left, idle shares of the whole run on the right."""
    named = range(0, layout.replicas, layout.tall)
    rows = {replica + 0.5: (f"replica {replica}", replica) for replica in named}
    if layout.tall > 1:  # room for the trainer's name
        rows = {y: row for y, row in rows.items() if y < layout.replicas - layout.tall / 2}
    middle = layout.tall / 2
    rows[layout.trainer.start + middle] = ("trainer", -1)
    others = {"sync": layout.sync}
    if layout.away:
        others["away"] = layout.environments
    axes.set_yticks(
        [*rows, *(place.start + middle for place in others.values())],
        [*(name for name, _ in rows.values()), *others],
    )
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    for y, (_, number) in rows.items():
        own = [lane for lane in lanes if lane.replica == number]
        held_s = run.makespan_s * sum(lane.gpus for lane in own)
        if held_s:
            idle_s = sum(lane.gpus * total_s(idle) for lane in own for idle in lane.idle.values())
            text = f"{idle_s / held_s:.0%} idle"
            beside = axes.get_yaxis_transform()
            axes.text(1.01, y, text, transform=beside, va="center", color=FAINT)


def _name_steps(axes: Axes, run: Run, steps: int, above: float) -> None:
    """Marks where steps end, and names each where there is room; above: height of the marks as a
    share of the axes'."""
    transform = axes.get_xaxis_transform()
    begin_s, whole_s = run.start_s, _end_s(run, steps) - run.start_s
    for record in run.steps[:steps]:
        x = record.end_s - run.start_s
        mark = (1.0, 1.0 + above)
        axes.plot((x, x), mark, color=INK, linewidth=0.8, clip_on=False, transform=transform)
        if record.end_s - begin_s > 0.05 * whole_s:
            axes.text(
                (begin_s + record.end_s) / 2 - run.start_s,
                1.0 + above / 2,
                f"step {record.step}",
                transform=transform,
                ha="center",
                va="center",
                color=FAINT,
                fontsize=8,
            )
        begin_s = record.end_s


def _run_caption(run: Run, steps: int) -> tuple[str, str]:
    metrics = summarise(run)
    causes = metrics["bubble_by_cause"]
    words = {
        "environment": "environments",
        "stragglers": "stragglers",
        "trainer": "the trainer",
        "rollouts": "rollouts",
        "other": "nothing",
    }
    split = ", ".join(
        f"{words[c]} ({causes[c]:.1%})" for c in CAUSES if causes.get(c, 0.0) >= 0.0005
    )
    shown = "all" if steps == len(run.steps) else f"first {steps} of"
    first = f"{_seconds(metrics['step_s'])} a step  ·  {shown} {len(run.steps)} steps shown"
    idle = f"{metrics['bubble_fraction']:.1%} of GPU time idle"
    if split:
        idle += f", waiting for {split}"
    tail = f"{metrics['underfilled_fraction']:.0%} of rollout time in the tail"
    return first, f"{idle}  ·  {tail}"


# Several runs


_ROW_IN, _HEAD_IN, _FOOT_IN = 1.06, 0.78, 0.84
_PLOT_LEFT_IN, _PLOT_WIDTH_IN = 0.5, 5.75
_COLUMNS = (  # right edge in inches, heading
    (6.95, "step time"),
    (7.7, "speed-up"),
    (8.4, "rollout\ntokens/s"),
    (9.1, "GPU time\nidle"),
    (9.9, "rollout time\nin tail"),
)


def _comparison_figure(runs: Mapping[str, Run], steps: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _HEAD_IN + _ROW_IN * len(runs) + _FOOT_IN
    figure = Figure(figsize=(WIDTH_IN, height))
    FigureCanvasAgg(figure)
    spans = {name: _end_s(run, steps) - run.start_s for name, run in runs.items()}
    longest_s = max(spans.values())
    first_step_s: float | None = None
    for at_in, text in _COLUMNS:
        y = 1 - (_HEAD_IN - 0.12) / height
        figure.text(at_in / WIDTH_IN, y, text, ha="right", va="bottom", color=FAINT, fontsize=8)
    most = max(int(running_over_time(run)[1].max()) for run in runs.values())
    for row, (name, run) in enumerate(runs.items()):
        top = height - _HEAD_IN - row * _ROW_IN
        last = row == len(runs) - 1
        _comparison_row(figure, name, run, steps, top, longest_s, most, last)
        metrics = summarise(run)
        if first_step_s is None:
            first_step_s = metrics["step_s"]
        _figures_of(figure, metrics, first_step_s, (top - 0.5) / height)
    total = max(len(run.steps) for run in runs.values())
    heading = f"The first {steps} steps under each policy" if steps > 1 else "The first step"
    figure.text(0.012, 1 - 0.24 / height, heading, fontsize=12, weight="bold", va="center")
    if steps < total:
        note = f"Figures are of whole runs, {total} steps."
        figure.text(0.012, 1 - 0.47 / height, note, color=FAINT, va="center")
    legend(figure, height)
    return figure


def _comparison_row(
    figure: Figure,
    name: str,
    run: Run,
    steps: int,
    top_in: float,
    longest_s: float,
    most: int,
    last: bool,
) -> None:
    """Running rollouts as an area, and below it a strip of what the GPUs do."""
    width, height = figure.get_size_inches()
    left, wide = _PLOT_LEFT_IN / width, _PLOT_WIDTH_IN / width
    area = figure.add_axes((left, (top_in - 0.66) / height, wide, 0.44 / height))
    strip = figure.add_axes((left, (top_in - 0.90) / height, wide, 0.20 / height))
    figure.text(
        left, (top_in - 0.1) / height, _short(name), weight="bold", va="center", parse_math=False
    )
    end_s = _end_s(run, steps)
    edges = bin_edges(run, end_s)
    x = (edges[:-1] + edges[1:]) / 2 - run.start_s
    area.fill_between(x, mean_running(running_over_time(run), edges), color=ROLLOUT, linewidth=0)
    area.set_ylim(0, most * 1.02)
    area.set_yticks([0, most])
    area.tick_params(axis="y", labelsize=7, length=2, pad=1.5)
    for record in run.steps[:steps]:
        area.axvline(record.end_s - run.start_s, color=INK, linewidth=0.8)
    _paint_strip(strip, run, edges)
    for axes in (area, strip):
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlim(0, longest_s)
        axes.set_xticks([])
    strip.set_yticks([])
    strip.spines["bottom"].set_visible(last)
    if last:
        time_axis(strip, longest_s)


def _paint_strip(axes: Axes, run: Run, edges: FloatArray) -> None:
    """The GPUs as a stack: rollouts, their tail, training, sync; what is left at the top is
    idle."""
    x = (edges[:-1] + edges[1:]) / 2 - run.start_s
    shares = {kind: np.zeros(BINS) for kind in ("rollout", "tail", "train", "sync")}
    underfilled = underfilled_intervals(run)
    for lane in gpu_lanes(run):
        weight = lane.gpus / run.shape.gpus
        for kind, intervals in lane.busy.items():
            shares[kind] += weight * covered(intervals, edges)
        if lane.replica >= 0:
            few = intersection(lane.busy["rollout"], underfilled[lane.replica])
            tail = weight * covered(few, edges)
            shares["rollout"] -= tail
            shares["tail"] += tail
    below = np.zeros(BINS)
    colours = {"rollout": ROLLOUT, "tail": TAIL, "train": TRAIN, "sync": SYNC}
    for kind, colour in colours.items():
        above = below + shares[kind]
        axes.fill_between(x, below, above, color=colour, linewidth=0)
        below = above
    idle = below < 0.999
    axes.fill_between(x, below, 1, where=idle, facecolor="white", hatch=HATCH, linewidth=0)
    axes.set_ylim(0, 1)


def _figures_of(
    figure: Figure, metrics: Mapping[str, Any], first_step_s: float | None, y: float
) -> None:
    """A run's row of figures, right of its picture."""
    step_s = metrics["step_s"]
    speed_up = first_step_s / step_s if first_step_s and step_s else None
    values = (
        _seconds(step_s),
        "-" if speed_up is None else f"{speed_up:.2f}{_TIMES}",
        _thousands(metrics["rollout_tokens_per_s"]),
        f"{metrics['bubble_fraction']:.1%}",
        f"{metrics['underfilled_fraction']:.0%}",
    )
    for (at_in, _), value in zip(_COLUMNS, values, strict=True):
        weight = "bold" if value.endswith(_TIMES) else "normal"
        figure.text(
            at_in / WIDTH_IN, y, value, ha="right", va="center", fontsize=10.5, weight=weight
        )


def _short(name: str, limit: int = 88) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _thousands(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
