"""Responses of a run's figures to its inputs, by short runs under common random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.results.phases import ByPhase, PhaseName
from rollcast.simulator.runs.drive import drive
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.redrawn import DRIFT, drift_of, lengths_drawn
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.chance import Levels
from rollcast.simulator.workload.synthetic import SyntheticWorkload

FloatArray = NDArray[np.float64]
OnStep = Callable[[StepRecord], None] | None

LEVEL = 1.5  # standard deviations by which an input of the lengths is varied
MEAN = "lengths/mean_tokens"
"""The input that is no small change, on either side: a mean that is a guess."""
Kind = Literal["alone", "carried", "beside"]
"""Of steps: independent; carrying work over; or overlapping."""

LEAST_STEPS: Mapping[Kind, int] = {"alone": 1, "carried": 4, "beside": 5}  # steps of a short run
_SETTLES = 2  # the first steps of a run that carries or overlaps, which are unlike the others


@dataclass(frozen=True, slots=True)
class Sums:
    """Totals over some steps: seconds of steps, rollout phases and the trainer's passes; tokens."""

    step_s: float
    rollout_s: float
    passes_s: float
    tokens: float

    def over(self, base: Sums) -> Sums:
        """Each figure as a ratio; 1 for zeros."""
        return Sums(
            *(
                _ratio(getattr(self, figure.name), getattr(base, figure.name))
                for figure in fields(Sums)
            )
        )


FIGURES = tuple(figure.name for figure in fields(Sums))
PASSES: tuple[PhaseName, ...] = ("log_prob", "reference", "values", "reward", "update")
"""Phases that go with a batch's tokens."""


def figures_of(run: Run, by: ByPhase | None = None) -> FloatArray:
    """`FIGURES` by step, shape (steps, figures). by: of the run, if known."""
    records = run.steps
    seconds = (by or ByPhase.of(run)).seconds
    return np.column_stack(
        [
            [record.step_s for record in records],
            [record.rollout_s for record in records],
            sum(seconds[name] for name in PASSES),
            [float(record.generated_tokens) for record in records],
        ]
    )


def sums(rows: FloatArray) -> Sums:
    """Over steps of `figures_of`."""
    return Sums(*rows.sum(axis=0).tolist())


def _ratio(value: float, base: float) -> float:
    return value / base if base > 0 and value > 0 else 1.0


