"""Whether the engine computes with the trainer's weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rollcast.engine.errors import EngineError


def require_close(
    engine: Sequence[Sequence[float]], trainer: Sequence[Sequence[float]], tolerance: float
) -> float:
    """The largest difference between both sides' log-probabilities. Raises EngineError above
    ``tolerance``."""
    worst = largest_difference(engine, trainer)
    if not worst <= tolerance:  # not a number is a failure too
        raise EngineError(
            f"The engine's log-probabilities differ from the trainer's by {worst:.2g} after a "
            f"weight sync; at most {tolerance:.2g} is allowed."
        )
    return worst


def largest_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """The largest absolute difference of two tables of one shape; not a number if any is."""
    rows = (np.abs(np.subtract(p, q)).max(initial=0.0) for p, q in zip(a, b, strict=True))
    return float(np.max([*rows], initial=0.0))
