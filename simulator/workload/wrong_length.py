"""How much longer wrong answers are than right ones, as a correlation that a workload can draw."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from simulator.errors import ScenarioError
from simulator.workload.lengths import Component, FloatArray, LengthModel
from simulator.workload.rewards import FIELD, BetaBernoulli

# Midpoints of the unit interval, of which quantiles make nodes of equal weight.
_PROMPTS, _DIFFICULTIES, _ROLLOUTS = 60, 25, 80
_LARGEST = 0.99
_HALVINGS = 20


def correlated_by_ratio(
    rewards: BetaBernoulli, lengths: LengthModel, max_new_tokens: int
) -> BetaBernoulli:
    """The rewards whose ``wrong_to_right_length`` is met by one correlation with the length, of the
    prompt's difficulty and of the rollout's error alike; unchanged where none is asked for.

    lengths, max_new_tokens: what the answers are drawn from. Raises ScenarioError where these
    spreads reach no such ratio.
    """
    wanted = rewards.wrong_to_right_length
    if wanted is None:
        return rewards
    low, high = -_LARGEST, _LARGEST
    least, most = (_ratio(_with(rewards, c), lengths, max_new_tokens) for c in (low, high))
    if not least <= wanted <= most:
        raise ScenarioError(
            f"{FIELD}.wrong_to_right_length",
            f"is {wanted:g}, and with these lengths and rewards it lies between {least:.2f} and "
            f"{most:.2f}; widen the spreads of workload.lengths, or give another",
        )
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        below = _ratio(_with(rewards, middle), lengths, max_new_tokens) < wanted
        low, high = (middle, high) if below else (low, middle)
    return _with(rewards, 0.5 * (low + high))


def _with(rewards: BetaBernoulli, correlation: float) -> BetaBernoulli:
    return replace(
        rewards,
        length_correlation=correlation,
        difficulty_length_correlation=correlation,
        wrong_to_right_length=None,
    )


def _ratio(rewards: BetaBernoulli, lengths: LengthModel, max_new_tokens: int) -> float:
    """Mean length of wrong answers over that of right ones, by quadrature over the random effects;
    infinite where none is right."""
    total = right = right_tokens = 0.0
    for weight, component in zip(lengths.weights, lengths.components, strict=True):
        tokens, chance = _answers(rewards, component, max_new_tokens)
        ended = 1.0 - lengths.runaway  # which prompts run away says nothing of their difficulty
        total += weight * (ended * float(tokens.mean()) + lengths.runaway * max_new_tokens)
        right += weight * ended * float(chance.mean())
        right_tokens += weight * ended * float((chance * tokens).mean())
        if rewards.at_cap == "as_drawn":
            right += weight * lengths.runaway * rewards.mean
            right_tokens += weight * lengths.runaway * rewards.mean * max_new_tokens
    if not 0.0 < right < 1.0:
        return math.inf if right <= 0.0 else 0.0
    return ((total - right_tokens) / (1.0 - right)) / (right_tokens / right)


def _answers(
    rewards: BetaBernoulli, component: Component, max_new_tokens: int
) -> tuple[FloatArray, FloatArray]:
    """Length of an answer that does not run away, and the chance that it is right. Shapes
    (prompts, 1, rollouts) and (prompts, difficulties, rollouts), all of equal weight."""
    from scipy.special import ndtr, ndtri

    prompt_z, own_d = ndtri(_midpoints(_PROMPTS)), ndtri(_midpoints(_DIFFICULTIES))
    within = _midpoints(_ROLLOUTS)
    logs = component.log_length(prompt_z[:, None], within[None, :])
    with np.errstate(over="ignore"):
        tokens = np.minimum(np.exp(logs), max_new_tokens)[:, None, :]
    by_prompt = rewards.difficulty_length_correlation
    difficulty = by_prompt * prompt_z[:, None] + math.sqrt(1.0 - by_prompt**2) * own_d
    level = rewards.prompt_level(difficulty)[:, :, None]
    own = rewards.length_correlation
    with np.errstate(divide="ignore"):
        chance = ndtr((ndtri(level) - own * ndtri(within)) / math.sqrt(1.0 - own**2))
    if rewards.at_cap == "wrong":
        chance = np.where(tokens >= max_new_tokens, 0.0, chance)
    return tokens, chance


def _midpoints(count: int) -> FloatArray:
    return (np.arange(count) + 0.5) / count
