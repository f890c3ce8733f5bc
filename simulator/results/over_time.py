"""What a run's GPUs and rollouts do over time: busy or idle, and for what; how many run.

**Bubble.** A GPU is busy while its replica has a rollout running or waiting, or while the trainer,
a sync or a switch uses it (`gpu_lanes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import Run
from rollcast.simulator.results.intervals import (
    NOTHING,
    FloatArray,
    intersection,
    merged,
    union,
    without,
)

IntArray = NDArray[np.int64]

CAUSES = ("environment", "stragglers", "trainer", "rollouts", "other")
WAITED_FOR = {
    "environment": "environments",
    "stragglers": "stragglers",
    "trainer": "the trainer",
    "rollouts": "rollouts",
    "other": "something else",
}
"""Causes in words."""
UNDERFILLED_BELOW = 0.25  # of a replica's peak in the phase

_CONTEXT_SAMPLES = 1000  # over a run, beside those where a segment begins or ends


@dataclass(frozen=True, slots=True)
class GpuLane:
    """GPUs that are always in the same state.

    replica: -1 for the trainer's own GPUs; a replica shared in part with the trainer has two lanes.
    busy (by ``rollout``, ``train``, ``sync``; switches are syncs) and idle (by `CAUSES`):
    intervals, shape (n, 2), seconds, that partition the time in which they are up.
    """

    replica: int
    gpus: int
    busy: dict[str, FloatArray] = field(default_factory=dict)
    idle: dict[str, FloatArray] = field(default_factory=dict)


def phase_intervals(run: Run) -> dict[str, FloatArray]:
    """Intervals, shape (n, 2), seconds, of ``rollout``, ``train`` (all trainer work), ``sync``,
    ``switch``."""
    times: dict[str, list[tuple[float, float]]] = {
        "rollout": [],
        "train": [],
        "sync": [],
        "switch": [],
    }
    for phase in run.phases:
        kind = phase.kind if phase.kind in times else "train"
        times[kind].append((phase.start_s, phase.end_s))
    return {kind: merged(*np.array(spans).T) if spans else NOTHING for kind, spans in times.items()}


def running_over_time(run: Run, replica: int | None = None) -> tuple[FloatArray, IntArray]:
    """Rollouts being computed, on one replica or on all.

    Returns rising times and counts, shape (n,): ``counts[i]`` holds from ``times[i]``; the last is
    0. A rollout counts from its first iteration to its end, preemptions included.
    """
    start, end = run.segments["start_s"], run.segments["end_s"]
    if replica is not None:
        here = run.segments["replica"] == replica
        start, end = start[here], end[here]
    return _step_function(run, start, end)


def away_over_time(run: Run) -> tuple[FloatArray, IntArray]:
    """Rollouts with, or waiting for, environments and judges, suspended ones included."""
    return _step_function(run, run.calls["asked_s"], run.calls["end_s"])


def _step_function(run: Run, start: FloatArray, end: FloatArray) -> tuple[FloatArray, IntArray]:
    computed = end > start
    start, end = np.sort(start[computed]), np.sort(end[computed])
    times = np.unique(np.concatenate(([run.start_s], start, end)))
    counts = np.searchsorted(start, times, "right") - np.searchsorted(end, times, "right")
    return times, counts


def context_over_time(run: Run, replica: int) -> tuple[FloatArray, IntArray]:
    """Context tokens (prompts and responses so far) of the rollouts that a replica computes.

    Returns rising times and tokens, shape (n,); the last is 0. Assumes that a response grows evenly
    through a segment.
    """
    segments = run.segments
    here = (segments["replica"] == replica) & (segments["end_s"] > segments["start_s"])
    start, end = segments["start_s"][here] - run.start_s, segments["end_s"][here] - run.start_s
    new = segments["new_tokens"][here]
    base = segments["prompt_tokens"][here] + segments["total_tokens"][here] - new
    base = base + segments["observation_tokens"][here]
    times = np.unique(np.concatenate(([0.0], start, end)))
    grid = np.linspace(0.0, times[-1], _CONTEXT_SAMPLES + 1)
    longest = np.diff(times, append=np.inf)[np.searchsorted(times, grid, "right") - 1]
    times = np.union1d(times, grid[longest > times[-1] / _CONTEXT_SAMPLES])
    rate = new / (end - start)  # tokens: base + rate (t - start) from start until end
    tokens = np.zeros(len(times))
    count = np.zeros(len(times), dtype=np.int64)
    for edge, sign in ((start, 1), (end, -1)):
        order = np.argsort(edge, kind="stable")
        level = np.concatenate(([0.0], np.cumsum((base - rate * start)[order])))
        slope = np.concatenate(([0.0], np.cumsum(rate[order])))
        past = np.searchsorted(edge[order], times, "right")
        tokens += sign * (level[past] + slope[past] * times)
        count += sign * past
    tokens[count == 0] = 0.0  # but for rounding it is
    return times + run.start_s, np.rint(np.maximum(tokens, 0.0)).astype(np.int64)


def gpu_lanes(run: Run) -> list[GpuLane]:
    """All GPUs that the run held, with busy and idle time.

    Idle rollout GPUs wait, in this order, for the ``environment`` (rollout phase only), for
    ``stragglers`` on other replicas, for the ``trainer``; idle trainer GPUs for ``rollouts``, else
    for the ``environment``. ``other``: nothing was under way. Syncs occupy all GPUs but those of
    replicas that are down, which are neither busy nor idle.
    """
    shape, phases = run.shape, phase_intervals(run)
    held = merged([run.start_s], [run.end_s])
    sync = intersection(union(phases["sync"], phases["switch"]), held)
    train = intersection(phases["train"], held)
    replica, submitted, end = (run.segments[name] for name in ("replica", "submitted_s", "end_s"))
    order = np.argsort(replica, kind="stable")
    bounds = np.searchsorted(replica[order], np.arange(shape.replicas + 1))
    rollouts = []
    for number in range(shape.replicas):
        rows = order[bounds[number] : bounds[number + 1]]
        rollouts.append(intersection(merged(submitted[rows], end[rows]), held))
    anywhere = union(NOTHING, *rollouts)
    environments: tuple[tuple[str, FloatArray], ...] = ()
    if len(run.calls):
        away = merged(run.calls["asked_s"], run.calls["end_s"])
        away = intersection(away, intersection(phases["rollout"], held))
        environments = (("environment", away),)
    lanes = []
    for number, busy in enumerate(rollouts):
        first = number * shape.gpus_per_replica
        shared = min(max(shape.trainer_gpus - first, 0), shape.gpus_per_replica)
        if not shape.colocated:
            shared = 0
        up = without(held, down_intervals(run, number))
        for gpus, trains in ((shared, train), (shape.gpus_per_replica - shared, NOTHING)):
            if gpus:
                lane = GpuLane(number, gpus, *_uses(up, busy, trains, sync))
                waits = (*environments, ("stragglers", anywhere), ("trainer", train))
                _blame(lane, waits)
                lanes.append(lane)
    alone = shape.gpus - shape.replicas * shape.gpus_per_replica
    if alone:
        lane = GpuLane(-1, alone, *_uses(held, NOTHING, train, sync))
        _blame(lane, (("rollouts", anywhere), *environments))
        lanes.append(lane)
    return lanes


def down_intervals(run: Run, replica: int) -> FloatArray:
    """In which a replica was down, shape (n, 2), seconds."""
    spans = [span for span in run.downs if span.replica == replica and span.start_s < run.end_s]
    if not spans:
        return NOTHING
    return merged([span.start_s for span in spans], [min(s.end_s, run.end_s) for s in spans])


def _uses(
    held: FloatArray, rollout: FloatArray, train: FloatArray, sync: FloatArray
) -> tuple[dict[str, FloatArray], dict[str, FloatArray]]:
    """Busy and idle intervals; rollout precedes sync, sync precedes train."""
    sync = intersection(without(sync, rollout), held)
    train = intersection(without(train, union(rollout, sync)), held)
    busy = {"rollout": rollout, "train": train, "sync": sync}
    return busy, {"other": without(held, union(*busy.values()))}


def _blame(lane: GpuLane, waits: tuple[tuple[str, FloatArray], ...]) -> None:
    """Divides a lane's idle time among causes; the first that holds counts."""
    left = lane.idle["other"]
    for cause, intervals in waits:
        lane.idle[cause] = intersection(left, intervals)
        left = without(left, intervals)
    lane.idle["other"] = left


