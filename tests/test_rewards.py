"""Reward models keep their mean and spread whatever they correlate with."""

import math

import numpy as np
import pytest
from scipy import stats

from rollcast.simulator.workload.lengths import LengthModel
from rollcast.simulator.workload.rewards import BetaBernoulli, NormalReward
from rollcast.simulator.workload.synthetic import SyntheticWorkload

GROUPS, SIZE = 6000, 4


def _drawn(rewards, seed=11):
    """Log lengths and rewards of many groups, both (GROUPS, SIZE)."""
    lengths = LengthModel.lognormal(1e5, 0.6, 0.3)
    workload = SyntheticWorkload(lengths, rewards, 8, 1 << 24, seed)
    groups = [workload.draw(group, SIZE) for group in range(GROUPS)]
    return np.log([g.new_tokens for g in groups]), np.array([g.rewards for g in groups])


@pytest.mark.parametrize("length_correlation", [0.0, 0.7, -1.0])
@pytest.mark.parametrize("difficulty", [0.0, 0.8])
def test_the_mean_and_spread_of_success_stay_whatever_the_correlations(
    length_correlation, difficulty
):
    model = BetaBernoulli(0.35, 0.25, length_correlation, difficulty)
    logs, rewards = _drawn(model)
    assert set(np.unique(rewards)) == {0.0, 1.0}
    group_means = rewards.mean(axis=1)
    error = group_means.std() / math.sqrt(GROUPS)
    assert abs(rewards.mean() - 0.35) < 4.0 * error
    # Var(group mean) = between + (mean (1 - mean) - between) / SIZE
    between = (group_means.var() - 0.35 * 0.65 / SIZE) / (1.0 - 1.0 / SIZE)
    if length_correlation != -1.0:  # at +-1 errors within a group are no longer what p makes them
        assert math.sqrt(between) == pytest.approx(0.25, rel=0.05)
    within = logs - logs.mean(axis=1, keepdims=True)
    longer_when_wrong = within[rewards == 0.0].mean() - within[rewards == 1.0].mean()
    prompts = np.corrcoef(logs.mean(axis=1), group_means)[0, 1]
    if length_correlation:
        assert math.copysign(1.0, longer_when_wrong) == math.copysign(1.0, length_correlation)
        assert abs(longer_when_wrong) > 0.05
    else:
        assert abs(longer_when_wrong) < 0.02
    assert prompts < -0.3 if difficulty else length_correlation or abs(prompts) < 0.05


def test_success_probabilities_are_beta_distributed():
    model = BetaBernoulli(0.3, 0.2)
    z = np.random.default_rng(2).standard_normal(20_000)
    level = model.prompt_level(z)
    certainty = 0.3 * 0.7 / 0.04 - 1.0
    reference = stats.beta(0.3 * certainty, 0.7 * certainty)
    assert stats.kstest(level, reference.cdf).pvalue > 1e-3
    assert np.all(np.diff(level[np.argsort(z)]) <= 0.0)  # harder prompts succeed less


def test_normal_rewards_have_the_stated_moments_and_fall_with_length():
    logs, rewards = _drawn(NormalReward(-2.0, 1.5, 0.6, 0.9, within_sd=0.5))
    assert rewards.mean() == pytest.approx(-2.0, abs=4 * 1.6 / math.sqrt(GROUPS))
    assert np.sqrt(rewards.var(axis=1, ddof=1).mean()) == pytest.approx(0.5, rel=0.03)
    assert rewards.mean(axis=1).std() == pytest.approx(math.hypot(1.5, 0.25), rel=0.03)
    within = [x - x.mean(axis=1, keepdims=True) for x in (logs, rewards)]
    assert np.corrcoef(within[0].ravel(), within[1].ravel())[0, 1] == pytest.approx(-0.6, abs=0.03)


def drawn(rewards, lengths, cap, groups=600, size=16):
    """Lengths and rewards, shape (groups, size)."""
    workload = SyntheticWorkload(lengths, rewards, 10, cap, seed=3)
    found = [workload.draw(group, size) for group in range(groups)]
    return (
        np.array([group.new_tokens for group in found]),
        np.array([group.rewards for group in found]),
    )


def test_an_answer_that_the_cap_cuts_short_is_wrong():
    lengths = LengthModel.lognormal(500, 0.5, 0.4, runaway=0.05)
    tokens, rewards = drawn(BetaBernoulli(0.6, 0.3), lengths, 900)
    _, as_drawn = drawn(BetaBernoulli(0.6, 0.3, at_cap="as_drawn"), lengths, 900)
    at_cap = tokens == 900
    assert 0.1 < at_cap.mean() < 0.5
    assert not rewards[at_cap].any()
    assert as_drawn[at_cap].any()
    assert (rewards[~at_cap] == as_drawn[~at_cap]).all()


def test_a_drift_moves_what_is_cut_short_and_so_what_is_wrong():
    lengths = LengthModel.lognormal(500, 0.5, 0.4, drift_per_step=0.1)
    workload = SyntheticWorkload(lengths, BetaBernoulli(1.0), 10, 2000)
    early, late = (workload.draw(5, 64, version=version) for version in (0, 14))
    assert all(early.rewards)
    assert [reward == 0 for reward in late.rewards] == [n == 2000 for n in late.new_tokens]
    assert 0 in late.rewards


def test_a_scores_reward_is_not_changed_at_the_cap():
    lengths = LengthModel.lognormal(500, 0.5, 0.4, runaway=0.5)
    tokens, rewards = drawn(NormalReward(1.0, 0.1, within_sd=0.1), lengths, 900, groups=20)
    assert rewards[tokens == 900].min() > 0
