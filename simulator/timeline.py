"""Pictures of runs: where the bubble is, and what a policy does to it.

Every picture draws `simulator.metrics.gpu_lanes`, the very intervals that the bubble is computed
from. Colours are of Okabe and Ito's palette for colour-blind readers; idle GPUs are white, hatched.
The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from simulator.metrics import CAUSES, GpuLane, gpu_lanes, running_over_time, summarise, total_s
from simulator.spans import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]
Target = str | PathLike[str] | IO[bytes]

STEPS_SHOWN = 4  # where the caller does not say
_BINS = 1400
_DPI = 160
_WIDTH_IN = 10.0
_ROLLOUT, _TRAIN, _SYNC, _IDLE = "#0072B2", "#E69F00", "#009E73", "#9A9A9A"
_FEW, _MANY = "#CFE3F2", "#00466F"  # running rollouts, from one to the most
_INK, _FAINT = "#222222", "#6B6B6B"
_HATCH = "//////"
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.edgecolor": _IDLE,
    "axes.linewidth": 0.6,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "text.color": _INK,
    "axes.labelcolor": _FAINT,
    "hatch.color": "#B4B4B4",
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "rollcast",
}
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def draw_run(run: Run, target: Target, title: str | None = None, steps: int | None = None) -> None:
    """Draws one run: a lane a replica, in which colour says how many rollouts run, then trainer and
    sync; white hatched is idle.

    target: a path, whose ending says the format (png, svg, pdf), or a binary file for a png. steps:
    how many of the first steps to show, `STEPS_SHOWN` if None. Raises ValueError for a run without
    steps, or ``steps`` below 1.
    """
    import matplotlib

    shown = _steps_shown([run], steps)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        _save(_run_figure(run, title, shown), target)


def draw_comparison(runs: Mapping[str, Run], target: Target, steps: int | None = None) -> None:
    """Draws runs below each other on one time axis, with their step time, speed-up against the
    first, throughput and bubble.

    runs: by the name of their policy. target and steps: as in `draw_run`; every run shows the same
    number of steps, so that a faster one ends further to the left. Raises ValueError as there, and
    for no runs.
    """
    import matplotlib

    if not runs:
        raise ValueError("there is no run to draw")
    shown = _steps_shown(list(runs.values()), steps)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        _save(_comparison_figure(runs, shown), target)


def _steps_shown(runs: Sequence[Run], steps: int | None) -> int:
    fewest = min(len(run.steps) for run in runs)
    if fewest == 0:
        raise ValueError("a run without a complete step has nothing to draw")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return min(steps or STEPS_SHOWN, fewest)


def _save(figure: Figure, target: Target) -> None:
    kind = "png"
    if isinstance(target, str | PathLike):
        kind = fspath(target).rpartition(".")[2].lower()
    figure.savefig(target, format=kind, dpi=_DPI, metadata=_METADATA.get(kind))


# From intervals to bins


def _covered(intervals: FloatArray, edges: FloatArray) -> FloatArray:
    """Share of each bin that the intervals cover; edges: shape (bins + 1,)."""
    if not len(intervals):
        return np.zeros(len(edges) - 1)
    lengths = intervals[:, 1] - intervals[:, 0]
    before = np.concatenate(([0.0], np.cumsum(lengths)))
    levels = np.column_stack((before[:-1], before[1:])).ravel()
    share = np.diff(np.interp(edges, intervals.ravel(), levels)) / np.diff(edges)
    return np.asarray(np.clip(share, 0.0, 1.0))


def _mean_running(run: Run, replica: int | None, edges: FloatArray) -> FloatArray:
    """Mean number of running rollouts in each bin."""
    times, counts = running_over_time(run, replica)
    area = np.concatenate(([0.0], np.cumsum(np.diff(times) * counts[:-1])))
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.diff(edges))


def _edges(run: Run, end_s: float) -> FloatArray:
    return np.linspace(run.start_s, end_s, _BINS + 1)


def _end_s(run: Run, steps: int) -> float:
    return max(record.end_s for record in run.steps[:steps])


# One run


def _run_figure(run: Run, title: str | None, steps: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lanes = gpu_lanes(run)
    rows = run.shape.replicas + 2
    lane_in = min(0.34, max(0.05, 4.2 / rows))
    top_in, bottom_in = 0.92, 1.02
    height = top_in + rows * lane_in + bottom_in
    figure = Figure(figsize=(_WIDTH_IN, height))
    FigureCanvasAgg(figure)
    axes = figure.add_axes(
        (0.85 / _WIDTH_IN, bottom_in / height, 8.2 / _WIDTH_IN, rows * lane_in / height)
    )
    end_s = _end_s(run, steps)
    _paint_lanes(axes, run, lanes, end_s)
    _label_lanes(axes, run, lanes, lane_in)
    unit_s = _time_axis(axes, end_s - run.start_s)
    for record in run.steps[:steps]:
        x = record.end_s - run.start_s
        axes.axvline(x, color=_INK, linewidth=0.8)
    _name_steps(axes, run, steps, unit_s)
    metrics = summarise(run)
    left = 0.12 / _WIDTH_IN
    heading = title or "Where the GPUs' time goes"
    figure.text(
        left, 1 - 0.24 / height, heading, fontsize=12, weight="bold", va="center", parse_math=False
    )
    figure.text(
        left, 1 - 0.49 / height, _run_caption(run, metrics, steps), color=_FAINT, va="center"
    )
    _legend(figure, height, peak=_peak(run, end_s))
    return figure


def _peak(run: Run, end_s: float) -> int:
    """The most rollouts that any replica runs at once in the part shown."""
    peaks = []
    for replica in range(run.shape.replicas):
        times, counts = running_over_time(run, replica)
        peaks.append(int(counts[times < end_s].max(initial=0)))
    return max(peaks)


def _paint_lanes(axes: Axes, run: Run, lanes: Sequence[GpuLane], end_s: float) -> None:
    """One image of all lanes over hatched ground: what it leaves clear is idle."""
    from matplotlib.patches import Rectangle

    edges, replicas = _edges(run, end_s), run.shape.replicas
    span_s, peak = end_s - run.start_s, max(1, _peak(run, end_s))
    image = np.zeros((replicas + 2, _BINS, 4))
    by_replica: dict[int, GpuLane] = {}
    for lane in lanes:
        by_replica.setdefault(lane.replica, lane)
    train, sync = lanes[0].busy["train"], lanes[0].busy["sync"]
    for replica in range(replicas):
        busy = by_replica[replica].busy
        running = _mean_running(run, replica, edges)
        image[replica] = _mixed(
            (_covered(busy["rollout"], edges), _shade(running / peak)),
            (_covered(busy["train"], edges), _rgb(_TRAIN)),
            (_covered(busy["sync"], edges), _rgb(_SYNC)),
        )
    if -1 in by_replica:
        train = by_replica[-1].busy["train"]
    image[replicas] = _mixed((_covered(train, edges), _rgb(_TRAIN)))
    image[replicas + 1] = _mixed((_covered(sync, edges), _rgb(_SYNC)))
    gap = 0.08
    for row in range(replicas + (1 if -1 in by_replica else 0)):
        ground = Rectangle(
            (0, row + gap), span_s, 1 - 2 * gap, facecolor="white", hatch=_HATCH, linewidth=0
        )
        axes.add_patch(ground)
    axes.imshow(
        image, extent=(0, span_s, replicas + 2, 0), aspect="auto", interpolation="nearest", zorder=2
    )
    for row in range(replicas + 3):
        axes.axhspan(row - gap, row + gap, color="white", linewidth=0, zorder=3)
    axes.set_xlim(0, span_s)
    axes.set_ylim(replicas + 2, 0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _mixed(*parts: tuple[FloatArray, FloatArray]) -> FloatArray:
    """RGBA of bins that are partly this and partly that: (share of the bin, colour) each."""
    cover = sum((share for share, _ in parts), np.zeros(_BINS))
    colour = sum((share[:, None] * rgb for share, rgb in parts), np.zeros((_BINS, 3)))
    pixels = np.zeros((_BINS, 4))
    some = cover > 0
    pixels[some, :3] = colour[some] / cover[some, None]
    pixels[:, 3] = np.clip(cover, 0.0, 1.0)
    return pixels


def _rgb(colour: str) -> FloatArray:
    return np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])


def _shade(level: FloatArray) -> FloatArray:
    """Colours from few to many running rollouts, by way of the palette's blue; shape (n, 3)."""
    stops = np.array([_rgb(_FEW), _rgb(_ROLLOUT), _rgb(_MANY)])
    at = np.clip(level, 0.0, 1.0)
    return np.column_stack([np.interp(at, (0.0, 0.6, 1.0), stops[:, c]) for c in range(3)])


