"""Rewards, and how they depend on length.

A prompt has a difficulty d and a rollout an error e, both standard normal; by a Gaussian copula d
correlates with the prompt's length effect and e with the rollout's. The correlations change neither
mean nor spread of the rewards of responses that end. An answer cut at the cap is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.values import ANY, NOT_NEGATIVE, SHARE, Between, Doc, Options, take

FloatArray = NDArray[np.float64]

FIELD = "workload.rewards"

# A spread of success probabilities that no run could tell from none.
_NO_SPREAD = 1e-4

_OWN = Doc(
    "correlation of wrong answers with longer responses, within a prompt", unit="correlation"
)
_PROMPTS = Doc("correlation of hard prompts with longer responses", unit="correlation")
_CORRELATION = Between(-1, 1)


class RewardModel(Protocol):
    """Rewards from difficulty and error, both standard normal; larger is worse."""

    @property
    def length_correlation(self) -> float:
        """Correlation of a rollout's error with its length effect within the prompt."""

    @property
    def difficulty_length_correlation(self) -> float:
        """Correlation of a prompt's difficulty with its length effect."""

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """What the difficulty means: the expected reward of each prompt."""

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """Reward of each rollout; ``level`` broadcasts against ``error``."""

    def graded(self, rewards: Sequence[float], tokens: Sequence[int], cap: int) -> Sequence[float]:
        """The rewards of responses of these lengths, with those cut at the cap graded as such."""


@dataclass(frozen=True, slots=True)
class BetaBernoulli(Options):
    """Reward 1 for a right answer, else 0; each prompt's success probability is Beta."""

    FIELD = FIELD
    TAG = ("family", "beta_bernoulli")

    mean: Annotated[
        float,
        SHARE,
        Doc("mean success probability of responses that are not cut off", unit="share"),
    ]
    between_sd: Annotated[
        float,
        NOT_NEGATIVE,
        Doc(
            "standard deviation of the success probability over prompts", unit="standard deviation"
        ),
    ] = 0.0
    length_correlation: Annotated[float, _CORRELATION, _OWN] = 0.0
    difficulty_length_correlation: Annotated[float, _CORRELATION, _PROMPTS] = 0.0
    at_cap: Annotated[
        Literal["wrong", "as_drawn"], Doc("grading of a response that max_new_tokens cuts off")
    ] = "wrong"

    def agree(self) -> None:
        """A success probability spreads no further than its mean lets it."""
        limit = math.sqrt(self.mean * (1.0 - self.mean))
        if self.between_sd > 0.0 and self.between_sd >= limit:
            raise self.refuse(
                "between_sd",
                f"a success probability with mean {self.mean:g} has a standard deviation below "
                f"{limit:.3g} (sqrt(mean * (1 - mean))), got {self.between_sd:g}",
            )

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

    def graded(self, rewards: Sequence[float], tokens: Sequence[int], cap: int) -> Sequence[float]:
        """0 at the cap, unless it is graded like the rest."""
        if self.at_cap == "as_drawn" or max(tokens) < cap:
            return rewards
        return [0.0 if n >= cap else r for r, n in zip(rewards, tokens, strict=True)]


@dataclass(frozen=True, slots=True)
class NormalReward(Options):
    """A real-valued reward: normal between prompts and within them."""

    FIELD = FIELD
    TAG = ("family", "normal")

    mean: Annotated[float, ANY, Doc("mean reward", unit="reward")]
    between_sd: Annotated[
        float, NOT_NEGATIVE, Doc("spread of the prompts' mean rewards", unit="reward")
    ] = 0.0
    within_sd: Annotated[
        float, NOT_NEGATIVE, Doc("spread of rewards within a prompt", unit="reward")
    ] = field(kw_only=True)
    length_correlation: Annotated[float, _CORRELATION, _OWN] = 0.0
    difficulty_length_correlation: Annotated[float, _CORRELATION, _PROMPTS] = 0.0

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """Mean reward of each prompt."""
        return self.mean - self.between_sd * difficulty

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """The prompt's level less the rollout's error."""
        return level - self.within_sd * error

    def graded(self, rewards: Sequence[float], tokens: Sequence[int], cap: int) -> Sequence[float]:
        """As drawn: a score has no wrong answer."""
        return rewards


@dataclass(frozen=True, slots=True)
class ConstantReward(Options):
    """The same reward for every rollout."""

    FIELD = FIELD
    TAG = ("family", "constant")

    value: Annotated[float, ANY, Doc("the reward", unit="reward")] = 0.0

    @property
    def length_correlation(self) -> float:
        """None."""
        return 0.0

    @property
    def difficulty_length_correlation(self) -> float:
        """None."""
        return 0.0

    def prompt_level(self, difficulty: FloatArray) -> FloatArray:
        """The value, for each prompt."""
        return np.full_like(difficulty, self.value)

    def rewards(self, level: FloatArray, error: FloatArray) -> FloatArray:
        """The value, for each rollout."""
        return np.full_like(error, self.value)

    def graded(self, rewards: Sequence[float], tokens: Sequence[int], cap: int) -> Sequence[float]:
        """As drawn."""
        return rewards


Rewards = BetaBernoulli | NormalReward | ConstantReward


def correlated(correlation: float, known: FloatArray, fresh: FloatArray) -> FloatArray:
    """A standard normal that correlates with ``known``, from an independent ``fresh`` one."""
    return correlation * known + math.sqrt(1.0 - correlation * correlation) * fresh


def rewards_from_spec(spec: object) -> RewardModel:
    """The reward model of a scenario's ``workload.rewards``. Raises ScenarioError."""
    made: Rewards = take(Rewards, spec, FIELD)
    return made
