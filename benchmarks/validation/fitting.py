"""Fits of a few non-negative coefficients, in which the forecast is linear."""

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError

Array = NDArray[np.float64]

_ROUNDS = 40
_FLOOR = 0.005  # errors below half a percent weigh as half a percent: repeats differ by more


def fit_relative(fixed: Array, columns: Array, measured: Array) -> Array:
    """Coefficients x >= 0 with ``fixed + columns @ x`` close to ``measured``, shape (k,).

    fixed, measured: shape (n,), seconds. columns: shape (n, k), seconds per unit of a coefficient.
    Minimises the mean absolute *relative* error by reweighted non-negative least squares, so that
    no single slow case decides. Raises ScenarioError for fewer cases than coefficients.
    """
    from scipy.optimize import nnls

    if len(measured) < columns.shape[1]:
        problem = f"{len(measured)} cases cannot determine {columns.shape[1]} coefficients"
        raise ScenarioError("calibration half", problem)
    design = columns / measured[:, None]
    target = 1 - fixed / measured
    weights = np.ones(len(measured))
    coefficients = np.zeros(columns.shape[1])
    for _ in range(_ROUNDS):
        coefficients, _ = nnls(design * weights[:, None], target * weights)
        weights = 1 / np.sqrt(np.maximum(np.abs(design @ coefficients - target), _FLOOR))
    return np.asarray(coefficients)