def _label_lanes(axes: Axes, run: Run, lanes: Sequence[GpuLane], lane_in: float) -> None:
    replicas = run.shape.replicas
    every = max(1, int(np.ceil(0.16 / lane_in)))
    names = {row: f"replica {row}" for row in range(0, replicas, every)}
    if every > 1:  # the last two names would run into the trainer's
        names = {row: name for row, name in names.items() if row <= replicas - every}
    tracks = {replicas: "trainer", replicas + 1: "sync"} if lane_in > 0.13 else {}
    rows = {**names, **tracks}
    axes.set_yticks([row + 0.5 for row in rows], list(rows.values()), color=_INK)
    axes.tick_params(axis="y", length=0)
    held_s = run.makespan_s
    for row in names:
        own = [lane for lane in lanes if lane.replica == row]
        idle_s = sum(lane.gpus * _idle_s(lane) for lane in own)
        share = idle_s / (held_s * sum(lane.gpus for lane in own)) if held_s else 0.0
        _beside(axes, row, f"{share:.0%} idle")
    alone = [lane for lane in lanes if lane.replica < 0]
    if alone and tracks and held_s:
        _beside(axes, replicas, f"{_idle_s(alone[0]) / held_s:.0%} idle")


def _beside(axes: Axes, row: int, text: str) -> None:
    axes.text(
        1.01, row + 0.5, text, transform=axes.get_yaxis_transform(), va="center", color=_FAINT
    )


