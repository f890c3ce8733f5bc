"""What a log says of its steps' phases, and of what bounds a step."""

from __future__ import annotations

from typing import Any

import numpy as np

from rollcast.calibration.fits.steps import Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.results.phases import PHASES, STEP_PHASES, PhaseName, bounds
from rollcast.simulator.studies.redrawn import add_phases


def columns_of(steps: Steps, name: PhaseName) -> list[str]:
    """The columns of a phase that most steps have."""
    return [column for column in STEP_PHASES[name].columns if steps.has(column)]


def said_of(log: RunLog, steps: Steps) -> dict[str, Any]:
    """The log's `simulator.results.phases.said` of its quiet steps: medians; between ``low_s`` and
    ``high_s`` are 90 % of the steps; ``bound_by_share`` is of the steps. What bounds a step is
    unknown where the log times neither the rollouts nor the wait for them."""
    logged = {name: columns_of(steps, name) for name in PHASES}
    timed = np.isfinite(steps.whole_s) & steps.quiet
    seconds = {
        name: np.nansum([steps.column(column)[timed] for column in columns], axis=0)
        for name, columns in logged.items()
        if columns
    }
    overlapped = log.overlapped
    found: dict[str, Any] = {"phases": {}, "overlapped": overlapped, "bound_by": None}
    if not seconds or not timed.any():
        return found
    whole_s = float(np.median(steps.whole_s[timed]))
    middle = {name: float(np.median(each)) for name, each in seconds.items()}
    found["phases"] = {name: {"s": s, "share": s / whole_s} for name, s in middle.items()}
    if ("wait" if overlapped else "generation") not in seconds:
        return found
    found["bound_by"] = str(bounds(middle, overlapped=overlapped))
    add_phases(found, seconds, bounds(seconds, overlapped=overlapped))
    return found
