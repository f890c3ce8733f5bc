"""Losses and advantages against slow readings of the papers."""

import dataclasses
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.engine.options import GRPO, LOSSES, LossConfig
from rollcast.engine.trainer.advantages import group_advantages
from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.losses import LossTotals, importance_weights, policy_loss
from tests.laws import examples

CONFIGS = {**LOSSES, "grpo_token_mean": LossConfig(aggregation="token_mean")}


def batch(seed: int, rollouts: int, masked: bool = True):
    """Random examples and, concatenated, their new and old log-probabilities."""
    draw = random.Random(seed)
    examples, new, old = [], [], []
    for index in range(rollouts):
        n = draw.randrange(1, 6)
        trained = [not masked or draw.random() < 0.7 for _ in range(n)]
        examples.append(
            Example(index, [1], [0] * n, [0.0] * n, trained, draw.choice([-1.5, 0.0, 0.4, 2.0]))
        )
        old += [draw.uniform(-3, -1) for _ in range(n)]
        new += [draw.uniform(-3, -1) for _ in range(n)]
    return examples, torch.tensor(new, dtype=torch.float64), torch.tensor(old, dtype=torch.float64)


def naive(config: LossConfig, examples, new, old):
    """The formulas, one rollout and one token at a time; ``new`` may carry gradients."""
    tokens = sum(sum(e.trained) for e in examples)
    total, at = 0.0, 0
    for e in examples:
        here = [at + t for t in range(len(e.response)) if e.trained[t]]
        at += len(e.response)
        if not here:
            continue
        ratios = [(new[t] - old[t]).exp() for t in here]
        if config.sequence_ratio:
            ratios = [(sum(new[t] - old[t] for t in here) / len(here)).exp()] * len(here)
        terms = []
        for ratio in ratios:
            low, high = 1 - config.clip_low, 1 + config.clip_high
            bounded = low if ratio < low else high if ratio > high else ratio
            a, b = ratio * e.advantage, bounded * e.advantage
            terms.append(-(a if a <= b else b))
        if config.aggregation == "token_mean":
            total = total + sum(terms) / tokens
        else:
            total = total + sum(terms) / len(here) / len(examples)
    return total


@pytest.mark.parametrize("name", CONFIGS)
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10_000), rollouts=st.integers(1, 6))
def test_value_and_gradient_are_those_of_the_formula(name, seed, rollouts):
    config = CONFIGS[name]
    if config.sequence_ratio:
        config = dataclasses.replace(config, clip_low=0.2, clip_high=0.3)  # hit both regimes
    examples, new, old = batch(seed, rollouts)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    parts = policy_loss(config, LossTotals.of(examples), examples, ours, old)
    expected = naive(config, examples, theirs, old) + 0.0 * theirs.sum()
    assert parts.loss.item() == pytest.approx(expected.item(), abs=1e-12)
    parts.loss.backward()
    expected.backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_masked_token_does_nothing_however_wild(name):
    examples, new, old = batch(3, 4)
    flags = torch.tensor([f for e in examples for f in e.trained])
    assert not flags.all()
    wild = torch.where(flags, old, -5000.0)
    calm = new.clone().requires_grad_()
    loss = policy_loss(CONFIGS[name], LossTotals.of(examples), examples, calm, wild).loss
    expected = policy_loss(CONFIGS[name], LossTotals.of(examples), examples, new, old).loss
    assert loss.item() == pytest.approx(expected.item())
    loss.backward()
    assert torch.isfinite(calm.grad).all()
    assert (calm.grad[~flags] == 0).all()


@pytest.mark.parametrize("name", ["grpo", "dapo"])
@settings(max_examples=examples(40), deadline=None)
@given(seed=st.integers(0, 10_000), rollouts=st.integers(1, 6), coefficient=st.floats(0, 2))
def test_the_divergence_from_a_reference_is_added_with_a_tokens_weight(
    name, seed, rollouts, coefficient
):
    examples, new, old = batch(seed, rollouts)
    reference = batch(seed + 1, rollouts + 9)[1][: len(new)]
    if len(reference) < len(new):
        reference = new.detach() - 0.3
    config = dataclasses.replace(CONFIGS[name], kl_coefficient=coefficient)
    ours, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    totals = LossTotals.of(examples)
    parts = policy_loss(config, totals, examples, ours, old, None, reference)
    expected = naive(config, examples, theirs, old) + 0.0 * theirs.sum()
    at, away = 0, 0.0
    for e in examples:
        for t, counts in enumerate(e.trained, start=at):
            if counts:
                r = (reference[t] - theirs[t]).exp()
                term = r - 1 - r.log()
                if name == "dapo":
                    expected = expected + coefficient * term / totals.trained_tokens
                else:
                    expected = expected + coefficient * term / e.trained_tokens / len(examples)
                away += term.item()
        at += len(e.response)
    assert parts.loss.item() == pytest.approx(expected.item(), abs=1e-12)
    assert parts.divergence.item() == pytest.approx(away, abs=1e-12)
    parts.loss.backward()
    expected.backward()
    assert torch.allclose(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


def test_clip_fraction_counts_binding_terms_alone():
    up, down = math.log(1.5), math.log(0.5)
    examples = [
        Example(0, [1], [0, 0], [0.0] * 2, [True, True], 1.0),
        Example(0, [1], [0, 0], [0.0] * 2, [True, True], -1.0),
    ]
    new = torch.tensor([up, down, up, down])
    parts = policy_loss(GRPO, LossTotals.of(examples), examples, new, torch.zeros(4))
    assert int(parts.clipped) == 2  # up with A > 0, down with A < 0
    assert parts.ratio_sum.item() == pytest.approx(4.0)


def test_importance_weights_are_cut_off_and_multiply_each_token():
    trainer, sampled = torch.tensor([-1.0, -1.0, -1.0]), torch.tensor([-1.0, -1.5, -4.0])
    weights = importance_weights(trainer, sampled, 2.0)
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0])
    example = Example(0, [1], [0] * 3, sampled.tolist(), [True, True, True], 1.0)
    loss = policy_loss(GRPO, LossTotals.of([example]), [example], trainer, trainer, weights).loss
    assert loss.item() == pytest.approx(-weights.mean().item())


def test_advantages_before_and_after_selection():
    whole, kept = [0.0, 0.0, 0.0, 1.0], [0.0, 1.0]
    after = group_advantages(kept)
    before = group_advantages(kept, whole)
    assert after == pytest.approx([-math.sqrt(0.5), math.sqrt(0.5)], rel=1e-5)
    assert before == pytest.approx([-0.5, 1.5], rel=1e-5)
    assert group_advantages(kept, whole, divide_by_std=False) == [-0.25, 0.75]
    assert group_advantages([3.0]) == [0.0]
    assert group_advantages([0.1] * 3) == [0.0] * 3
    assert group_advantages([0.0, 2e-4**0.5], epsilon=1e-4)[1] == pytest.approx(0.5**0.5 / 1.01)


@pytest.mark.parametrize("rewards", [[], [math.nan, 1.0], [math.inf]])
def test_advantages_refuse_what_is_no_reward(rewards):
    with pytest.raises(ValueError, match="reward"):
        group_advantages(rewards)
