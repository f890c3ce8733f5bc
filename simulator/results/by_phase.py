"""Where the seconds of a run's steps go, by phase, and what bounds a step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollcast.simulator.results.intervals import (
    NOTHING,
    FloatArray,
    between,
    intersection,
    merged,
    total_s,
    union,
    without,
)
from rollcast.simulator.results.phases import PHASES, PhaseName, bounds, in_sum, phase_of
from rollcast.simulator.rollout import CALL_KINDS
from rollcast.simulator.spans import Run

_NEARLY = 0.01  # of the rollouts' time: an interrupted rollout ends within its last iteration


@dataclass(frozen=True, eq=False)
class ByPhase:
    """seconds: between the ends of two steps, by phase, shape (steps,). overlapped: whether
    rollouts are made beside the training. edges: of the steps, shape (steps + 1,)."""

    seconds: dict[PhaseName, FloatArray]
    overlapped: bool
    edges: FloatArray

    @classmethod
    def of(cls, run: Run, few: Sequence[FloatArray] = ()) -> ByPhase:
        """few: `simulator.results.metrics.underfilled_intervals`, whose mean is the tail; it is 0
        where they are left out.

        An instant at which two of the trainer's phases are under way counts for the first of them.
        """
        edges = np.array([run.start_s, *(record.end_s for record in run.steps)])
        spans = defaultdict[PhaseName, list[tuple[float, float]]](list)
        for span in run.phases:
            spans[phase_of(span.kind)].append((span.start_s, span.end_s))
        sets = {name: merged(*np.array(found).T) for name, found in spans.items()}
        rollouts = sets.pop("generation", NOTHING)
        seconds: dict[PhaseName, FloatArray] = {}
        worked = NOTHING
        for name in PHASES:
            part = without(sets.get(name, NOTHING), worked)
            worked = union(worked, part)
            seconds[name] = between(part, edges)
        alone = without(rollouts, worked)
        judged = _judged(run, alone)
        overlapped = total_s(rollouts) - total_s(alone) > _NEARLY * total_s(rollouts)
        made = without(rollouts if overlapped else alone, judged)
        seconds["generation"] = between(made, edges)
        seconds["reward"] = seconds["reward"] + between(judged, edges)
        if overlapped:
            seconds["wait"] = between(without(alone, judged), edges)
        tails = [between(intersection(intervals, made), edges) for intervals in few]
        seconds["tail"] = np.mean(tails, axis=0) if tails else np.zeros(len(run.steps))
        rest = np.diff(edges) - sum((seconds[n] for n in in_sum(overlapped)), np.zeros(1))
        seconds["other"] = seconds["other"] + np.maximum(rest, 0.0)
        return cls(seconds, overlapped, edges)

    def summary(self, start: int, stop: int, held_s: float, away_s: float) -> dict[str, Any]:
        """Of a mean step from ``start`` to before ``stop``: ``phases``, by name its seconds ``s``
        and their ``share`` of the step; ``overlapped``; ``bound_by``, of `phases.SIDES`. held_s,
        away_s: as of `phases.bounds`."""
        if start >= stop:
            return {"phases": {}, "overlapped": self.overlapped, "bound_by": None}
        seconds = {name: float(each[start:stop].mean()) for name, each in self.seconds.items()}
        step_s = float(np.diff(self.edges)[start:stop].mean())
        bound = bounds(seconds, overlapped=self.overlapped, held_s=held_s, away_s=away_s)
        return {
            "phases": {
                name: {"s": s, "share": s / step_s if step_s > 0 else 0.0}
                for name, s in seconds.items()
            },
            "overlapped": self.overlapped,
            "bound_by": str(bound),
        }


def _judged(run: Run, within: FloatArray) -> FloatArray:
    """The part of ``within`` in which only judges work."""
    reward = run.calls["kind"] == CALL_KINDS.index("reward")
    if not reward.any():
        return NOTHING
    asked, end = run.calls["asked_s"], run.calls["end_s"]
    others = union(
        merged(asked[~reward], end[~reward]),
        merged(run.segments["submitted_s"], run.segments["end_s"]),
    )
    judges = merged(asked[reward], end[reward])
    return intersection(within, without(judges, others))