def _idle_s(lane: GpuLane) -> float:
    return sum(total_s(intervals) for intervals in lane.idle.values())


def _name_steps(axes: Axes, run: Run, steps: int, unit_s: float) -> None:
    """Names each step above its stretch, where there is room for the name."""
    del unit_s
    begin = run.start_s
    whole = _end_s(run, steps) - run.start_s
    for record in run.steps[:steps]:
        width = record.end_s - begin
        middle = (begin + record.end_s) / 2 - run.start_s
        if width > 0.05 * whole:
            axes.text(
                middle,
                -0.12,
                f"step {record.step}",
                ha="center",
                va="bottom",
                color=_FAINT,
                fontsize=8,
            )
        begin = record.end_s


def _run_caption(run: Run, metrics: Mapping[str, Any], steps: int) -> str:
    causes = metrics["bubble_by_cause"]
    words = {
        "stragglers": "waiting for stragglers",
        "trainer": "waiting for the trainer",
        "rollouts": "trainer waiting for rollouts",
        "other": "nothing under way",
    }
    split = ", ".join(f"{causes[c]:.1%} {words[c]}" for c in CAUSES if causes[c] >= 0.0005)
    parts = [f"{_seconds(metrics['step_s'])} a step", f"{metrics['bubble_fraction']:.1%} idle"]
    if split:
        parts[-1] += f" ({split})"
    if steps < len(run.steps):
        parts.append(f"first {steps} of {len(run.steps)} steps shown, figures of the whole run")
    return "  ·  ".join(parts)


# Several runs


_ROW_IN, _HEAD_IN, _FOOT_IN = 1.06, 0.78, 1.02
_PLOT_LEFT_IN, _PLOT_WIDTH_IN = 0.5, 6.3
_COLUMNS = (
    (7.55, "step time"),
    (8.2, "speed-up"),
    (9.1, "rollout\ntokens/s"),
    (9.85, "GPU time\nidle"),
)


