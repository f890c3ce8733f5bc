"""Updates to target, from curves whose truth is known."""

import numpy as np
import pytest

from benchmarks.measured import runs
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.judge.quality import qualities, updates_to_target
from rollcast.calibration.pages.validation_text import quality_sentences


def curve(speed: float, updates: int = 120, noise: float = 0.03, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    t = np.arange(updates) / speed
    return 0.2 + 0.6 * (1 - np.exp(-t / 40)) + rng.normal(0, noise, updates)


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_the_truth_is_found(factor: float) -> None:
    inside = 0
    for seed in range(5):
        found = updates_to_target([curve(1.0, seed=seed)], [curve(factor, seed=100 + seed)])
        assert found.factor == pytest.approx(factor, rel=0.25)
        assert found.low <= found.factor <= found.high
        inside += found.low <= factor <= found.high
    assert inside >= 4


@pytest.mark.parametrize("factor", [0.71, 1.03, 1.31])
def test_the_truth_is_found_to_half_a_percent_where_there_is_no_luck(factor: float) -> None:
    t = np.arange(240.0)
    found = updates_to_target(
        [1 / (1 + np.exp(3 - t / 30))], [1 / (1 + np.exp(3 - t / 30 / factor))]
    )
    assert found.factor == pytest.approx(factor, rel=0.005)


def test_more_runs_say_more() -> None:
    one = updates_to_target([curve(1.0)], [curve(1.3, seed=9)])
    many = updates_to_target(
        [curve(1.0, seed=s) for s in range(8)], [curve(1.3, seed=20 + s) for s in range(8)]
    )
    assert many.high - many.low < one.high - one.low


def test_nothing_is_said_without_learning_or_with_too_little() -> None:
    flat = np.random.default_rng(0).normal(0.5, 0.05, 100)
    assert updates_to_target([flat], [curve(1.0)]) is None
    assert updates_to_target([curve(1.0, 10)], [curve(1.0, 100)]) is None
    assert updates_to_target([], [curve(1.0)]) is None


def test_each_policy_against_the_reference() -> None:
    curves = {"sync": [curve(1.0)], "april": [curve(1.5, seed=3)], "short": [curve(1.0, 5)]}
    found = qualities(curves, "sync")
    assert list(found) == ["april"]
    assert qualities(curves, "nobody") == {}
    assert set(found["april"].plain()) == {"factor", "low", "high"}


def test_a_validation_says_it_as_a_plan_takes_it() -> None:
    found = {"april": {"factor": 1.05, "low": 0.98, "high": 1.12}}
    first, second = quality_sentences(found)
    assert "april 1.05 (0.98 to 1.12)" in first
    assert "quality: {'april': 1.05}" in second
    assert quality_sentences({}) == []


def test_real_runs_of_what_changes_no_gradient_need_as_many_updates() -> None:
    """Prefix reuse computes the same update, so that its curve is synchronous training's."""
    folder = runs("real/runs")
    curves = {
        name: [
            np.asarray(RunFolder.open(folder / f"{name}-{i}").steps["accuracy"]) for i in range(3)
        ]
        for name in ("sync", "prefix")
    }
    found = qualities(curves, "sync")["prefix"]
    assert found.low <= 1.0 <= found.high
    assert found.factor == pytest.approx(1.0, abs=0.1)
