"""The pace of rollouts that were made beside the training: from the pace of the steps.

Where trainer and rollouts overlap, the log times a wait and no generation. While the trainer waits,
steps are as long as their rollouts, so the factor on decoding is the one at which a simulated run
under the same policy has the measured step. Where it does not wait, rollouts are fast enough, and
no more can be said.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from rollcast.calibration.fits import log_responses as own_rollouts
from rollcast.calibration.fits import model as fits
from rollcast.calibration.fits.levels import PRIOR_SD
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.noise import RandomWalk
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.judge.hold_out import Judged, judged_by, split
from rollcast.calibration.judge.small_runs import SmallRun
from rollcast.calibration.logs.draft import Part
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import RunError, ScenarioError

_WAITS = 0.05
_STEPS, _ROUNDS = 24, 7
DRAWS, _NOISE, _MOST_SIMULATED = 10, 20, 12
_WHY = {True: "rollouts were made beside the training", False: "rollouts go on over several steps"}
_SD = 0.15
"""Of the log of a factor that was found so: a mean of a few simulated steps, and whatever the
policy of the log does that ours does not."""


def with_pace(known: Fit, steps: Steps, drift: Drift) -> Fit:
    """The fit with the pace of its rollouts, as far as the steps tell it."""
    if known.shape == "none" or (known.few is None and known.rollouts is None):
        return known
    wait, whole = steps.median("wait_s"), steps.median("step_s")
    measured = steps.median_s
    if not math.isfinite(measured):
        return known
    overlapped = bool((steps.column("overlapped") == 1).any())
    waits = not overlapped or (math.isfinite(wait) and wait > _WAITS * whole)

    def simulated(factor: float) -> float:
        run = SmallRun.of(known, (), scaled(known, factor, PRIOR_SD["decode"]), drift)
        return float(np.median(run.steps_s(0, _STEPS)))

    try:
        now = simulated(1.0)
        if not waits and now <= 1.05 * measured:
            note = (
                "the trainer does not wait for rollouts: how long they take is the roofline's "
                "guess, not the log's"
            )
            return replace(known, notes=(*known.notes, note))
        low, high = -4.0, 4.0
        if known.shape == "linear" and known.coefficients["iteration_s"] < 1e-6:
            low, high = 0.0, 15.0  # nothing was timed: its unit is a tenth of a microsecond
        for _ in range(_ROUNDS + (4 if high > 4 else 0)):
            middle = (low + high) / 2
            if simulated(math.exp(middle)) < measured:
                low = middle
            else:
                high = middle
    except (ScenarioError, RunError) as error:
        return replace(known, notes=(*known.notes, f"the run cannot be simulated ({error})"))
    factor = math.exp((low + high) / 2)
    note = (
        f"{_WHY[overlapped]}: the pace of decoding is the one at which a simulated run under "
        "the same policy has the measured steps"
    )
    cost = scaled(known, factor, _SD)
    levels = replace(
        known.levels,
        seen={**known.levels.seen, "decode": "step_s, simulated"},
        factors={**known.levels.factors, "decode": cost["scale"]["decode"]},
        spreads={**known.levels.spreads, "decode": _SD},
    )
    return replace(known, cost=cost, levels=levels, notes=(*known.notes, note))


def hold_out_overlapped(
    log: RunLog,
    steps: Steps,
    parts: tuple[Part, ...],
    rollouts: own_rollouts.Rollouts | None,
    drift: Drift,
) -> tuple[Judged, ...]:
    """A forecast of the last third from the first two, by simulated runs under the log's policy at
    the level to which the run's steps had moved.
    None where there are too few steps, or nothing prices them. Raises ScenarioError as
    `calibration.fits.model.fit` does."""
    halves = split(steps)
    if halves is None:
        return ()
    first, rest = halves
    known = with_pace(fits.fit(log, first, parts, rollouts, graded_too=False), first, drift)
    keep = np.flatnonzero(np.isfinite(rest.whole_s) & ~(rest.column("first") == 1))
    if known.shape == "none" or not len(keep) or (known.few is None and known.rollouts is None):
        return ()
    length = min(len(keep), _MOST_SIMULATED)
    try:
        run = SmallRun.of(known, (), known.cost, drift)
        drawn = [run.steps_s(draw, length) for draw in range(1, DRAWS + 1)]
    except (ScenarioError, RunError):
        return ()
    times = np.array(drawn)  # every step is alike: those of all draws are what one may take
    rng = np.random.default_rng(0)
    speed = RandomWalk.of(np.log(first.whole_s[first.quiet]))
    ahead = (keep + 1).tolist()
    draws = np.array(
        [
            rng.choice(row, size=len(keep)) * np.exp(speed.shift + speed.drawn(ahead, rng))
            for row in times
            for _ in range(_NOISE)
        ]
    )
    return (judged_by(draws, "predict", rest, keep, known.steps),)


def scaled(known: Fit, factor: float, sd: float) -> dict[str, Any]:
    """``cost`` with another factor on decoding."""
    cost = dict(known.cost)
    scale = dict(cost.get("scale", {}))
    if known.shape == "linear" and factor > 100:
        linear = dict(cost["linear"])
        linear["iteration_s"] = float(f"{linear['iteration_s'] * factor:.6g}")
        cost["linear"] = linear
        factor = 1.0
    scale["decode"] = float(f"{min(factor, 999.0):.4g}")
    scale["decode_sd"] = sd
    cost["scale"] = scale
    return cost
