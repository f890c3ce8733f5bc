"""How much a group of right and wrong answers teaches: theory, without a parameter to fit.

With advantages (reward - mean) / standard deviation, the expected push on the log-odds of a right
answer is the mean of advantage times reward over the trained rollouts, which is the standard
deviation of their rewards: 0 where all are equal, 1/2 where half are right. Its mean over groups
says what group size, selection and filter do at a given accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.plan import Selector
from rollcast.simulator.learning.signals import NO_SELECTION
from rollcast.simulator.loop.selection import MaxReward, MaxVariance, Percentile
from rollcast.simulator.workload.rewards import BetaBernoulli

FloatArray = NDArray[np.float64]
_MOST = 50.0  # groups sampled for one, at most
_LEAST_SD = 1e-4

LOG_ODDS: FloatArray = np.linspace(-7.0, 7.0, 141)
"""Of the accuracies at which the signal is tabulated, shape (141,), evenly spaced."""
ACCURACIES: FloatArray = 1.0 / (1.0 + np.exp(-LOG_ODDS))

_RULES: dict[str, Callable[[int], Selector]] = {
    "MaxVariance": MaxVariance,
    "MaxReward": MaxReward,
    "Percentile": Percentile,
}


@lru_cache(maxsize=4096)
def group_signal(
    sampled: int, trained: int, selection: str, concentration: float
) -> tuple[FloatArray, FloatArray]:
    """Expected standard deviation of the trained rewards of a group, and the share of groups where
    it is not 0, each of shape (141,) at `ACCURACIES`.

    sampled, trained: rollouts of a group, before and after selection. concentration: of the Beta
    distribution of the success probability over prompts; infinite for prompts that are all alike.
    """
    spread, mixed = _by_right(sampled, trained, selection)
    chance = _chance_of_right(sampled, concentration)
    return chance @ spread, chance @ mixed


def _by_right(sampled: int, trained: int, selection: str) -> tuple[FloatArray, FloatArray]:
    """Of the trained rewards where k of the sampled are right: standard deviation, and whether it
    is not 0, each of shape (sampled + 1,). Of a random subset, and of rules that are not known, the
    mean over subsets."""
    if trained < sampled and selection in _RULES:
        rule = _RULES[selection](trained)
        rewards = [[1.0] * k + [0.0] * (sampled - k) for k in range(sampled + 1)]
        spread = np.array([np.std([r[i] for i in rule(r, 0)]) for r in rewards])
        return spread, (spread > 0).astype(float)
    right = np.arange(trained + 1)
    spread = np.sqrt(right * (trained - right)) / max(trained, 1)
    mixed = (spread > 0).astype(float)
    if trained >= sampled:
        return spread, mixed
    from scipy.special import binom  # scipy.stats takes half a second to import

    among = np.arange(sampled + 1)[:, None]  # hypergeometric
    ways = binom(among, right) * binom(sampled - among, trained - right)
    chance = np.where(right <= among, ways, 0.0) / binom(sampled, trained)
    return chance @ spread, chance @ mixed


def _chance_of_right(sampled: int, concentration: float) -> FloatArray:
    """Probability that k of a group are right, shape (141, sampled + 1)."""
    from scipy.special import betaln, binom

    right, mean = np.arange(sampled + 1), ACCURACIES[:, None]
    if not np.isfinite(concentration):
        return np.asarray(binom(sampled, right) * mean**right * (1.0 - mean) ** (sampled - right))
    a, b = mean * concentration, (1.0 - mean) * concentration
    logs = betaln(right + a, sampled - right + b) - betaln(a, b)
    choose = -betaln(right + 1, sampled - right + 1) - np.log(sampled + 1)
    return np.asarray(np.exp(logs + choose))


def groups_needed(accuracy: FloatArray, size: int, concentration: float) -> FloatArray:
    """Groups of ``size`` to be sampled for one that is neither all right nor all wrong, in the
    shape of ``accuracy``. concentration: of the Beta distribution of the success probability over
    prompts; infinite for prompts that are all alike."""
    _, mixed = group_signal(size, size, NO_SELECTION, concentration)
    return 1.0 / np.maximum(np.interp(accuracy, ACCURACIES, mixed), 1.0 / _MOST)


def concentration_of(rewards: BetaBernoulli) -> float:
    """Of the success probability over prompts that a scenario's rewards state."""
    if rewards.between_sd < _LEAST_SD:
        return math.inf
    return rewards.mean * (1.0 - rewards.mean) / rewards.between_sd**2 - 1.0


def at_mean(rewards: BetaBernoulli, mean: float) -> BetaBernoulli:
    """The rewards at another mean, as concentrated over prompts."""
    ratio = mean * (1.0 - mean) / (rewards.mean * (1.0 - rewards.mean))
    return replace(rewards, mean=mean, between_sd=rewards.between_sd * math.sqrt(ratio))
