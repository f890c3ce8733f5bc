"""Timelines of `simulator.results.lanes` as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from rollcast.simulator.core.spans import Run
from rollcast.simulator.report.page import Markup, joined, number, tag
from rollcast.simulator.report.parts import figure, key
from rollcast.simulator.results import lanes
from rollcast.simulator.results.lanes import Lane, Step, Timeline
from rollcast.simulator.results.scale import marks, time_unit
from rollcast.simulator.results.text import seconds, share

BINS = 480
MOST_LANES = 16
_LOADS = ("few", "some", "middle", "many", "most")
_KINDS = (*_LOADS, "train", "sync", "down", "idle")


def timeline_of(
    run: Run, name: str, summary: Mapping[str, Any], steps: int = lanes.STEPS_SHOWN
) -> Timeline | None:
    """The timeline of a run's first ``steps``, in `BINS` columns and at most `MOST_LANES` lanes;
    None for an empty run."""
    return lanes.timeline_of(run, name, summary, bins=BINS, steps=steps, most_lanes=MOST_LANES)


def states(lane: Lane) -> list[str]:
    """What a lane does most in each bin: ``train``, ``sync``, ``down``, ``idle``, or rollouts from
    ``few`` to ``most``."""
    done = np.vstack((lane.rollout, lane.train, lane.sync, lane.down))
    most = np.argmax(np.vstack((done, 1.0 - done.sum(axis=0))), axis=0)
    level = np.clip((lane.load * len(_LOADS)).astype(int), 0, len(_LOADS) - 1)
    kinds = np.where(most == 0, level, len(_LOADS) - 1 + most)
    return [_KINDS[kind] for kind in kinds.tolist()]


def timelines(runs: Sequence[Timeline | None]) -> Markup:
    """Runs below each other on one time axis."""
    drawn = [run for run in runs if run is not None]
    if not drawn:
        return Markup()
    longest_s = max(run.span_s for run in drawn)
    entries = [
        ("few", "few rollouts running"),
        ("most", "as many as ever"),
        ("train", "training"),
        ("sync", "weight sync"),
        *([("down", "replica down")] if any(_is_down(run) for run in drawn) else []),
        ("idle", "idle GPUs"),
    ]
    return figure([_run(run, longest_s, last=run is drawn[-1]) for run in drawn], "", key(entries))


def _is_down(run: Timeline) -> bool:
    return any(lane.down.any() for lane in run.held)


def _run(run: Timeline, longest_s: float, last: bool) -> Markup:
    shown = len(run.steps)
    part = "all" if shown == run.of_steps else f"first {shown} of"
    facts = (
        f"{seconds(run.step_s)} a step, {share(run.bubble)} of GPU time idle; "
        f"{part} {run.of_steps} steps"
    )
    width = f"width:{100 * run.span_s / longest_s:.2f}%"
    rows = len(run.held)
    height_px = max(rows * (9 if rows > 8 else 13), 18)
    what = {"role": "group", "viewBox": f"0 0 {BINS} 100", "preserveAspectRatio": "none"}
    area = tag(
        "svg",
        _area(run),
        _boundaries(run),
        **what,
        aria_label=f"{run.name}: rollouts running, at most {run.peak}",
    )
    lanes = tag(
        "svg",
        _cells(run),
        _boundaries(run),
        _hits(run),
        **what,
        aria_label=f"{run.name}: what the GPUs do in each step",
    )
    names = _names(run)
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


def _names(run: Timeline) -> list[str]:
    named = ["replicas" if len(run.lanes) > 1 else "replica"]
    return [*named, "trainer"] if run.apart else named


def _area(run: Timeline) -> Markup:
    top = run.peak or 1
    levels = np.round(run.running, 1).tolist()
    line = "".join(f"V{number(100 - 100 * level / top)}h1" for level in levels)
    return tag("path", d=f"M0 100{line}V100z", class_="rollout")


def _cells(run: Timeline) -> list[Markup]:
    """One path per colour; idle bins are clear."""
    paths: dict[str, list[str]] = {}
    height = 100 / len(run.held)
    for row, lane in enumerate(run.held):
        at = 0
        for kind, bins in groupby(states(lane)):
            width = len(list(bins))
            if kind != "idle":
                box = f"M{at} {number(row * height)}h{width}v{number(0.88 * height)}h-{width}z"
                paths.setdefault(kind, []).append(box)
            at += width
    return [tag("path", d="".join(boxes), class_=kind) for kind, boxes in paths.items()]


def _boundaries(run: Timeline) -> list[Markup]:
    ends = [BINS * step.end_s / run.span_s for step in run.steps[:-1]]
    return [
        tag(
            "line",
            x1=x,
            x2=x,
            y1="0",
            y2="100",
            stroke="currentColor",
            stroke_width="1",
            vector_effect="non-scaling-stroke",
        )
        for x in ends
    ]


def _hits(run: Timeline) -> list[Markup]:
    """Each step as a target for pointer and tab key."""
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
            data_tip=_tip(step),
            aria_label=_tip(step),
        )
        for step in run.steps
    ]


def _tip(step: Step) -> str:
    spent = (f"{name} {seconds(spent_s)}" for name, spent_s in step.phases)
    return "\n".join((f"Step {step.number}: {seconds(step.end_s - step.start_s)}", *spent))


def _axis(span_s: float) -> Markup:
    unit_s, name = time_unit(span_s)
    at = marks(0.0, span_s / unit_s, 6)
    ticks = [
        tag(
            "span",
            f"{value:g} {name}" if value == at[-1] else f"{value:g}",
            style=f"left:{100 * value * unit_s / span_s:.2f}%",
        )
        for value in at
    ]
    return joined([tag("div"), tag("div", ticks, class_="ticks")])
