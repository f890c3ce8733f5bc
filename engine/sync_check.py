"""Whether the engine computes with the trainer's weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rollcast.engine.errors import EngineError


class Difference(NamedTuple):
    """Of both sides' log-probabilities of the same tokens, absolute, nats."""

    mean: float
    p99: float
    worst: float


def require_close(
    engine: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]], tolerance: float
) -> Difference:
    """How far both sides are apart. Raises EngineError where the mean is above ``tolerance``: these
    are other weights, while single tokens differ with the kernels."""
    found = difference(engine, trainer)
    if not found.mean <= tolerance:  # not a number is a failure too
        raise EngineError(
            f"The engine's log-probabilities differ from the trainer's by {found.mean:.2g} in the "
            f"mean after a weight sync; at most {tolerance:.2g} is allowed."
        )
    return found


def difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> Difference:
    """Of two tables of one shape; not a number if any is."""
    rows = [np.abs(np.subtract(p, q)) for p, q in zip(a, b, strict=True)]
    flat = np.concatenate([*rows, np.zeros(0)])
    if not len(flat):
        return Difference(0.0, 0.0, 0.0)
    return Difference(float(flat.mean()), float(np.percentile(flat, 99)), float(flat.max()))


def largest_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """The largest absolute difference of two tables of one shape; not a number if any is."""
    return difference(a, b).worst
