"""The pace of rollouts that were made beside the training, from the pace of the steps.

Where trainer and rollouts overlap, the log times a wait and no generation. While the trainer waits,
steps are as long as their rollouts: the factor on decoding is the one at which a simulated run
under the same policy has the measured step. So it is where the log says nothing of the trainer.
Where it does not wait, no more can be said.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from rollcast.calibration.fits.levels import PRIOR_SD
from rollcast.calibration.fits.model import Drift, Fit
from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.judge.small_runs import SmallRun
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.workload.halving import halved

_WAITS = 0.05  # share of a step from which on the trainer waits
_STEPS, _LEAST_STEPS, _ROUNDS = 24, 8, 7
_ROLLOUTS = 6144
"""Of all simulated steps, which are fewer where they are larger."""
_WHY = {True: "rollouts overlapped training", False: "rollouts continue over several steps"}
_MOST_ROLLOUTS = 1024
"""Of a simulated step: fewer have a shorter longest response, and a slower pace would be fitted."""
_SD = 0.15
"""Of the log of the factor: a mean of a few simulated steps, and whatever the policy of the log
does that ours does not."""


def with_pace(known: Fit, steps: Steps, drift: Drift) -> Fit:
    """The fit with the pace of its rollouts, as far as the steps tell it."""
    measured = steps.median_s
    if not known.forecasts or not math.isfinite(measured):
        return known
    wait, whole = steps.median("wait_s"), steps.median("step_s")
    overlapped = bool((steps.column("overlapped") == 1).any())
    nothing = math.isnan(wait) and math.isnan(steps.median("update_s"))
    waits = not overlapped or nothing or wait > _WAITS * whole

    def simulated(factor: float) -> float:
        cost = scaled(known, factor, PRIOR_SD["decode"])
        run = SmallRun.of(known, (), cost, drift, _MOST_ROLLOUTS)
        count = max(_LEAST_STEPS, min(_STEPS, _ROLLOUTS // run.rollouts))
        return float(np.median(run.steps_s(0, count)))

    try:
        if not waits and simulated(1.0) <= 1.05 * measured:
            return known.noted(
                "the trainer does not wait for rollouts: their duration is the roofline's "
                "estimate, not measured"
            )
        low, high, rounds = -4.0, 4.0, _ROUNDS
        if known.shape == "linear" and known.coefficients["iteration_s"] < 1e-6:
            # nothing was timed: its unit is a tenth of a microsecond
            low, high, rounds = 0.0, 15.0, _ROUNDS + 4
        low, high = halved(lambda log: simulated(math.exp(log)) < measured, low, high, rounds)
    except (ScenarioError, RunError) as error:
        return known.noted(f"the run cannot be simulated ({error})")
    cost = scaled(known, math.exp((low + high) / 2), _SD)
    levels = replace(
        known.levels,
        seen={**known.levels.seen, "decode": "step_s, simulated"},
        factors={**known.levels.factors, "decode": cost["scale"]["decode"]},
        spreads={**known.levels.spreads, "decode": _SD},
    )
    return replace(known, cost=cost, levels=levels).noted(
        f"{_WHY[overlapped]}: the decode speed is the one at which a simulated run "
        "under the same policy has the measured step times"
    )


def scaled(known: Fit, factor: float, sd: float) -> dict[str, Any]:
    """``cost`` with another factor on decoding."""
    cost = dict(known.cost)
    scale = dict(cost.get("scale", {}))
    if known.shape == "linear" and factor > 100:
        linear = dict(cost["linear"])
        linear["iteration_s"] = float(f"{linear['iteration_s'] * factor:.6g}")
        cost["linear"] = linear
        factor = 1.0
    if known.opening is not None:
        iterations = known.opening.decode_s * factor / scale.get("decode", 1.0)
        scale["opening"] = {**scale["opening"], "decode_s": float(f"{iterations:.4g}")}
    scale["decode"] = float(f"{min(factor, 999.0):.4g}")
    scale["decode_sd"] = sd
    cost["scale"] = scale
    return cost
