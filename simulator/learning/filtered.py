"""How many groups a filter must sample for one whose rewards differ, by accuracy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.learning.group_signal import ACCURACIES, group_signal
from rollcast.simulator.learning.signals import NO_SELECTION
from rollcast.simulator.workload.rewards import BetaBernoulli

FloatArray = NDArray[np.float64]

_MOST = 50.0  # groups sampled for one, at most
_LEAST_SD = 1e-4


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
