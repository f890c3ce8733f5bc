"""Steps that something outside of the loop made far longer than those around them: a pause of the
machine, a checkpoint, a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.logs.columns import SECONDS
from rollcast.simulator.results.text import seconds

if TYPE_CHECKING:
    import pandas as pd

TIMES = 30.0
"""Times the median of its neighbours from which on a step is none of the run's own, unless it has
as many times their tokens."""
_AROUND = 5
"""Neighbours on either side."""
_MOST_SHARE = 0.1
"""Of the steps; where more are so long, they are what the run is like, such as one that validates
often, and none is set aside."""
_MOST_SHOWN = 3


def without_pauses(steps: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The steps (``steps.csv``), those after a pause without their seconds; and a sentence that
    says which and how long they were, empty where there is none."""
    taken = steps["step_s"].to_numpy(dtype=float)
    tokens = steps["mean_new_tokens"].to_numpy(dtype=float) * np.nan_to_num(
        steps["rollouts"].to_numpy(dtype=float), nan=1.0
    )
    counted = np.isfinite(taken) & (taken > 0) & (steps["first"].to_numpy(dtype=float) != 1)
    places = np.flatnonzero(counted)
    most = int(_MOST_SHARE * len(places))
    tried = enumerate(places) if most else ()
    paused = [at for number, at in tried if _paused(places, number, taken, tokens)]
    if not 0 < len(paused) <= most:
        return steps, ""
    kept = steps.copy()
    kept.loc[np.isin(np.arange(len(kept)), paused), list(SECONDS)] = np.nan
    return kept, _said(steps["step"].to_numpy()[paused], taken[paused], len(places))


def _said(number: NDArray[np.int64], taken: NDArray[np.float64], among: int) -> str:
    """Which steps were set aside, of how many."""
    shown = [f"{one} ({seconds(s)})" for one, s in zip(number, taken, strict=True)]
    more = f" and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    cause = "as after a pause, a checkpoint or a restart"
    rest = "fits and forecasts do not count"
    if len(shown) == 1:
        long = f"lasted more than {TIMES:g} times the steps around it"
        return f"set aside: step {shown[0]} {long}, {cause}; {rest} its time"
    return (
        f"set aside: {len(shown)} of {among} steps, {seconds(float(taken.sum()))} together, lasted "
        f"more than {TIMES:g} times those around them, {cause}: {', '.join(shown[:_MOST_SHOWN])}"
        f"{more}; {rest} their time"
    )


def _paused(
    places: NDArray[np.int64],
    number: int,
    taken: NDArray[np.float64],
    tokens: NDArray[np.float64],
) -> bool:
    """Whether the step at ``places[number]`` was far longer than those around it, at their
    tokens."""
    around = np.r_[places[max(number - _AROUND, 0) : number], places[number + 1 :][:_AROUND]]
    at = places[number]
    known = tokens[around][tokens[around] > 0]
    longer = tokens[at] / np.median(known) if len(known) and tokens[at] > 0 else 1.0
    return bool(taken[at] > TIMES * np.median(taken[around]) * max(longer, 1.0))
