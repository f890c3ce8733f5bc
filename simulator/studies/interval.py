"""The interval of what was drawn many times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.9  # of the intervals that are shown


def ends(draws: Sequence[float] | NDArray[np.float64], level: float = LEVEL) -> NDArray[np.float64]:
    """Ends of the interval, over the first axis, that holds one more draw with probability
    ``level``: order statistics of rank (n + 1) p."""
    tail = (1.0 - level) / 2.0
    return np.asarray(np.quantile(draws, [tail, 1.0 - tail], axis=0, method="weibull"))
