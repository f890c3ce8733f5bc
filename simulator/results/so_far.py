"""The bubble of a running run, step by step.

A segment's idle time is known once it has ended, so idle time counts up to the *horizon*: the end
of the last step or the earliest submit of a rollout in flight.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rollcast.simulator.core.rollout import Rollout
from rollcast.simulator.core.spans import PhaseSpan, Run, Segments, Table
from rollcast.simulator.results.intervals import total_s
from rollcast.simulator.results.over_time import CAUSES, gpu_lanes


@dataclass(frozen=True, slots=True)
class Idle:
    """Idle over held GPU-seconds up to the horizon, by cause."""

    by_cause: dict[str, float]

    @property
    def fraction(self) -> float:
        """All causes together."""
        return math.fsum(self.by_cause.values())


class IdleSoFar:
    """Follows a run incrementally."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._from_s: float | None = None
        self._segments: list[tuple[Any, ...]] = []  # that reach beyond the horizon
        self._calls: list[tuple[Any, ...]] = []
        self._phases: list[PhaseSpan] = []
        self._seen = (0, 0, 0)
        self._idle_s = dict.fromkeys(CAUSES, 0.0)

    def look(self, flying: Iterable[Rollout]) -> Idle:
        """The bubble so far. flying: rollouts in flight."""
        run = self._run
        begin_s = run.start_s if self._from_s is None else self._from_s
        known_s = run.steps[-1].end_s if run.steps else run.start_s
        horizon_s = min([known_s, *(rollout.submitted_s for rollout in flying)])
        self._take_in()
        if horizon_s > begin_s:
            self._add(begin_s, horizon_s)
            self._from_s = horizon_s
            self._forget(horizon_s)
        held_s = run.shape.gpus * ((self._from_s or run.start_s) - run.start_s)
        if held_s <= 0:
            return Idle({})
        return Idle({cause: s / held_s for cause, s in self._idle_s.items() if s > 0})

    def _take_in(self) -> None:
        run, (segments, calls, phases) = self._run, self._seen
        self._segments += run.segments.rows(segments)
        self._calls += run.calls.rows(calls)
        self._phases += run.phases[phases:]
        self._seen = (len(run.segments), len(run.calls), len(run.phases))

    def _add(self, begin_s: float, horizon_s: float) -> None:
        part = Run(self._run.world, self._run.shape, start_s=begin_s, end_s=horizon_s)
        part.segments.extend(self._segments)
        part.calls.extend(self._calls)
        part.phases += self._phases
        for lane in gpu_lanes(part):
            for cause, intervals in lane.idle.items():
                self._idle_s[cause] += lane.gpus * total_s(intervals)

    def _forget(self, horizon_s: float) -> None:
        self._segments = _reaching(self._segments, Segments, horizon_s)
        self._calls = _reaching(self._calls, type(self._run.calls), horizon_s)
        self._phases = [phase for phase in self._phases if phase.end_s > horizon_s]


def _reaching(
    rows: list[tuple[Any, ...]], table: type[Table], horizon_s: float
) -> list[tuple[Any, ...]]:
    end = table.columns.index("end_s")
    return [row for row in rows if row[end] > horizon_s]


def idle_text(idle: Idle) -> str:
    """Text for a progress line: ``idle 23 % (trainer 18, stragglers 5)``."""
    parts = sorted(idle.by_cause.items(), key=lambda pair: -pair[1])
    shown = [f"{cause} {100 * share:.0f}" for cause, share in parts if share >= 0.005]
    causes = f" ({', '.join(shown)})" if shown else ""
    return f"idle {100 * idle.fraction:.0f} %{causes}"