def settled(rows: FloatArray, kind: Kind) -> FloatArray:
    """Of `figures_of`, the steps that are like later ones: without the first of a run that carries
    over, and the last of an overlapping one."""
    count = len(rows)
    first = min(_SETTLES, count // 2) if kind != "alone" else 0
    last = count - 1 if kind == "beside" and count > first + 1 else count
    return rows[first:last]


def kind_of(records: Sequence[StepRecord]) -> Kind:
    """How the steps of a run hang together."""
    if not in_turns(records):
        return "beside"
    carried = any(record.resumed_groups or record.buffered_groups for record in records)
    return "carried" if carried else "alone"


def widest(kinds: Iterable[Kind]) -> Kind:
    """The kind with the fewest settled steps."""
    return max(kinds, key=list(LEAST_STEPS).index)


def in_turns(records: Sequence[StepRecord]) -> bool:
    """Whether rollouts, updates, syncs and switches follow one another: all of them together take
    no longer than the steps."""
    whole = math.fsum(record.step_s for record in records)
    parts = math.fsum(
        record.rollout_s + record.train_s + record.sync_s + record.switch_s for record in records
    )
    return parts <= 1.01 * whole


def short_run(scenario: Scenario, steps: int, on_step: OnStep = None) -> FloatArray:
    """`figures_of` the first steps of a scenario's run."""
    return figures_of(drive(scenario, scenario.world(), steps, on_step))


def length_inputs(scenario: Scenario) -> list[str]:
    """What of the lengths is drawn, by name."""
    asked = Levels()
    lengths_drawn(scenario.raw, asked)
    return list(asked.names)


@dataclass(frozen=True, slots=True)
class Quadratic:
    """The log of a ratio, ``slope z + bend z^2``, by figure of `FIGURES`."""

    slope: Mapping[str, float]
    bend: Mapping[str, float]

    def log(self, figure: str, z: FloatArray) -> FloatArray:
        """At levels z, standard deviations."""
        return self.slope[figure] * z + self.bend[figure] * z * z

    @classmethod
    def through(cls, low: Sums | None, high: Sums | None) -> Quadratic:
        """The quadratic through 1 at 0 and through the ratios at -`LEVEL` and `LEVEL`; linear if
        one is missing, flat without both."""
        slope, bend = {}, {}
        for figure in FIGURES:
            down, up = (
                None if value is None else float(np.log(getattr(value, figure)))
                for value in (low, high)
            )
            if down is None:
                down = 0.0 if up is None else -up
            if up is None:
                up = -down
            slope[figure] = (up - down) / (2 * LEVEL)
            bend[figure] = (up + down) / (2 * LEVEL**2)
        return cls(slope, bend)


@dataclass(frozen=True, slots=True)
class Responses:
    """Quadratics by input. left_out: inputs that could not be varied."""

    lengths: Mapping[str, Quadratic]
    left_out: tuple[str, ...] = ()


def respond(
    scenario: Scenario,
    records: Sequence[StepRecord],
    rows: FloatArray,
    rollouts: int,
    on_step: OnStep = None,
    alike: Kind | None = None,
) -> Responses:
    """Varies the length inputs of a run.

    records, rows: of the run, and `figures_of` it. rollouts: budget of the short runs. alike: kind
    of steps to count; the run's by default. Leaves out what cannot run.
    """
    inputs = length_inputs(scenario)
    kind = alike or kind_of(records)
    per_step = max(rollouts_of(records), 1)
    least = LEAST_STEPS[kind]
    few = per_step * least * 2 * len(inputs) > rollouts
    levels = {name: (LEVEL,) if few and name != MEAN else (-LEVEL, LEVEL) for name in inputs}
    tries = sum(map(len, levels.values()))
    if not tries:
        return Responses({})
    steps = max(min(rollouts // (per_step * tries), len(records)), least)
    left_out: list[str] = []

    def tried(name: str, changed: Callable[[], Scenario]) -> Sums | None:
        try:
            changed_rows = short_run(changed(), steps, on_step)
        except RollcastError:
            left_out.append(name)
            return None
        return sums(settled(changed_rows, kind)).over(base)

    known = kind != "beside" and steps <= len(records)
    base = sums(settled(rows[:steps] if known else short_run(scenario, steps, on_step), kind))
    lengths = {}
    for name in inputs:
        low, high = (
            tried(name, partial(longer, scenario, name, z)) if z in levels[name] else None
            for z in (-LEVEL, LEVEL)
        )
        lengths[name] = Quadratic.through(low, high)
    return Responses(lengths, tuple(dict.fromkeys(left_out)))


def least_work(records: Sequence[StepRecord], inputs: Sequence[str], kind: Kind) -> int:
    """The least rollouts that `respond` takes."""
    tries = len(inputs) + (MEAN in inputs) + (kind == "beside" and bool(inputs))
    return rollouts_of(records) * LEAST_STEPS[kind] * tries


def rollouts_of(records: Sequence[StepRecord]) -> int:
    """Mean rollouts that a step launches or resumes."""
    count = sum(
        (record.launched_groups + record.resumed_groups) * record.group_size for record in records
    )
    return round(count / max(len(records), 1))


def longer(scenario: Scenario, name: str, z: float) -> Scenario:
    """The scenario with a length input at level z; a drift as its mean effect over the run."""
    raw = lengths_drawn(scenario.raw, Levels({name: z}))
    workload = scenario.workload
    if name == DRIFT and isinstance(workload, SyntheticWorkload):
        further = drift_of(raw) - drift_of(scenario.raw)
        factor = float(np.mean(np.exp(further * np.arange(scenario.steps))))
        return replace(scenario, workload=workload.scaled(factor))
    return replace(scenario, workload=from_raw(raw).workload)
