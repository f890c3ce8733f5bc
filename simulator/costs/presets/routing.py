"""How many experts of a layer a batch of tokens reaches."""

from __future__ import annotations

from functools import lru_cache
from math import exp, lgamma

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
