"""Where the GPUs' time goes, step by step: a run summed up into bins, and those as a picture.

What is drawn is `simulator.results.metrics.gpu_lanes`, as in `simulator.results.timeline`; however
long a run is, the picture has `BINS` columns and at most `MOST_LANES` rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from simulator.report.markup import Markup, joined, number, tag
from simulator.report.parts import figure, key
from simulator.report.scale import marks, time_unit
from simulator.results.drawing import bin_edges, covered, mean_running
from simulator.results.figures import seconds, share
from simulator.results.metrics import FloatArray, GpuLane, gpu_lanes, running_over_time
from simulator.spans import Run

BINS = 480
MOST_LANES = 16
STEPS_SHOWN = 4
_IDLE, _TRAIN, _SYNC = ".", "t", "s"
_LOADS = ("few", "some", "middle", "many", "most")
_KINDS = {**{str(i): kind for i, kind in enumerate(_LOADS)}, _TRAIN: "train", _SYNC: "sync"}


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a timeline. Times are from the run's start."""

    number: int
    start_s: float
    end_s: float
    tip: str


@dataclass(frozen=True, slots=True)
class Lane:
    """What some GPUs do, a letter a bin: a digit is rollouts, 0 few to 4 most, t training, s sync,
    a dot nothing."""

    name: str
    states: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The first steps of a run. running: rollouts at once, by bin. of_steps: how many there are."""

    name: str
    span_s: float
    running: tuple[float, ...]
    peak: int
    lanes: tuple[Lane, ...]
    steps: tuple[Step, ...]
    of_steps: int
    step_s: float
    idle: float


def timeline_of(
    run: Run, name: str, step_s: float, idle: float, steps: int = STEPS_SHOWN
) -> Timeline | None:
    """The timeline of a run's first ``steps``; None for a run in which nothing happened.

    step_s, idle: its mean step time and the share of GPU time idle, to be said beside it.
    """
    shown = run.steps[:steps]
    if not shown or run.makespan_s <= 0:
        return None
    end_s = max(record.end_s for record in shown)
    edges = bin_edges(run, end_s, BINS)
    counted = running_over_time(run)
    times, counts = counted
    return Timeline(
        name,
        end_s - run.start_s,
        tuple(np.round(mean_running(counted, edges), 1).tolist()),
        int(counts[times < end_s].max(initial=0)),
        tuple(_lanes(run, edges)),
        tuple(_steps(run, steps)),
        len(run.steps),
        step_s,
        idle,
    )


def _steps(run: Run, steps: int) -> Iterator[Step]:
    begin_s = run.start_s
    for record in run.steps[:steps]:
        phases = (("rollout", record.rollout_s), ("training", record.train_s),
                  ("weight sync", record.sync_s), ("switch", record.switch_s))  # fmt: skip
        spent = [f"{what} {seconds(spent_s)}" for what, spent_s in phases if spent_s > 0]
        lines = [f"Step {record.step}: {seconds(record.end_s - begin_s)}", *spent]
        yield Step(record.step, begin_s - run.start_s, record.end_s - run.start_s, "\n".join(lines))
        begin_s = record.end_s


def _lanes(run: Run, edges: FloatArray) -> Iterator[Lane]:
    """Replicas, some of them together where there are many, then the trainer's own GPUs."""
    by_replica: dict[int, GpuLane] = {}
    for lane in gpu_lanes(run):
        by_replica.setdefault(lane.replica, lane)
    replicas = [number for number in by_replica if number >= 0]
    together = -(-len(replicas) // MOST_LANES)
    running = {number: mean_running(running_over_time(run, number), edges) for number in replicas}
    peak = max((float(level.max(initial=0.0)) for level in running.values()), default=0.0)
    for first in range(0, len(replicas), together):
        members = replicas[first : first + together]
        busy = [by_replica[number] for number in members]
        load = np.mean([running[number] for number in members], axis=0) / (peak or 1.0)
        last = f"\N{EN DASH}{members[-1]}" if len(members) > 1 else ""
        yield Lane(f"replica {members[0]}{last}", _states(busy, load, edges))
    if -1 in by_replica:
        yield Lane("trainer", _states([by_replica[-1]], np.zeros(len(edges) - 1), edges))


def _states(lanes: Sequence[GpuLane], load: FloatArray, edges: FloatArray) -> str:
    """What the lanes do most of in each bin."""
    shares = np.array([
        np.mean([covered(lane.busy[kind], edges) for lane in lanes], axis=0)
        for kind in ("rollout", "train", "sync")
    ])  # fmt: skip
    idle = 1.0 - shares.sum(axis=0)
    most = np.argmax(np.vstack((shares, idle)), axis=0)
    level = np.clip((load * len(_LOADS)).astype(int), 0, len(_LOADS) - 1)
    letters = ((str(at), _TRAIN, _SYNC, _IDLE)[kind] for kind, at in zip(most, level, strict=True))
    return "".join(letters)


# The picture


def timelines(runs: Sequence[Timeline | None], caption: str = "") -> Markup:
    """Runs below each other on one axis of time, so that a faster one ends further to the left."""
    drawn = [run for run in runs if run is not None]
    if not drawn:
        return Markup()
    longest_s = max(run.span_s for run in drawn)
    entries = [("few", "few rollouts running"), ("most", "as many as ever"), ("train", "training"),
               ("sync", "weight sync"), ("idle", "idle GPUs")]  # fmt: skip
    return figure(
        [_run(run, longest_s, last=run is drawn[-1]) for run in drawn], caption, key(entries)
    )


def _run(run: Timeline, longest_s: float, last: bool) -> Markup:
    shown = len(run.steps)
    part = "all" if shown == run.of_steps else f"first {shown} of"
    facts = (f"{seconds(run.step_s)} a step, {share(run.idle)} of GPU time idle; "
             f"{part} {run.of_steps} steps")  # fmt: skip
    width = f"width:{100 * run.span_s / longest_s:.2f}%"
    rows = len(run.lanes)
    height_px = max(rows * (9 if rows > 8 else 13), 18)
    what = {"role": "group", "viewBox": f"0 0 {BINS} 100", "preserveAspectRatio": "none"}
    area = tag("svg", _area(run), _boundaries(run), **what,
               aria_label=f"{run.name}: rollouts running, at most {run.peak}")  # fmt: skip
    lanes = tag("svg", _cells(run), _boundaries(run), _hits(run), **what,
                aria_label=f"{run.name}: what the GPUs do in each step")  # fmt: skip
    names = _names(run.lanes)
    return tag(
        "div",
        tag("h3", run.name, tag("span", facts)),
        tag(
            "div",
            tag("div", f"rollouts, {run.peak}", class_="name"),
            _strip(area, width, 44),
            tag("div", [tag("div", name) for name in names], class_="name"),
            _strip(lanes, width, height_px, idle=True),
            _axis(longest_s) if last else None,
            class_="lanes",
        ),
        class_="run",
    )


def _strip(picture: Markup, width: str, height_px: int, idle: bool = False) -> Markup:
    held = tag("div", picture, class_="held idle-ground" if idle else "held", style=width)
    return tag("div", held, class_="strip", style=f"height:{height_px}px;margin-bottom:3px")


def _names(lanes: Sequence[Lane]) -> list[str]:
    replicas = sum(lane.name != "trainer" for lane in lanes)
    named = ["replicas" if replicas > 1 else "replica"] if replicas else []
    return named + ["trainer"] * (replicas < len(lanes))


def _area(run: Timeline) -> Markup:
    top = run.peak or 1
    line = "".join(f"V{number(100 - 100 * level / top)}h1" for level in run.running)
    return tag("path", d=f"M0 100{line}V100z", class_="rollout")


def _cells(run: Timeline) -> list[Markup]:
    """One path a colour: what is left clear is idle."""
    paths: dict[str, list[str]] = {}
    height = 100 / len(run.lanes)
    for row, lane in enumerate(run.lanes):
        at = 0
        for state, letters in groupby(lane.states):
            width = len(list(letters))
            if state != _IDLE:
                box = f"M{at} {number(row * height)}h{width}v{number(0.88 * height)}h-{width}z"
                paths.setdefault(_KINDS[state], []).append(box)
            at += width
    return [tag("path", d="".join(boxes), class_=kind) for kind, boxes in paths.items()]


def _boundaries(run: Timeline) -> list[Markup]:
    ends = [BINS * step.end_s / run.span_s for step in run.steps[:-1]]
    return [
        tag("line", x1=x, x2=x, y1="0", y2="100", stroke="currentColor",
            stroke_width="1", vector_effect="non-scaling-stroke")
        for x in ends
    ]  # fmt: skip


def _hits(run: Timeline) -> list[Markup]:
    """Each step, to be pointed at or tabbed to."""
    return [
        tag(
            "rect",
            x=BINS * step.start_s / run.span_s,
            y="0",
            width=BINS * max(step.end_s - step.start_s, 0.0) / run.span_s,
            height="100",
            class_="hit",
            tabindex=0,
            role="img",
            data_tip=step.tip,
            aria_label=step.tip,
        )
        for step in run.steps
    ]


def _axis(span_s: float) -> Markup:
    unit_s, name = time_unit(span_s)
    at = marks(0.0, span_s / unit_s, 6)
    ticks = [
        tag("span", f"{value:g} {name}" if value == at[-1] else f"{value:g}",
            style=f"left:{100 * value * unit_s / span_s:.2f}%")
        for value in at
    ]  # fmt: skip
    return joined([tag("div"), tag("div", ticks, class_="ticks")])
