"""How many responses a step has, where a log says nothing of it but their mean length.

A mean of ``n`` whole numbers is a multiple of 1/n, so that exact means of a few steps tell ``n``:
47.25, 27.75 and 42.625 tokens are those of 8 responses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

_MOST = 4096
_FEWEST_STEPS = 8
_OFF = 0.02  # tokens of a sum
_SINGLE = 6e-8  # of it, in single precision
_COARSER = 4  # times the last printed digit


def responses_of_means(means: FloatArray) -> int | None:
    """The least number of responses that these mean lengths, shape (steps,), can be of; None where
    rounded or too few means do not tell it."""
    means = means[np.isfinite(means)]
    if len(means) < _FEWEST_STEPS:
        return None
    digits = max(
        len(np.format_float_positional(mean, trim="-").partition(".")[2]) for mean in means
    )
    most = min(_MOST, 10**digits // _COARSER)
    for count in range(1, most + 1):
        sums = means * count
        if np.all(np.abs(sums - np.rint(sums)) <= _OFF + _SINGLE * sums):
            return count
    return None
