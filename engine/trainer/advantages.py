"""Group-relative advantages. Plain floats."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite, sqrt

from rollcast.engine.options import GRPO_EPSILON


def group_advantages(
    rewards: Sequence[float],
    baseline_rewards: Sequence[float] | None = None,
    *,
    epsilon: float = GRPO_EPSILON,
    divide_by_std: bool = True,
) -> list[float]:
    """``(reward - mean) / (std + epsilon)`` of one group, as in GRPO (arXiv 2402.03300).

    Mean and standard deviation (ddof 1; 0 for fewer than two) are of ``baseline_rewards``: of the
    kept rewards where advantages come after selection (PODS' default), of the whole group where
    before; None: ``rewards``. ``divide_by_std=False`` leaves out the division. Raises ValueError on
    an empty baseline or a reward that is not finite.
    """
    baseline = rewards if baseline_rewards is None else baseline_rewards
    if not baseline:
        raise ValueError("a group needs at least one baseline reward")
    if not all(isfinite(reward) for reward in (*rewards, *baseline)):
        raise ValueError("every reward must be a finite number")
    # The mean of equal rewards is exact, so that their advantages are exactly 0.
    equal = min(baseline) == max(baseline)
    mean = baseline[0] if equal else fsum(baseline) / len(baseline)
    scale = 1.0
    if divide_by_std:
        spread = fsum((reward - mean) ** 2 for reward in baseline)
        scale = sqrt(spread / (len(baseline) - 1)) + epsilon if len(baseline) > 1 else epsilon
    return [(reward - mean) / scale for reward in rewards]