def _comparison_figure(runs: Mapping[str, Run], steps: int) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = _HEAD_IN + _ROW_IN * len(runs) + _FOOT_IN
    figure = Figure(figsize=(_WIDTH_IN, height))
    FigureCanvasAgg(figure)
    spans = {name: _end_s(run, steps) - run.start_s for name, run in runs.items()}
    longest_s = max(spans.values())
    first_step_s: float | None = None
    for at_in, text in _COLUMNS:
        y = 1 - (_HEAD_IN - 0.12) / height
        figure.text(
            at_in / _WIDTH_IN, y, text, ha="right", va="bottom", color=_FAINT, linespacing=1.0
        )
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
    heading = f"The same {steps} steps under each policy" if steps > 1 else "One step"
    figure.text(0.012, 1 - 0.24 / height, heading, fontsize=12, weight="bold", va="center")
    if steps < total:
        note = f"The first {steps} of {total} steps; figures are of whole runs."
        figure.text(0.012, 1 - 0.47 / height, note, color=_FAINT, va="center")
    _legend(figure, height)
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
    edges = _edges(run, end_s)
    x = (edges[:-1] + edges[1:]) / 2 - run.start_s
    area.fill_between(x, _mean_running(run, None, edges), color=_ROLLOUT, linewidth=0)
    area.set_ylim(0, most * 1.02)
    area.set_yticks([0, most])
    area.tick_params(axis="y", labelsize=7, length=2, pad=1.5)
    _paint_strip(strip, run, edges)
    for axes in (area, strip):
        for record in run.steps[:steps]:
            axes.axvline(record.end_s - run.start_s, color=_INK, linewidth=0.8)
        for side in ("top", "right", "left"):
            axes.spines[side].set_visible(False)
        axes.set_xlim(0, longest_s)
        axes.set_xticks([])
    strip.set_yticks([])
    strip.spines["bottom"].set_visible(last)
    if last:
        _time_axis(strip, longest_s)


def _paint_strip(axes: Axes, run: Run, edges: FloatArray) -> None:
    """The GPUs as a stack: rollouts, training, sync; what is left to the top is idle."""
    from matplotlib.patches import Rectangle

    span_s = edges[-1] - edges[0]
    ground = Rectangle((0, 0), span_s, 1, facecolor="white", hatch=_HATCH, linewidth=0)
    axes.add_patch(ground)
    x = (edges[:-1] + edges[1:]) / 2 - run.start_s
    below = np.zeros(_BINS)
    lanes = gpu_lanes(run)
    for kind, colour in (("rollout", _ROLLOUT), ("train", _TRAIN), ("sync", _SYNC)):
        share = sum(
            (lane.gpus * _covered(lane.busy[kind], edges) for lane in lanes), np.zeros(_BINS)
        )
        above = below + share / run.shape.gpus
        axes.fill_between(x, below, above, color=colour, linewidth=0)
        below = above
    axes.set_ylim(0, 1)


def _figures_of(
    figure: Figure, metrics: Mapping[str, Any], first_step_s: float | None, y: float
) -> None:
    """A run's row of figures, right of its picture."""
    step_s = metrics["step_s"]
    speed_up = first_step_s / step_s if first_step_s and step_s else None
    values = (
        _seconds(step_s),
        "-" if speed_up is None else f"{speed_up:.2f}x",
        _thousands(metrics["rollout_tokens_per_s"]),
        f"{metrics['bubble_fraction']:.1%}",
    )
    for (at_in, _), value in zip(_COLUMNS, values, strict=True):
        weight = "bold" if value.endswith("x") else "normal"
        figure.text(
            at_in / _WIDTH_IN, y, value, ha="right", va="center", fontsize=10.5, weight=weight
        )


# What both share


def _time_axis(axes: Axes, span_s: float) -> float:
    """Ticks and a label in seconds, minutes or hours; returns the unit in seconds."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    unit_s, name = (1.0, "seconds") if span_s < 300 else (60.0, "minutes")
    if span_s >= 4 * 3600:
        unit_s, name = 3600.0, "hours"
    ticks = [t * unit_s for t in MaxNLocator(8, steps=[1, 2, 5, 10]).tick_values(0, span_s / unit_s)]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if 0 <= tick <= span_s]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / unit_s:g}"))
    axes.set_xlabel(name, labelpad=2)
    return unit_s


def _legend(figure: Figure, height_in: float, peak: int | None = None) -> None:
    """A line of keys below the time axis, outside the data."""
    from matplotlib.patches import Patch

    if peak is None:
        keys = [Patch(color=_ROLLOUT, label="rollouts")]
    else:
        keys = [
            Patch(color=_FEW, label="1 rollout running"),
            Patch(color=_MANY, label=f"{peak} running"),
        ]
    keys += [Patch(color=_TRAIN, label="training"), Patch(color=_SYNC, label="weight sync")]
    keys.append(Patch(facecolor="white", edgecolor="#B4B4B4", hatch=_HATCH, label="idle GPUs"))
    figure.legend(
        handles=keys,
        loc="lower left",
        bbox_to_anchor=(0.012, 0.1 / height_in),
        ncols=len(keys),
        frameon=False,
        handlelength=1.6,
        columnspacing=1.6,
        borderaxespad=0.0,
        borderpad=0.0,
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
