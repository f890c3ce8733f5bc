"""The phases of an RL step: one list, what belongs to each, and which of them bounds a step.

Simulated runs, real runs and imported logs are told in these phases. In a run whose rollouts and
training take turns, all phases but `TAIL` and ``wait`` add up to a step. Where rollouts are made
beside the training, ``generation`` goes on beside the trainer's phases, and with ``wait`` in its
place they add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rollcast.simulator.core.rollout import CALL_KINDS
from rollcast.simulator.core.spans import Run
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
from rollcast.simulator.values.yaml_file import read_yaml

PhaseName = Literal[
    "generation",
    "tail",
    "reward",
    "log_prob",
    "reference",
    "values",
    "update",
    "optimiser",
    "sync",
    "switch",
    "wait",
    "other",
]
Side = Literal["generation", "environment", "reward", "trainer", "sync", "other"]
"""What a step can be bound by."""
SIDE_WORDS: Mapping[Side, str] = {
    "generation": "generation",
    "environment": "environments",
    "reward": "rewards",
    "trainer": "the trainer",
    "sync": "syncs and switches",
    "other": "everything else",
}
TAIL: PhaseName = "tail"
"""A part of ``generation``, in no sum."""
SAID = ("phases", "overlapped", "bound_by", "bound_by_share")
TOLD = 0.05  # least share of the draws in which a side bounds the step that a sentence tells
MOSTLY = 0.9
"""Share of the time for which a trainer works that bounds a step beside which rollouts are made."""


@dataclass(frozen=True, slots=True)
class StepPhase:
    """An entry of ``phases.yaml``, which says what each is."""

    words: str
    meaning: str
    kinds: Sequence[str] = ()
    columns: Sequence[str] = ()
    side: Side | None = "trainer"


PHASES: tuple[PhaseName, ...] = get_args(PhaseName)
_FILE = read_yaml(Path(__file__).with_name("phases.yaml"))
STEP_PHASES: Mapping[PhaseName, StepPhase] = {name: StepPhase(**_FILE[name]) for name in PHASES}
PHASE_COLUMNS: Mapping[PhaseName, str] = {name: f"phases_{name}_s" for name in PHASES}
"""Of our own tables."""
SIDES: tuple[Side, ...] = get_args(Side)

_OF_KIND: Mapping[str, PhaseName] = {
    kind: name for name, phase in STEP_PHASES.items() for kind in phase.kinds
}
OF_COLUMN: Mapping[str, PhaseName] = {
    column: name for name, phase in STEP_PHASES.items() for column in phase.columns
}
"""The phase of a column of a log's steps."""
GRADES: tuple[str, ...] = ("log_prob", "reference", "values", "reward")
"""Phases, and kinds of spans, of forward passes over the batch before the update."""


def phase_of(kind: str) -> PhaseName:
    """The phase of a span; a kind that only a user's cost model knows is of the update."""
    return _OF_KIND.get(kind, "update")


def in_sum(overlapped: bool) -> tuple[PhaseName, ...]:
    """The phases that add up to a step. overlapped: whether rollouts are made beside training."""
    left_out = (TAIL, "generation" if overlapped else "wait")
    return tuple(name for name in PHASES if name not in left_out)


def bounds(
    seconds: Mapping[PhaseName, ArrayLike],
    *,
    overlapped: bool = False,
    held_s: ArrayLike | None = None,
    away_s: ArrayLike = 0.0,
) -> NDArray[np.str_]:
    """What bounds a step, of `SIDES`, shape as ``seconds``, by phase; absent ones take none.

    In turns, it is the side that takes longest. Where rollouts are made beside the training it is
    decided by who waits for whom: the rollouts bound where the trainer waits for them, for more
    than it works at most (`MOSTLY`), and longer than they wait for the trainer.

    held_s: for which the replicas wait for the trainer; None: not known. away_s: of ``generation``,
    for which all rollouts are in their environments.
    """
    phases = {name: np.asarray(value, dtype=float) for name, value in seconds.items()}
    shape = np.broadcast_shapes(*(value.shape for value in phases.values()))
    zero = np.zeros(shape)
    sides: dict[str, NDArray[np.float64]] = dict.fromkeys(SIDES, zero)
    for name, value in phases.items():
        side = STEP_PHASES[name].side
        if side is not None:
            sides[side] = sides[side] + value
    away = np.minimum(np.asarray(away_s, dtype=float) + zero, sides["generation"])
    sides |= {"generation": sides["generation"] - away, "environment": away}
    longest = _longest(sides, SIDES)
    if not overlapped:
        return longest
    waited = phases.get("wait", zero)
    step_s = sum((phases.get(name, zero) for name in in_sum(True)), zero)
    rolls = waited > (1.0 - MOSTLY) * step_s
    if held_s is not None:
        rolls &= waited > np.asarray(held_s, dtype=float)
    theirs = ("generation", "environment")
    others = tuple(side for side in SIDES if side not in theirs)
    return np.where(rolls, _longest(sides, theirs), _longest(sides, others))


def _longest(sides: Mapping[str, NDArray[np.float64]], names: Sequence[str]) -> NDArray[np.str_]:
    """Of these sides, the longest; the first of equals."""
    place = np.argmax([sides[name] for name in names], axis=0)
    return np.asarray(np.array(names)[place])


def said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Of a run's figures, those of its steps' phases (`by_phase.ByPhase.summary`); with draws also
    ``bound_by_share`` and the phases' intervals."""
    return {key: values[key] for key in SAID if key in values}


def bound_text(values: Mapping[str, Any], of: str = "draws") -> str:
    """What bounds a step, as a sentence; empty where nothing is known of it. values: `said`. of:
    what the shares are of."""
    side = values["bound_by"]
    if side is None:
        return ""
    seconds = {name: phase["s"] for name, phase in values["phases"].items()}
    tail = side == "generation" and seconds.get(TAIL, 0.0) > 0.5 * seconds.get("generation", 0.0)
    words = f"{SIDE_WORDS[side]}{', mostly its tail,' if tail else ''}"
    shares = values.get("bound_by_share")
    if not shares:
        return f"A step is bound by {words.rstrip(',')}."
    told = sorted(
        (item for item in shares.items() if item[0] == side or item[1] >= TOLD),
        key=lambda item: -item[1],
    )
    parts = [
        f"by {words if other == side else SIDE_WORDS[other]} in "
        f"{f'{100 * share:.0f} %' if share < 1.0 else 'all'}"
        for other, share in told
    ]
    parts[0] += f" of {of}" if told[0][1] < 1.0 else f" {of}"
    return f"A step is bound {', '.join(parts)}."


def bound_cell(values: Mapping[str, Any]) -> str | None:
    """What bounds a step, in a table's cell; the share of the draws in which it does, below."""
    side = values["bound_by"]
    share = (values.get("bound_by_share") or {}).get(side)
    return side if share is None else f"{side}\n{100 * share:.0f} %"


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
        """few: `simulator.results.over_time.underfilled_intervals`, whose mean is the tail; it is 0
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
