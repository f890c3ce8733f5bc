"""Whether the engine computes with the trainer's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    gaps = (abs(x - y) for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True))
    worst = 0.0
    for gap in gaps:
        worst = gap if gap > worst or math.isnan(gap) else worst
        if math.isnan(worst):
            break
    return worst
