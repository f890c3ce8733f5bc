"""Standard errors from the curvature of a likelihood at its maximum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from rollcast.calibration.fits.robust import FloatArray


def standard_errors(
    negative_log_likelihood: Callable[..., float],
    names: Sequence[str],
    at: Sequence[float],
    steps: Sequence[float],
    free: Sequence[int],
) -> dict[str, float]:
    """By name, of the parameters numbered ``free``, by central differences of ``steps``; those that
    the data say nothing of have none. The first parameter is the log of a median, and its error
    that of the median (delta method)."""
    here = np.array(at)

    def moved(*shifts: tuple[int, float]) -> float:
        theta = here.copy()
        for i, sign in shifts:
            theta[i] += sign * steps[i]
        return negative_log_likelihood(*(float(value) for value in theta))

    hessian: FloatArray = np.empty((len(free), len(free)))
    for row, i in enumerate(free):
        for column, j in enumerate(free):
            hessian[row, column] = (
                moved((i, 1), (j, 1))
                - moved((i, 1), (j, -1))
                - moved((i, -1), (j, 1))
                + moved((i, -1), (j, -1))
            ) / (4.0 * steps[i] * steps[j])
    variances = np.diag(np.linalg.pinv(hessian))
    errors = {names[i]: math.sqrt(v) for i, v in zip(free, variances, strict=True) if v > 0.0}
    if names[0] in errors:
        errors[names[0]] *= math.exp(at[0])
    return errors
