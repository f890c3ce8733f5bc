"""Accuracy over hours, and time, updates and dollars to a target, of one run or of several.

Draws of the law's parameters meet the draws of the step's time. Both are alike for all policies, so
that a comparison is surer than either of its sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.answer import Progress, unreached
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.drawn import ends

FloatArray = NDArray[np.float64]

POINTS = 49  # of a curve
_BEYOND, _FAR = 1.15, 3.0
"""A curve ends there: in times to the target that all but few draws have reached, and at the law's
parameters."""


class Ran(Protocol):
    """A result, as `simulator.studies.simulate` makes it."""

    @property
    def scenario(self) -> Scenario:
        """What was run."""

    @property
    def summary(self) -> dict[str, Any]:
        """Its figures."""

    @property
    def progress(self) -> Progress | str | None:
        """Its accuracy, or why the law abstains; None without a law."""


def add_learning(
    results: Mapping[str, Ran], factors: Mapping[str, FloatArray] | None = None
) -> None:
    """Adds ``learning`` to the summaries of runs whose scenario has a law (`learned`). factors:
    draws of the step's time over its own, by policy, shape (any,); 1 by default. The first run is
    the baseline of the others: ``sooner`` is the share of draws in which a run reaches the target
    before it, ties counting half."""
    base: Times | None = None
    for place, (name, result) in enumerate(results.items()):
        learning, progress = result.scenario.learning, result.progress
        if learning is None or progress is None:
            continue
        if isinstance(progress, str):
            result.summary["learning"] = {**_law(learning), "abstains": progress}
            continue
        drawn = np.ones(1) if factors is None else factors[name]
        times = Times.of(progress, learning, np.resize(drawn, len(progress.drawn)))
        told = learned(result.scenario, progress, learning, times)
        if place == 0:
            base = times
        elif base is not None and _measured(learning):
            told |= against(times, base)
        result.summary["learning"] = told


def sooner(hours: FloatArray, base: FloatArray) -> float:
    """The share of draws in which ``hours`` are fewer than ``base``; ties count half."""
    return float(np.mean((hours < base) + 0.5 * (hours == base)))


def against(times: Times, base: Times) -> dict[str, float | None]:
    """Of a run beside the baseline: ``sooner``, and ``speedup``, the baseline's hours to the target
    over its own, with the ends of its 90 % interval; None for what is infinite or unknown."""
    both = np.isinf(times.hours) & np.isinf(base.hours)
    ratios = np.where(both, 1.0, base.hours / np.where(both, 1.0, times.hours))
    own = base.own_hours / times.own_hours if math.isfinite(times.own_hours) else math.nan
    low, high = ends(ratios).tolist()
    values = (own, min(low, own), max(high, own))
    keys = ("speedup", "speedup_low", "speedup_high")
    return {
        **{k: v if math.isfinite(v) else None for k, v in zip(keys, values, strict=True)},
        "sooner": sooner(times.hours, base.hours),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Times:
    """Up to the target, infinite where it is not reached: updates and hours at the law's own
    parameters, and by draw, shape (draws,). factors: on the step's time, by draw."""

    own_updates: float
    own_hours: float
    updates: FloatArray
    hours: FloatArray
    factors: FloatArray

    @classmethod
    def of(cls, progress: Progress, learning: Learning, factors: FloatArray) -> Times:
        """Of a run; without a target, none is reached."""
        if learning.target is None:
            never = np.full(len(factors), np.inf)
            return cls(math.inf, math.inf, never, never, factors)
        own, drawn = progress.updates_to(learning.target)
        return cls(
            own,
            float(progress.hours_after(own)),
            drawn,
            progress.drawn_hours_after(drawn) * factors,
            factors,
        )


def learned(
    scenario: Scenario, progress: Progress, learning: Learning, times: Times
) -> dict[str, Any]:
    """What is said of a run's learning, as JSON types.

    law, whether it is of the user's ``own`` runs, accuracy (at the start), target. With a target:
    updates, hours, gpu_hours and usd to it, their 90 % intervals (``_low``, ``_high``; None: beyond
    the updates that were looked at) and ``reached``, the share of draws that reach it. ``note``:
    why there is no such figure. ``curve``: accuracy and its 90 % band by ``hours``. Without a
    target: ``after``, its end.
    """
    told: dict[str, Any] = _law(learning)
    priced = scenario.usd_per_gpu_hour
    if learning.target is not None:
        told["reached"] = float(np.mean(np.isfinite(times.updates)))
        looked = progress.updates
        note = unreached(learning, times.own_updates, times.updates, looked)
        if note:
            told["note"] = note
        gpus = scenario.shape.held_gpus
        measured = _measured(learning)
        for name, own, drawn, unit in (
            ("updates", times.own_updates, times.updates, 1.0),
            ("hours", times.own_hours, times.hours, 1.0),
            ("gpu_hours", times.own_hours, times.hours, float(gpus)),
            ("usd", times.own_hours, times.hours, None if priced is None else priced * gpus),
        ):
            if unit is not None:
                values = _around(own, drawn, unit) if measured else (None, None, None)
                keys = (name, f"{name}_low", f"{name}_high")
                told |= dict(zip(keys, values, strict=True))
    curve = told["curve"] = _curve(progress, times)
    if learning.target is None:
        last = {name: values[-1] for name, values in curve.items()}
        told["after"] = {"updates": progress.updates, **last}
    return told


def _law(learning: Learning) -> dict[str, Any]:
    return {
        "law": learning.law.source,
        "own": learning.own,
        "accuracy": learning.start,
        "target": learning.target,
    }


def _measured(learning: Learning) -> bool:
    """Whether runs that the law was fitted to reached the target."""
    return learning.target is not None and learning.target <= learning.law.domain.reached


def _around(
    own: float, drawn: FloatArray, unit: float
) -> tuple[float | None, float | None, float | None]:
    low, high = ends(drawn).tolist()
    values = (own, min(low, own), max(high, own))
    own_, low_, high_ = (unit * value if math.isfinite(value) else None for value in values)
    return own_, low_, high_


def _curve(progress: Progress, times: Times) -> dict[str, list[float]]:
    """Accuracy on a grid of hours, up to a little beyond the target."""
    last = progress.seconds[-1] / 3600
    high = float(ends(times.hours)[1])
    grid = np.linspace(0.0, min(last, _BEYOND * high, _FAR * times.own_hours), POINTS)
    accuracy, drawn = progress.at_hours(grid, times.factors)
    low, high_ = ends(drawn)
    return {
        "hours": grid.tolist(),
        "accuracy": accuracy.tolist(),
        "low": np.minimum(low, accuracy).tolist(),
        "high": np.maximum(high_, accuracy).tolist(),
    }
