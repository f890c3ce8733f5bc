"""Generation whose end is seen late, by a trainer that polls.

Such a log times a multiple of the pause between polls. That the figures of all steps have the mean
of their forecasts, rounded up too, tells how long generation really takes.
"""

from __future__ import annotations

import math

import numpy as np

from rollcast.calibration.fits.robust import FloatArray

_SCATTER = 0.06
"""Of generation at equal tokens, standard deviation of the log, by which what is near a look falls
on either side of it: 2 to 7 % in genuine runs of two cores."""
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(9)
_FAR, _ROUNDS = 1.5, 40
_NEAR = 0.02
"""Of the pause, by which means may differ."""


def seen(seconds: FloatArray, poll_s: float) -> FloatArray:
    """When what takes so long is found done; the same where nothing is waited for."""
    return poll_s * np.ceil(seconds / poll_s - 1e-9) if poll_s > 0 else seconds


def level(forecast: FloatArray, measured: FloatArray, poll_s: float) -> tuple[float, float]:
    """The factor on ``forecast`` under which, once it is rounded up, it has the mean of what was
    ``measured``, and the standard deviation of its log; both in seconds, shape (steps,).

    Where many factors do, as where every step ends before the first look, the one under which a
    step ends half way between two looks, as near as those come.
    """
    scatter = np.exp(_SCATTER * _NODES)
    weights = _WEIGHTS / _WEIGHTS.sum()
    wanted = float(np.mean(measured))
    usual = math.log(max(wanted - poll_s / 2, poll_s / 4) / float(np.mean(forecast)))

    def edge(mean_s: float) -> float:
        """The log of the factor from which on the mean is beyond so much."""
        low, high = usual - _FAR, usual + _FAR
        for _ in range(_ROUNDS):
            middle = (low + high) / 2
            step_s = seen(math.exp(middle) * forecast[:, None] * scatter, poll_s)
            low, high = (middle, high) if np.mean(step_s @ weights) < mean_s else (low, middle)
        return (low + high) / 2

    least, most = edge(wanted - _NEAR * poll_s), edge(wanted + _NEAR * poll_s)
    error = poll_s / math.sqrt(12 * len(measured)) / wanted
    return math.exp(min(max(usual, least), most)), math.hypot(error, (most - least) / math.sqrt(12))
