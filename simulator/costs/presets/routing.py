"""How many experts of a layer a batch of tokens reaches, and how unevenly GPUs share them."""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma, log, sqrt

SKEW_SOURCE = (
    "measured grouped products with loads of a power law of 1.0 to 1.2, as aiconfigurator 0.12.0 "
    "takes for traffic, reach as many experts as a skew of 1"
)


@lru_cache(maxsize=65_536)
def experts_touched(experts: int, chosen: int, skew: float, tokens: float) -> float:
    """Expected distinct experts of a layer that ``tokens`` tokens reach, of each ``chosen``.

    The chance q of an expert is Beta distributed with mean m = chosen / experts and standard
    deviation ``skew`` m (at most sqrt(0.9 (1/m - 1)) m): the mean of ``1 - (1 - q)^n`` has a closed
    form.
    """
    mean = chosen / experts
    variance = min(skew * skew, 0.9 * (1 / mean - 1))
    if variance < 1e-6:
        missed: float = (1.0 - mean) ** tokens
    else:
        total = (1 / mean - 1) / variance - 1
        rest = total * (1 - mean)
        missed = exp(lgamma(rest + tokens) + lgamma(total) - lgamma(rest) - lgamma(total + tokens))
    return experts * (1.0 - min(missed, 1.0))


def busiest_share(experts: int, groups: int, skew: float) -> float:
    """Load of the busiest of ``groups`` that share a layer's experts evenly, over the mean: of as
    many normal loads the expected largest, each the sum of its experts'."""
    if not experts or groups == 1:
        return 1.0
    deviation = skew / sqrt(max(1.0, experts / groups))
    return 1.0 + deviation * sqrt(2 * log(groups))
