"""Committed runs of real vLLM and torch: calibrated on synchronous ones, held against the rest."""

import numpy as np
import pytest

from benchmarks.measure import CAMPAIGN, Campaign
from benchmarks.measured import runs
from rollcast.calibration.calibrate import Fitted
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.validate import Validation, validate
from tests.calibration import kept

RUNS = runs("real/runs")
POLICIES = ("sync", "april", "sagc", "pods", "prefix", "all")


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return kept.fitted("policies")


@pytest.fixture(scope="module")
def replayed(fitted: Fitted) -> Validation:
    return kept.replayed(fitted, [RUNS / f"{name}-1" for name in POLICIES])


def test_every_run_of_the_campaign_is_there() -> None:
    for run in Campaign.read(CAMPAIGN).runs:
        found = RunFolder.open(RUNS / run.name)
        assert found.seed == run.seed
        assert len(found.steps["step"]) == run.steps
        assert (RUNS / run.name / "iterations.csv").exists() == run.iterations
        assert "address" not in str(found.provenance)


def test_learning_lifts_the_accuracy_by_nearly_twenty_points() -> None:
    for seed in range(3):
        accuracy = RunFolder.open(RUNS / f"sync-{seed}").steps["accuracy"]
        assert accuracy[-8:].mean() - accuracy[:8].mean() > 0.18


def test_replays_are_close_at_the_machines_pulse(replayed: Validation) -> None:
    """Of policies that the calibration has not seen. What is left of a step is noise: the same
    rollouts measured twice differ by 8 % at one pulse."""
    for check in replayed.checks:
        assert check.forecast.at_pulse
        assert abs(check.total_error) < 0.06, check.run.name
        # "all" was recorded when a batch counted groups of any size; it counts rollouts since.
        assert check.error_of("step_s") < (0.2 if check.run.name == "all-1" else 0.10)
    content = replayed.to_json()
    assert content["held_out"]["step_s"] < 0.06
    assert content["coverage"]["held_out"]["steps"] > 0.7


def test_forecasts_are_those_that_are_kept(replayed: Validation) -> None:
    for check in replayed.checks:
        kept.is_the_kept_replay("policies", check)
    kept.is_predicted_as_kept("settings", "wide-pods-10")


def test_the_pulse_explains_why_the_same_rollouts_took_longer(fitted: Fitted) -> None:
    folders = [RUNS / "sync-0", RUNS / "sync-again-0"]
    for mode in (True, False):
        slow, fast = kept.replayed(fitted, folders, at_pulse=mode).checks
        assert np.allclose(slow.forecast.point["staleness"], fast.forecast.point["staleness"])
        gap = slow.total_error - fast.total_error
        assert abs(gap) < 0.06 if mode else gap < -0.09
    times = [check.measured["step_s"].sum() for check in (slow, fast)]
    assert times[0] > 1.1 * times[1]


def test_policies_are_ranked_right_where_they_differ_by_more_than_the_noise(fitted: Fitted) -> None:
    """Means over two seeds; the noise is how far runs of one policy are from each other."""
    folders = [RUNS / f"{name}-{s}" for name in ("sync", "april") for s in range(2)]
    with kept.undrawn():
        order = validate(fitted, folders, "predict", draws=1).to_json()["ranking"]
    [alike] = order["sets"]
    assert alike["measured"][0] == alike["forecast"][0] == "april"
    assert order["clear_pairs_right"] == order["clear_pairs"] == 1


def test_decisions_of_a_replay_leave_nothing_to_guess(replayed: Validation) -> None:
    for check in replayed.checks:
        if check.run.policy in ("sync", "pods(keep=4)", "prefix_reuse", "sagc(eta=2)"):
            assert check.forecast.unmeasured == 0
            assert np.allclose(check.step_errors("staleness"), 0.0)


def test_the_probe_knows_where_a_shared_prefix_pays(fitted: Fitted) -> None:
    """Not with prompts of six tokens; by far with those of 540. The calibration had neither this
    layout nor such prompts."""
    pairs = {True: ("sync-1", "prefix-1"), False: ("worded-sync-30", "worded-prefix-30")}
    for costs_more, names in pairs.items():
        folders = [RUNS / name for name in names]
        dense, shared = kept.replayed(fitted, folders, at_pulse=False).checks
        forecast = shared.forecast.point["train_s"].sum() / dense.forecast.point["train_s"].sum()
        real = shared.measured["train_s"].sum() / dense.measured["train_s"].sum()
        assert bool(forecast > 1.0) is bool(real > 1.0) is costs_more
        assert forecast == pytest.approx(real, rel=0.2)