def underfilled_intervals(run: Run) -> list[FloatArray]:
    """By replica, intervals of rollout phases, shape (n, 2), seconds, with fewer running rollouts
    than `UNDERFILLED_BELOW` of the replica's peak in the phase, idle time included."""
    spans = [(p.start_s, p.end_s) for p in run.phases if p.kind == "rollout" and p.seconds > 0]
    if not spans:
        return [NOTHING] * run.shape.replicas
    starts, ends = np.array(sorted(spans)).T
    replica, begin, end = (run.segments[name] for name in ("replica", "start_s", "end_s"))
    underfilled = []
    for number in range(run.shape.replicas):
        here = replica == number
        times, counts = _step_function(run, begin[here], end[here])
        cuts = np.unique(np.concatenate((times, starts, ends)))
        middle = (cuts[:-1] + cuts[1:]) / 2
        phase = np.searchsorted(starts, middle, "right") - 1
        inside = (phase >= 0) & (middle < ends[phase])
        running = counts[np.searchsorted(times, middle, "right") - 1]
        peak = np.zeros(len(starts), dtype=np.int64)
        np.maximum.at(peak, phase[inside], running[inside])
        few = inside & ((running < UNDERFILLED_BELOW * peak[phase]) | (peak[phase] == 0))
        underfilled.append(merged(cuts[:-1][few], cuts[1:][few]))
    return underfilled
