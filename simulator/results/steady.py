"""The steady state of a run, apart from start-up and end.

Asynchronous pipelines fill and buffers grow at first; a synchronous run is steady at once. The
run's state (age of trained tokens, waiting groups) bounds the start-up, the step times decide
within the bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import Run, StepRecord

FloatArray = NDArray[np.float64]

_SAME_SHARE = 0.1  # of a batch of groups left over
_RISE = 1.05  # over all that was before: more than a settled state varies by
_NEARLY_S = 1e-9
LEAST_STEPS = 4  # fewer steady steps are not known to be steady


class Steady(NamedTuple):
    """Steps ``start`` to ``stop`` (exclusive) are steady.

    step_s: their mean, nan without steps. startup_s, drain_s: seconds of the steps before and after
    them, so that all take ``startup_s + (stop - start) * step_s + drain_s``. known: whether enough
    steps are steady and no state still rises.
    """

    start: int
    stop: int
    step_s: float
    startup_s: float
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
    """The steady part of a series of steps.

    step_s: seconds by step. states: series that settle. waiting: work left over after each step;
    levels within ``same`` are equal. drain: steps at the end without generation. carries: whether
    work passes between steps; if not, all steps are steady.

    The start-up ends once each state is within its range in the later half, or up to as long again;
    within these bounds at the least variance of the mean of the rest (MSER; White, Simulation 69,
    1997). The steady part begins and ends with as much work left over, to hold whole cycles.
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
    return Steady(
        start,
        stop,
        float(times[start:stop].mean()),
        float(times[:start].sum()),
        float(times[stop:].sum()),
        not carries
        or (
            stop - start >= LEAST_STEPS
            and not any(_rises(np.asarray(state, dtype=float)[:stop]) for state in states)
        ),
    )


def steady_of(run: Run) -> Steady:
    """The steady part of a run. States: age of trained tokens, overlap with the step before; work
    left over: suspended groups. Overlapping steps after the last rollout are its drain."""
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
    """Mean versions behind of a step's batch."""
    total = sum(age * tokens for age, tokens in step.staleness.items())
    return total / max(sum(step.staleness.values()), 1)


def _settled(state: FloatArray) -> int:
    """The first step within the range of the later half."""
    late = state[len(state) // 2 :]
    room = 0.01 * max(abs(float(late.max())), 1e-12)
    inside = (state >= late.min() - room) & (state <= late.max() + room)
    return int(np.argmax(inside))


def _rises(state: FloatArray) -> bool:
    """Whether the last quarter exceeds all before it."""
    late = len(state) - len(state) // 4
    return 0 < late < len(state) and bool(state[late:].max() > _RISE * state[:late].max() + 0.02)


def _least_variance(times: FloatArray, least: int, most: int) -> int:
    """First steps to leave out, from ``least`` to ``most``."""
    starts = range(least, most + 1)
    scores = [float(times[start:].var()) / (len(times) - start) for start in starts]
    return starts[int(np.argmin(scores))]


def _as_at_the_end(level: FloatArray, first: int, most: int, same: float) -> int:
    """The first step, of ``first`` to ``most``, preceded by as much left-over work as the end, or
    nearest to it."""
    apart = np.abs(level[first : most + 1] - level[-1])
    near = np.flatnonzero(apart <= same)
    return first + int(near[0] if len(near) else np.argmin(apart))


def _taken_a_step(run: Run) -> float:
    """Rollouts that a mean steady update takes in, before some of them are selected."""
    return _mean_of(run, "taken_rollouts")


def trained_a_step(run: Run) -> float:
    """Rollouts that a mean steady update trains on."""
    return _mean_of(run, "trained_rollouts")


def _mean_of(run: Run, figure: str) -> float:
    steady = steady_of(run)
    records = run.steps[steady.start : steady.stop]
    total: int = sum(getattr(record, figure) for record in records)
    return total / max(len(records), 1)


def per_rollout(runs: Sequence[Run]) -> FloatArray:
    """Factors that normalise step times to the rollouts of the first run, shape (runs,)."""
    taken = np.array([_taken_a_step(run) for run in runs])
    return np.asarray(np.divide(taken[0], taken, out=np.ones_like(taken), where=taken > 0))
