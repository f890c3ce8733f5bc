"""Learning curves of public runs: what they say of how fast real models learn, and whether the
prior's interval holds a set-up that it was not given.

`benchmarks/data/learning/public.csv` has their points: mean accuracy of the rollouts of some
updates, from logs that others published.
"""

import csv
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.matched import alike
from benchmarks.runner import ROOT
from rollcast.calibration.fits.learning import Fit, LearningRun
from rollcast.calibration.fits.learning_prior import fits_elsewhere, over_tasks
from rollcast.calibration.judge.learning import judge
from rollcast.simulator.learning.law import Law

CURVES = ROOT / "benchmarks" / "data" / "learning" / "public.csv"
_ANSWERS = 10_000.0  # so many tell no more of a curve than the law is held to


@cache
def table(path: Path = CURVES) -> Mapping[str, list[dict[str, str]]]:
    """Points by curve."""
    found: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault(row["curve"], []).append(row)
    return found


def curves() -> list[LearningRun]:
    """The runs; an origin is a curve, whose set-up is its policy."""
    return [_curve(points) for points in table().values()]


def set_ups() -> dict[str, list[LearningRun]]:
    """The runs by set-up."""
    found: dict[str, list[LearningRun]] = {}
    for run in curves():
        found.setdefault(run.policy, []).append(run)
    return found


def _curve(points: list[dict[str, str]]) -> LearningRun:
    def column(name: str) -> Any:
        return np.array([float(point[name]) for point in points])

    first, updates = points[0], column("updates").astype(np.int64)
    unknown = np.full(len(points), np.nan)
    return LearningRun(
        name=first["curve"],
        origin=first["curve"],
        policy=first["set_up"],
        seed=0,
        rate=1.0,
        signals=alike(
            int(updates[-1]),
            int(first["rollouts"]),
            float(first["group_size"]),
            minibatches=float(first["minibatches"]),
        ),
        updates=updates,
        accuracy=column("accuracy"),
        answers=np.minimum(column("answers"), _ANSWERS),
        right_tokens=unknown,
        wrong_tokens=unknown,
    )


def fits(tasks: Mapping[str, Fit]) -> dict[str, Fit]:
    """To the runs of each set-up. tasks: fits to ours, from which they have what no public run
    varies."""
    law = over_tasks(tasks, "")
    return _fits(tuple(law.parameters.values()), law)


def _fits(key: tuple[float, ...], law: Law) -> dict[str, Fit]:
    if key not in _FITS:
        _FITS[key] = fits_elsewhere(set_ups(), law)
    return _FITS[key]


_FITS: dict[tuple[float, ...], dict[str, Fit]] = {}  # half a minute each


def rows(tasks: dict[str, Fit]) -> list[dict[str, Any]]:
    """Of each curve: updates to half of its rise, as measured, and as the prior says that was given
    the other public set-ups alone, with its 90 % interval. tasks: fits to ours."""
    elsewhere = fits(tasks)
    found = []
    for name, runs in set_ups().items():
        others = [fitted for other, fitted in elsewhere.items() if other != name]
        law = over_tasks(tasks, "", others)
        for run in runs:
            times = [
                one for one in judge(law, run, float(run.accuracy[0]), 1.0) if one.what == "time"
            ]
            half = min(
                times, key=lambda one: abs(one.target - run.accuracy[[0, -1]].mean()), default=None
            )
            points = table()[run.name]
            figures = half and (half.target, half.measured, half.predicted, half.low, half.high)
            found.append(
                {
                    "curve": run.name,
                    "model": points[0]["model"],
                    "task": points[0]["task"],
                    "from": float(run.accuracy[0]),
                    "to": float(run.accuracy[-1]),
                    "updates": int(run.updates[-1]),
                    "speed": float(np.exp(elsewhere[name].of(run.origin)[0][0])),
                    "times": len(times),
                    "inside": sum(one.inside for one in times),
                    "half": [v if math.isfinite(v) else None for v in figures] if figures else None,
                }
            )
    return found
