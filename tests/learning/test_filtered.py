"""Under a filter the time of an update follows the accuracy, as more groups are rejected."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.learning.answer import Progress
from rollcast.simulator.learning.group_signal import at_mean, concentration_of, groups_needed
from rollcast.simulator.learning.lengths import drawn_ratio, slowed
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.workload.rewards import BetaBernoulli
from tests.learning.worlds import written


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("filtered"))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_as_many_groups_as_every_outcome_says(share: float) -> None:
    mixed = sum(
        math.prod(share if right else 1 - share for right in outcome)
        for outcome in product((0, 1), repeat=4)
        if 0 < sum(outcome) < 4
    )
    [found] = groups_needed(np.array([share]), 4, math.inf)
    assert found == pytest.approx(1 / mixed, rel=0.01)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.9), st.floats(0.05, 0.95))
def test_another_mean_is_as_concentrated(mean: float, part: float, other: float) -> None:
    rewards = BetaBernoulli(mean, part * math.sqrt(mean * (1 - mean)))
    assert concentration_of(at_mean(rewards, other)) == pytest.approx(concentration_of(rewards))


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=4), st.integers(0, 3))
def test_clocks_that_are_slowed_twice_take_both(factors: list[float], first: int) -> None:
    curve = np.linspace(0.2, 0.6, 4)
    base = Progress(curve, np.stack((curve, curve)), 10.0 * np.arange(4), np.arange(4.0))
    own, drawn = np.array(factors), np.stack((np.array(factors), np.ones(4)))
    twice = slowed(slowed(base, own, drawn, first), own, drawn, 0)
    want = [10 * factors[u] * (1.0 if u < first else factors[u]) for u in range(3)]
    assert np.diff(twice.seconds) == pytest.approx(want)
    assert np.diff(twice.drawn_seconds[0]) == pytest.approx(want)
    assert np.diff(twice.drawn_seconds[1]) == pytest.approx(10.0)


def slower(scenario: Path, policy: str, accuracy: float, target: float) -> float:
    """Hours of the answer over those of as many updates that take a mean simulated step."""
    settings = (f"learning.accuracy={accuracy}", f"learning.target={target}", "steps=20")
    made = simulate(load(scenario, *settings).with_policy(policy))
    learning = made.summary["learning"]
    return float(learning["hours"] / learning["updates"] / (made.summary["step_s"] / 3600))


def test_an_update_takes_longer_as_more_groups_are_rejected(scenario: Path) -> None:
    usual, late = (
        simulate(load(scenario, "steps=40", *changed).with_policy("dynamic_sampling"))
        for changed in (
            (),
            ("workload.rewards={family: beta_bernoulli, mean: 0.86, between_sd: 0.208}",),
        )
    )
    want = late.summary["step_s"] / usual.summary["step_s"]
    assert want > 1.08
    assert slower(scenario, "dynamic_sampling", 0.8, 0.92) == pytest.approx(want, rel=0.07)
    assert slower(scenario, "dynamic_sampling", 0.45, 0.55) == pytest.approx(1.0, abs=0.05)
    assert slower(scenario, "sync", 0.8, 0.92) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("settings", "least", "most"),
    [
        (("workload.rewards.length_correlation=0.5",), 1.05, 2.0),
        (("workload.rewards.length_correlation=-0.5",), 0.5, 0.95),
        (("workload.max_new_tokens=250",), 1.05, 3.0),  # what is cut is wrong
        (("workload.max_new_tokens=8000",), None, None),
        (("workload.rewards={family: normal, mean: 1, within_sd: 1}",), None, None),
    ],
)
def test_wrong_answers_are_as_long_as_the_scenario_draws_them(
    scenario: Path, settings: tuple[str, ...], least: float | None, most: float
) -> None:
    found = drawn_ratio(load(scenario, *settings).workload, 4)
    if least is None:
        assert found is None
    else:
        assert found is not None
        assert least < found < most


def test_a_stated_ratio_takes_precedence_over_the_prior(scenario: Path) -> None:
    asked = ("learning={prior: true, accuracy: 0.3, lengths: true}",)
    stated = load(scenario, *asked, "workload.rewards.length_correlation=0.5").learning
    usual = load(scenario, *asked, "workload.max_new_tokens=8000").learning
    assert stated.law.lengths.ratio > 1.0 > usual.law.lengths.ratio
