"""Timelines: the first steps of a run in bins of time, a lane per replica.

Lanes are those of `simulator.results.over_time.gpu_lanes`. Painters (`simulator.results.timeline`,
`simulator.report.timeline`) only add colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcast.simulator.core.spans import Run
from rollcast.simulator.results.intervals import FloatArray, between, intersection, total_s
from rollcast.simulator.results.over_time import (
    GpuLane,
    IntArray,
    away_over_time,
    down_intervals,
    gpu_lanes,
    running_over_time,
    underfilled_intervals,
)

STEPS_SHOWN = 4  # default


@dataclass(frozen=True, slots=True)
class Step:
    """A step: number, start and end in seconds from the run's start, seconds of its phases."""

    number: int
    start_s: float
    end_s: float
    phases: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """GPUs. rollout, train, sync, down: shares of each bin, shape (bins,); load: running rollouts
    over the most on any replica, shape (bins,). idle: share of the whole run."""

    name: str
    rollout: FloatArray
    train: FloatArray
    sync: FloatArray
    down: FloatArray
    load: FloatArray
    idle: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The first steps of a run; arrays have shape (bins,).

    lanes: replicas, or groups of them; trainer: its lane; apart: whether its GPUs are its own.
    running, away: rollouts on replicas and in environments (None without any); peak, most_on_one,
    most_away: their maxima over all replicas, one, and environments. of_steps, step_s, bubble: of
    the whole run.
    """

    name: str
    span_s: float
    lanes: tuple[Lane, ...]
    trainer: Lane
    apart: bool
    running: FloatArray
    peak: int
    most_on_one: int
    away: FloatArray | None
    most_away: int
    steps: tuple[Step, ...]
    of_steps: int
    step_s: float
    bubble: float

    @property
    def held(self) -> tuple[Lane, ...]:
        """The lanes of all GPUs that the run held."""
        return (*self.lanes, self.trainer) if self.apart else self.lanes


def timeline_of(
    run: Run,
    name: str,
    summary: Mapping[str, Any],
    *,
    bins: int,
    steps: int = STEPS_SHOWN,
    most_lanes: int | None = None,
) -> Timeline | None:
    """The timeline of a run's first ``steps``; None for an empty run.

    summary: of the run. most_lanes: maximum of lanes; more replicas share lanes.
    """
    shown = run.steps[:steps]
    if not shown or run.makespan_s <= 0:
        return None
    end_s = max(record.end_s for record in shown)
    edges = np.linspace(run.start_s, end_s, bins + 1)
    by_number: dict[int, list[GpuLane]] = {}
    for lane in gpu_lanes(run):
        by_number.setdefault(lane.replica, []).append(lane)
    replicas = [number for number in by_number if number >= 0]
    counted = {number: running_over_time(run, number) for number in replicas}
    most = max((_most(counts, end_s) for counts in counted.values()), default=0)
    together = -(-len(replicas) // (most_lanes or len(replicas)))
    lanes = []
    for first in range(0, len(replicas), together):
        members = replicas[first : first + together]
        load = [mean_running(counted[number], edges) for number in members]
        last = f"\N{EN DASH}{members[-1]}" if len(members) > 1 else ""
        parts = [by_number[number] for number in members]
        title = f"replica {members[0]}{last}"
        lanes.append(_lane(title, parts, np.mean(load, axis=0) / max(most, 1), edges, run))
    apart = -1 in by_number  # else the trainer is on the GPUs of the first replica
    trainer = _lane("trainer", [by_number[-1 if apart else 0]], np.zeros(bins), edges, run)
    running, away = running_over_time(run), away_over_time(run) if len(run.calls) else None
    return Timeline(
        name,
        end_s - run.start_s,
        tuple(lanes),
        trainer,
        apart,
        mean_running(running, edges),
        _most(running, end_s),
        most,
        None if away is None else mean_running(away, edges),
        0 if away is None else int(away[1].max(initial=0)),
        tuple(_steps(run, steps)),
        len(run.steps),
        summary["step_s"],
        summary["bubble_fraction"],
    )


def gpu_shares(run: Run, span_s: float, bins: int) -> dict[str, FloatArray]:
    """Shares of a run's GPUs by bin, shape (bins,) each: ``rollout``, ``tail`` (underfilled
    rollout), ``train``, ``sync``; the rest is idle."""
    edges = np.linspace(run.start_s, run.start_s + span_s, bins + 1)
    shares = {kind: np.zeros(bins) for kind in ("rollout", "tail", "train", "sync")}
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
    return shares


def covered(intervals: FloatArray, edges: FloatArray) -> FloatArray:
    """The covered share of each bin; edges: shape (bins + 1,)."""
    return np.asarray(np.clip(between(intervals, edges) / np.diff(edges), 0.0, 1.0))


def mean_running(running: tuple[FloatArray, IntArray], edges: FloatArray) -> FloatArray:
    """Mean running rollouts by bin, from `metrics.running_over_time`."""
    times, counts = running
    area = np.concatenate(([0.0], np.cumsum(np.diff(times) * counts[:-1])))
    return np.asarray(np.diff(np.interp(edges, times, area)) / np.diff(edges))


def _lane(
    name: str, replicas: Sequence[Sequence[GpuLane]], load: FloatArray, edges: FloatArray, run: Run
) -> Lane:
    """The lane of these replicas. Of a replica shared in part with a trainer, the shared part is
    drawn; the idle share is of all."""
    rollout, train, sync = (
        np.mean([covered(parts[0].busy[kind], edges) for parts in replicas], axis=0)
        for kind in ("rollout", "train", "sync")
    )
    whole = [lane for parts in replicas for lane in parts]
    idle_s = sum(lane.gpus * total_s(idle) for lane in whole for idle in lane.idle.values())
    held_s = run.makespan_s * sum(lane.gpus for lane in whole)
    downs = [covered(down_intervals(run, parts[0].replica), edges) for parts in replicas]
    return Lane(name, rollout, train, sync, np.mean(downs, axis=0), load, idle_s / held_s)


def _most(counted: tuple[FloatArray, IntArray], end_s: float) -> int:
    times, counts = counted
    return int(counts[times < end_s].max(initial=0))


def _steps(run: Run, steps: int) -> Iterator[Step]:
    begin_s = run.start_s
    for record in run.steps[:steps]:
        phases = (
            ("rollout", record.rollout_s),
            ("training", record.train_s),
            ("weight sync", record.sync_s),
            ("switch", record.switch_s),
        )
        spent = tuple((name, seconds) for name, seconds in phases if seconds > 0)
        yield Step(record.step, begin_s - run.start_s, record.end_s - run.start_s, spent)
        begin_s = record.end_s
