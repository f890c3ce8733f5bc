"""The steady state of a run told apart from its start-up and its end.

A run's first steps are unlike the later ones where work goes over from one step to the next: an
asynchronous pipeline fills, a buffer of unfinished rollouts grows. A synchronous run owes nothing.
Which steps may belong to the start-up follows from the run's own state (how old what is trained on
is, how many groups wait); which of those do, from the step times.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.spans import Run, StepRecord

FloatArray = NDArray[np.float64]

_SAME_SHARE = 0.1  # of a batch of groups left over
_RISE = 1.05  # over all that was before: more than a settled state varies by
_NEARLY_S = 1e-9
LEAST_STEPS = 4
"""Fewer steady steps say nothing of the steady state."""


class Steady(NamedTuple):
    """Steps ``start`` to ``stop`` (left out) are steady.

    step_s: their mean; not a number where there is no step. fill_s and drain_s: what the steps
    before and after them took beyond so many steady ones, so that the steps together take
    ``steps * step_s + fill_s + drain_s``; a drain is negative where the last steps have nothing to
    wait for. known: whether the run is long enough to tell: so many steps are left, and no state
    was still rising to what it had not been.
    """

    start: int
    stop: int
    step_s: float
    fill_s: float
    drain_s: float
    known: bool


def steady_state(
    step_s: Sequence[float],
    states: Sequence[Sequence[float]] = (),
    waiting: Sequence[float] = (),
    same: float = 0.0,
    drain: int = 0,
    carries: bool = True,
) -> Steady:
    """Finds it in a series of steps, of shape (steps,) each.

    step_s: seconds from one step's end to the next. states: figures that settle once the run is
    steady. waiting: work left over after each step, none before the first; levels that differ by at
    most ``same`` are the same. drain: steps at the end during which nothing is generated any more.
    carries: whether anything goes over from one step to the next; where nothing does, every step is
    steady, and a run of one is long enough.

    The start-up ends once each state is within the range that it has in the run's later half, or a
    while later, as step times lag behind, at most as long again; the step times decide where, by
    the least variance of the mean of those that are left (MSER; White, Simulation 69, 1997): alone
    they could not, where lengths make them differ by more than the start-up does. Of what is left,
    so much is taken that it begins and ends with as much work left over, lest part of a cycle of
    long and short steps be counted.
    """
    times = np.asarray(step_s, dtype=float)
    count = len(times)
    if not count:
        return Steady(0, 0, float("nan"), 0.0, 0.0, True)
    stop = max(count - drain, 1)
    last = stop // 2
    settles = max((_settled(np.asarray(state, dtype=float)[:stop]) for state in states), default=0)
    start = _least_variance(times[:stop], min(settles, last), min(2 * settles, last))
    level = np.concatenate(([0.0], np.asarray(waiting, dtype=float)[:stop]))
    if len(level) == stop + 1:
        start = _as_at_the_end(level, start, max(start, stop - LEAST_STEPS), same)
    mean = float(times[start:stop].mean())
    return Steady(
        start,
        stop,
        mean,
        float((times[:start] - mean).sum()),
        float((times[stop:] - mean).sum()),
        not carries
        or (
            stop - start >= LEAST_STEPS
            and not any(_rises(np.asarray(state, dtype=float)[:stop]) for state in states)
        ),
    )


def steady_of(run: Run) -> Steady:
    """That of a run. Its state: how old what is trained on is, and whether a step's rollouts began
    before its predecessor's update was done; its work left over: groups suspended. Where steps
    overlap, those that end after the last rollouts have are its drain."""
    steps = run.steps
    if not steps:
        return steady_state(())
    overlaps = [False]
    overlaps += [b.rollout_start_s < a.end_s - _NEARLY_S for a, b in pairwise(steps)]
    plans = (decision["plan"] for decision in run.decisions)
    ahead = any(overlaps) or any(plan["launch"]["run_ahead"] for plan in plans)
    last_s = max(step.rollout_end_s for step in steps)
    return steady_state(
        [step.step_s for step in steps],
        ([mean_age(step) for step in steps], [float(overlap) for overlap in overlaps]),
        [float(step.buffered_groups) for step in steps],
        _SAME_SHARE * min(step.trained_groups for step in steps),
        sum(step.end_s > last_s for step in steps) if any(overlaps) else 0,
        ahead or any(step.buffered_groups for step in steps),
    )


def mean_age(step: StepRecord) -> float:
    """Versions that the tokens of a step's batch were behind, on average."""
    total = sum(age * tokens for age, tokens in step.staleness.items())
    return total / max(sum(step.staleness.values()), 1)


def _settled(state: FloatArray) -> int:
    """The first step at which a state is in the range that it has in the later half."""
    late = state[len(state) // 2 :]
    room = 0.01 * max(abs(float(late.max())), 1e-12)
    inside = (state >= late.min() - room) & (state <= late.max() + room)
    return int(np.argmax(inside))


def _rises(state: FloatArray) -> bool:
    """Whether the last quarter goes beyond all that was before it."""
    late = len(state) - len(state) // 4
    return 0 < late < len(state) and bool(state[late:].max() > _RISE * state[:late].max() + 0.02)


def _least_variance(times: FloatArray, least: int, most: int) -> int:
    """How many of the first steps to leave out, from ``least`` to ``most``."""
    starts = range(least, most + 1)
    scores = [float(times[start:].var()) / (len(times) - start) for start in starts]
    return starts[int(np.argmin(scores))]


def _as_at_the_end(level: FloatArray, first: int, most: int, same: float) -> int:
    """The first step, of ``first`` to ``most``, before which there was as much work left over as at
    the end; where there is none, the one that comes nearest."""
    apart = np.abs(level[first : most + 1] - level[-1])
    near = np.flatnonzero(apart <= same)
    return first + int(near[0] if len(near) else np.argmin(apart))
