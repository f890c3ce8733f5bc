"""The selection rules, against all subsets."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.selection import (
    MaxReward,
    MaxVariance,
    Percentile,
    RandomSubset,
    ZeroVariance,
    is_straggler,
    max_reward,
    max_variance,
    percentile,
    random_subset,
)
from tests.refusals import refuses

few_values = st.lists(st.sampled_from([0.0, 1.0, 0.5, -1.0, 0.1]), min_size=1, max_size=8)
any_values = st.lists(
    st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=8
)
reward_lists = few_values | any_values


def variance(rewards: Sequence[float]) -> Fraction:
    exact = [Fraction(reward) for reward in rewards]
    mean = sum(exact, Fraction(0)) / len(exact)
    return sum(((reward - mean) ** 2 for reward in exact), Fraction(0)) / len(exact)


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[float], int]:
    rewards = draw(reward_lists)
    return rewards, draw(st.integers(1, len(rewards)))


def assert_earliest_of_equals(rewards: Sequence[float], kept: Sequence[int]) -> None:
    for value in set(rewards):
        places = [i for i, reward in enumerate(rewards) if reward == value]
        chosen = [i for i in kept if rewards[i] == value]
        assert chosen == places[: len(chosen)]


@given(groups())
def test_max_variance_is_the_best_of_all_subsets(case: tuple[list[float], int]) -> None:
    rewards, keep = case
    kept = max_variance(rewards, keep)
    assert len(kept) == keep
    assert kept == sorted(set(kept))
    best = max(variance(subset) for subset in itertools.combinations(rewards, keep))
    assert variance([rewards[i] for i in kept]) == best
    assert_earliest_of_equals(rewards, kept)


@given(groups())
def test_max_variance_prefers_the_fewest_high_rewards(case: tuple[list[float], int]) -> None:
    rewards, keep = case
    falling = sorted(rewards, reverse=True)
    mixes = [falling[:k] + falling[len(falling) - keep + k :] for k in range(keep + 1)]
    spreads = [variance(mix) for mix in mixes]
    expected = mixes[spreads.index(max(spreads))]
    assert Counter(rewards[i] for i in max_variance(rewards, keep)) == Counter(expected)


def test_variances_that_cancel_badly_still_compare() -> None:
    # In doubles the squares of these differ by less than their rounding.
    rewards = [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 7]
    assert max_variance(rewards, 2) == [0, 4]
    assert max_variance(rewards, 3) == [0, 1, 4]


@given(groups())
def test_max_reward_keeps_the_highest(case: tuple[list[float], int]) -> None:
    rewards, keep = case
    kept = max_reward(rewards, keep)
    assert kept == sorted(set(kept))
    assert sorted(rewards[i] for i in kept) == sorted(rewards)[-keep:]
    assert_earliest_of_equals(rewards, kept)


@given(groups())
def test_percentile_takes_the_middle_of_equal_shares(case: tuple[list[float], int]) -> None:
    rewards, keep = case
    kept = percentile(rewards, keep)
    assert len(set(kept)) == keep
    assert kept == sorted(kept)
    rising, size = sorted(rewards), len(rewards)
    wanted = [rising[int((Fraction(j) - Fraction(1, 2)) * size / keep)] for j in range(1, keep + 1)]
    assert sorted(rewards[i] for i in kept) == wanted


def test_percentile_of_eight_by_hand() -> None:
    assert percentile([10, 80, 20, 70, 30, 60, 40, 50], 4) == [1, 2, 5, 6]  # 20, 40, 60, 80
    assert percentile([5, 1, 9], 1) == [0]  # the median


@given(groups(), st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(0, 10**9))
def test_random_subsets_are_a_function_of_their_key(
    case: tuple[list[float], int], seed: int, step: int, group: int
) -> None:
    rewards, keep = case
    kept = random_subset(rewards, keep, (seed, step, group))
    assert len(set(kept)) == keep
    assert kept == sorted(kept)
    assert set(kept) <= set(range(len(rewards)))
    assert kept == random_subset([0.0] * len(rewards), keep, (seed, step, group))


def test_random_subsets_are_uniform_over_keys() -> None:
    rewards = [0.0] * 5
    counts = Counter(
        tuple(random_subset(rewards, 2, (7, step, group)))
        for step in range(50)
        for group in range(60)
    )
    assert len(counts) == 10
    # chi-squared with 9 degrees of freedom: 27.9 is its 99.9th percentile
    assert sum((count - 300) ** 2 / 300 for count in counts.values()) < 27.9


def test_stages_apply_their_rule() -> None:
    rewards = random.Random(3).choices([0.0, 0.3, 1.0], k=12)
    assert MaxVariance(4)(rewards, 9) == max_variance(rewards, 4)
    assert MaxReward(4)(rewards, 9) == max_reward(rewards, 4)
    assert Percentile(4)(rewards, 9) == percentile(rewards, 4)
    assert RandomSubset(4, 1, 2)(rewards, 9) == random_subset(rewards, 4, (1, 2, 9))
    draws = {tuple(RandomSubset(4, 1, 2)(rewards, group)) for group in range(20)}
    assert len(draws) > 10  # groups draw apart


@pytest.mark.parametrize(
    "stage", [MaxVariance(5), MaxReward(5), Percentile(5), RandomSubset(5, 0, 0)]
)
def test_a_stage_refuses_a_smaller_group(stage: MaxVariance) -> None:
    with refuses("policy.pods.keep", "cannot keep 5 of a group of 4"):
        stage([0, 1, 0, 1], 0)


@pytest.mark.parametrize("rule", [max_variance, max_reward, percentile])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_no_number_is_refused(rule, bad: float) -> None:  # type: ignore[no-untyped-def]
    with refuses("workload.rewards", "must be finite"):
        rule([0.0, bad, 1.0], 2)


@pytest.mark.parametrize("keep", [0, -1])
def test_nothing_cannot_be_kept(keep: int) -> None:
    with pytest.raises(ScenarioError, match="from 1 to the group size"):
        max_reward([0.0, 1.0], keep)


@given(reward_lists)
def test_zero_variance_rejects_exactly_the_groups_without_a_gradient(rewards: list[float]) -> None:
    assert ZeroVariance()(rewards) == (len(rewards) == 1 or variance(rewards) > 0)


def test_the_ratio_itself_is_no_straggler() -> None:
    assert not is_straggler([100, 100, 100, 125], 1.25)
    assert is_straggler([100, 100, 100, 126], 1.25)
