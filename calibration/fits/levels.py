"""Factors on costs by phase from what a log timed: a prior, and what the steps say against it.

Each timed figure is the sum of some phases times their factors. The median over the steps of the
log of measured over forecast, with its standard error, is held against log-normal priors about 1.
Where a figure holds one phase this is the mean of the two, weighted by precision; where it holds
several, the priors say which of them is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rollcast.calibration.fits.phases import Phases
from rollcast.calibration.fits.robust import FloatArray, fit, median_error, needed
from rollcast.calibration.fits.steps import Flags, Steps
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.results.phases import STEP_PHASES

PRIOR_SD = {
    "decode": 0.35,
    "prefill": 0.35,
    "log_prob": 0.5,
    "update": 0.5,
    "sync": 1.0,
    "switch": 0.9,
    "rest": 0.5,
}
"""How far presets are off, standard deviation of the log. Decode and prefill: 5 to 10 % on the
engine's own tables, and a host from 0.5 to 2 times the assumed; trainers: 0.45 to 1.7 between
kernels; syncs and switches: a tenth to several times (benchmarks/results/validation/validation.md,
simulator/costs/presets/spreads.yaml)."""
FLOOR = 0.02
"""What the shape of a phase is off by however many steps are seen: lengths made from a mean and a
maximum, phases one after another. Standard deviation of the log."""
_LEAST_LINE, _LEAST_RANGE = 10, 0.1
_LEAST_SLOPE = 0.6
"""Of an update's level, what grows with tokens as the forecast does: where a machine slows down
while responses get shorter, steps alone would say less."""


@dataclass(frozen=True)
class Figure:
    """Something that a log timed. names: its columns. phases: what it holds. seconds: (steps,), NaN
    where it has none."""

    name: str
    phases: tuple[str, ...]
    seconds: FloatArray


@dataclass(frozen=True)
class Levels:
    """Factors by phase, standard deviations of their logs, and the figure behind a seen phase."""

    factors: dict[str, float]
    spreads: dict[str, float]
    seen: dict[str, str]

    def less_sure(self, phases: tuple[str, ...], sd: float) -> Levels:
        """With more spread of these phases."""
        wider = {p: math.hypot(s, sd) if p in phases else s for p, s in self.spreads.items()}
        return Levels(self.factors, wider, self.seen)

    @classmethod
    def prior(cls) -> Levels:
        """Nothing was timed."""
        return cls(dict.fromkeys(PHASES, 1.0), dict(PRIOR_SD), {})


def figures(steps: Steps, overlapped: bool) -> tuple[Figure, ...]:
    """What the log timed, and which phases lie in it.

    Generation whose end a trainer sees late is taken to have ended half way between two looks.
    Where syncs and switches are not timed apart, they lie in what surrounds the engine's own time,
    in the generation that the stack says holds them, or in what remains of the step.
    """
    generation, engine = steps.column("generation_s"), steps.column("engine_s")
    measured: list[Figure] = []
    made = ["decode", "prefill"]
    moved: list[str] = []
    remaining: list[str] = []
    timed = not overlapped and steps.has("generation_s")
    sync_inside = bool((steps.column("sync_inside_generation") == 1).any())
    around = timed and steps.has("engine_s")
    for phase in ("sync", "switch"):
        if steps.has(f"{phase}_s"):
            measured.append(Figure(f"{phase}_s", (phase,), steps.column(f"{phase}_s")))
        elif around:
            moved.append(phase)
        elif phase == "switch" and steps.has("sync_s"):
            measured[0] = Figure("sync_s", ("sync", "switch"), measured[0].seconds)
        elif timed and sync_inside:
            made.append(phase)
        else:
            remaining.append(phase)
    if around:
        measured.append(Figure("engine_s", tuple(made), engine))
        if moved:
            measured.append(Figure("generation_s - engine_s", tuple(moved), generation - engine))
    elif timed:
        measured.append(Figure("generation_s", tuple(made), generation))
    grade = _sum(steps, ("log_prob_s", "reference_s", "values_s"))
    if np.isfinite(grade).any():
        measured.append(Figure("log_prob_s", ("log_prob",), grade))
    update = _sum(steps, STEP_PHASES["update"].columns)
    if np.isfinite(update).any():
        measured.append(Figure("update_s", ("update",), update))
    whole = tuple(_trusted(figure) for figure in measured) + _rest(
        steps, overlapped, measured, remaining
    )
    late_s = np.nan_to_num(steps.column("poll_s")) / 2  # on average
    return tuple(
        _trusted(replace(figure, seconds=figure.seconds - late_s))
        if figure.name == "generation_s"
        else figure
        for figure in whole
    )


def _sum(steps: Steps, names: Sequence[str]) -> FloatArray:
    columns = [steps.column(name) for name in names if steps.has(name)]
    if not columns:
        return np.full(len(steps), np.nan)
    return np.asarray(np.sum(columns, axis=0))


def _trusted(figure: Figure) -> Figure:
    with np.errstate(invalid="ignore"):
        return replace(figure, seconds=np.where(figure.seconds > 0, figure.seconds, np.nan))


def _rest(
    steps: Steps, overlapped: bool, timed: list[Figure], remaining: list[str]
) -> tuple[Figure, ...]:
    """What a step holds beside them, or all of it where nothing else was timed."""
    timed_phases = {phase for figure in timed for phase in figure.phases}
    if not np.isfinite(steps.whole_s).any() or (overlapped and not steps.has("wait_s")):
        return ()
    left = steps.whole_s - np.sum([np.nan_to_num(f.seconds) for f in timed], axis=0)
    if overlapped:
        left = left - np.nan_to_num(steps.column("wait_s"))
    rest = Figure("rest_s", ("rest",), np.maximum(left, 0.0))
    if overlapped:
        return (rest,) if "update" in timed_phases else ()
    missing = [
        phase for phase in ("decode", "prefill", "log_prob", "update") if phase not in timed_phases
    ]
    if "log_prob" in missing and {"decode", "update"} <= timed_phases:
        missing.remove("log_prob")  # a trainer without a pass of its own
    inside = (*missing, *remaining)
    if not inside:
        return (rest,)
    return (_trusted(Figure("rest of step_s" if timed_phases else "step_s", inside, left)),)


def fit_levels(forecast: Phases, timed: tuple[Figure, ...], quiet: Flags) -> Levels:
    """The factors that are likely. forecast: of the same steps, at factors of 1."""
    from scipy.optimize import least_squares

    rows = []
    for figure in timed:
        phases = [p for p in figure.phases if p != "rest" and forecast[p].max() > 0]
        kept = quiet & np.isfinite(figure.seconds) & (figure.seconds > 0)
        if figure.phases[-1] == "rest" or not phases or not kept.any():
            continue
        parts = np.array([forecast[p][kept] for p in phases])
        rows.append((phases, np.log(figure.seconds[kept]), parts, figure.name))
    free = sorted({phase for phases, *_ in rows for phase in phases}, key=PHASES.index)
    if not free:
        return Levels.prior()
    errors = [max(_error(logs - np.log(parts.sum(axis=0))), FLOOR) for _, logs, parts, _ in rows]

    def residuals(theta: FloatArray) -> FloatArray:
        by = dict(zip(free, theta, strict=True))
        penalties = [by[phase] / PRIOR_SD[phase] for phase in free]
        for (phases, logs, parts, _), error in zip(rows, errors, strict=True):
            factors = np.exp([by[phase] for phase in phases])
            penalties.append(float(np.median(logs - np.log(factors @ parts))) / error)
        return np.array(penalties)

    best = least_squares(residuals, np.zeros(len(free)), bounds=(-6.5, 6.5), x_scale=0.1)
    covariance = np.linalg.inv(best.jac.T @ best.jac)
    spreads = dict(PRIOR_SD)
    spreads.update({p: math.sqrt(covariance[i, i]) for i, p in enumerate(free)})
    factors = dict.fromkeys(PHASES, 1.0)
    factors.update({p: math.exp(best.x[i]) for i, p in enumerate(free)})
    seen = {phase: name for phases, _, _, name in rows for phase in phases}
    return Levels(factors, spreads, seen)


def fixed_update_s(forecast: Phases, timed: tuple[Figure, ...], quiet: Flags) -> float:
    """Seconds of an update that do not grow with its tokens, beyond those that the forecast has, at
    the forecast's own level; 0 where the steps do not ask for any."""
    for figure in timed:
        if figure.phases != ("update",):
            continue
        kept = quiet & np.isfinite(figure.seconds) & (figure.seconds > 0)
        forecasts = forecast["update"][kept]
        if kept.sum() < _LEAST_LINE or np.ptp(forecasts) < _LEAST_RANGE * np.median(forecasts):
            return 0.0
        terms = {"forecast": forecasts, "fixed": np.ones(len(forecasts))}
        if "fixed" not in needed(terms, figure.seconds[kept], ["fixed"]):
            return 0.0
        fitted = fit(terms, figure.seconds[kept], np.arange(len(forecasts)))
        level = float(np.median(figure.seconds[kept] / forecasts))
        slope = max(fitted["forecast"], _LEAST_SLOPE * level)
        return max(float(np.median(figure.seconds[kept] - slope * forecasts)), 0.0) / slope
    return 0.0


def _error(logs: FloatArray) -> float:
    return math.hypot(median_error(logs), FLOOR)
