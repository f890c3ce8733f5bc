"""What rollouts earn, and how that hangs on their length.

A prompt has a difficulty d and a rollout an error e, both standard normal. Lengths enter through a
Gaussian copula: ``d`` correlates with the prompt's length effect (hard prompts run longer) and
``e`` with the rollout's (wrong answers run longer). Since d and e stay standard normal whatever the
correlations, so do the rewards' mean and spread. A response that the cap cuts short is not graded
differently: its reward follows its random effects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.fields import Fields

FloatArray = NDArray[np.float64]

FIELD = "workload.rewards"

# A spread of success probabilities that no run could tell from none.
_NO_SPREAD = 1e-4


class RewardModel(Protocol):
    """Rewards from difficulty and error, both standard normal; larger is worse."""

    @property
    def length_correlation(self) -> float:
        """Correlation of a rollout's error with its length effect within the prompt."""
        ...

    @property
    def difficulty_length_correlation(self) -> float:
        """Correlation of a prompt's difficulty with its length effect."""
        ...

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """What the difficulty means: the expected reward of each prompt."""
        ...

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """Reward of each rollout; ``level`` broadcasts against ``error``."""
        ...


@dataclass(frozen=True, slots=True)
class BetaBernoulli:
    """Reward 1 for a right answer, else 0; each prompt's success probability is Beta.

    mean, between_sd: of the success probability over prompts.
    """

    mean: float
    between_sd: float
    length_correlation: float = 0.0
    difficulty_length_correlation: float = 0.0

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """Success probability of each prompt."""
        if self.between_sd < _NO_SPREAD:
            return np.full_like(difficulty, self.mean)
        from scipy.special import betaincinv, ndtr

        certainty = self.mean * (1.0 - self.mean) / self.between_sd**2 - 1.0
        a, b = self.mean * certainty, (1.0 - self.mean) * certainty
        return np.asarray(betaincinv(a, b, ndtr(-difficulty)))

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """1.0 where the error stays below the prompt's success probability."""
        from scipy.special import ndtr

        return np.asarray(ndtr(error) < level, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class NormalReward:
    """A real-valued reward: normal between prompts and within them."""

    mean: float
    between_sd: float
    within_sd: float
    length_correlation: float = 0.0
    difficulty_length_correlation: float = 0.0

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """Mean reward of each prompt."""
        return self.mean - self.between_sd * difficulty

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """The prompt's level less the rollout's error."""
        return level - self.within_sd * error


@dataclass(frozen=True, slots=True)
class ConstantReward:
    """The same reward for every rollout."""

    value: float = 0.0
    length_correlation: float = 0.0
    difficulty_length_correlation: float = 0.0

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """The value, for each prompt."""
        return np.full_like(difficulty, self.value)

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """The value, for each rollout."""
        return np.full_like(error, self.value)


_CORRELATIONS = ("length_correlation", "difficulty_length_correlation")
_KEYS = {
    "beta_bernoulli": ("family", "mean", "between_sd", *_CORRELATIONS),
    "normal": ("family", "mean", "between_sd", "within_sd", *_CORRELATIONS),
    "constant": ("family", "value"),
}


def correlated(correlation: float, known: FloatArray, fresh: FloatArray) -> FloatArray:
    """A standard normal that correlates with ``known``, from an independent ``fresh`` one."""
    return correlation * known + math.sqrt(1.0 - correlation * correlation) * fresh


def rewards_from_spec(spec: object) -> RewardModel:
    """The reward model of a scenario's ``workload.rewards``. Raises ScenarioError."""
    every_key = {key for keys in _KEYS.values() for key in keys}
    family = Fields(spec, FIELD, every_key).choice("family", _KEYS)
    fields = Fields(spec, FIELD, _KEYS[family])
    if family == "constant":
        return ConstantReward(fields.number("value", 0.0, minimum=-math.inf))
    rollout = fields.number("length_correlation", 0.0, minimum=-1.0, maximum=1.0)
    prompt = fields.number("difficulty_length_correlation", 0.0, minimum=-1.0, maximum=1.0)
    if family == "normal":
        return NormalReward(
            fields.number("mean", minimum=-math.inf),
            fields.number("between_sd", 0.0),
            fields.number("within_sd"),
            rollout,
            prompt,
        )
    mean = fields.number("mean", maximum=1.0)
    between_sd = fields.number("between_sd", 0.0)
    limit = math.sqrt(mean * (1.0 - mean))
    if between_sd > 0.0 and between_sd >= limit:
        raise ScenarioError(
            f"{FIELD}.between_sd",
            f"a success probability with mean {mean:g} has a standard deviation below {limit:.3g} "
            f"(sqrt(mean * (1 - mean))), got {between_sd:g}",
        )
    return BetaBernoulli(mean, between_sd, rollout, prompt)
