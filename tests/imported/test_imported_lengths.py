"""Lengths out of few figures a step: the truth comes back inside its interval."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.calibration.fits.step_lengths import FewFigures, _by_step, fit_few, lengths_like
from rollcast.calibration.logs.draft import draft, responses_of_means
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.workload.lengths import LengthModel
from tests.laws import SEARCHING, examples

TRUTH = {
    "median_tokens": 700.0,
    "between_sd": 0.6,
    "within_sd": 0.3,
    "runaway": 0.0,
    "drift_per_step": 0.0,
}


def _figures(
    steps: int, groups: int, size: int, cap: int, truth: dict[str, float], seed: int
) -> FewFigures:
    rng = np.random.default_rng(seed)
    rows = []
    for step in range(steps):
        logs = math.log(truth["median_tokens"]) + truth["drift_per_step"] * (step - steps + 1)
        logs = logs + truth["between_sd"] * rng.standard_normal((groups, 1))
        logs = logs + truth["within_sd"] * rng.standard_normal((groups, size))
        tokens = np.clip(np.ceil(np.exp(logs)), 1, cap)
        tokens[rng.random((groups, size)) < truth["runaway"]] = cap
        rows.append((tokens.mean(), tokens.max(), tokens.min(), (tokens >= cap).mean()))
    mean, longest, shortest, cut = np.array(rows).T
    return FewFigures(
        np.arange(steps, dtype=float),
        mean,
        longest,
        shortest,
        cut,
        np.full(steps, float(groups * size)),
        size,
        cap,
    )


@settings(max_examples=examples(8), deadline=None)
@given(
    median=st.sampled_from([150.0, 600.0, 2000.0]),
    between=st.sampled_from([0.4, 0.6, 0.8]),
    within=st.sampled_from([0.25, 0.4]),
    runaway=st.sampled_from([0.0, 0.005]),
    drift=st.sampled_from([0.0, 0.01]),
    seed=st.integers(0, 10_000),
)
def test_the_truth_lies_near_what_is_fitted(
    median: float, between: float, within: float, runaway: float, drift: float, seed: int
) -> None:
    truth = {
        "median_tokens": median,
        "between_sd": between,
        "within_sd": within,
        "runaway": runaway,
        "drift_per_step": drift,
    }
    found = fit_few(_figures(40, 32, 8, 8192, truth, seed))
    errors = found.errors()
    got = dict(zip(("drift_per_step",), (float(found.values[4]),), strict=True))
    got = {**found.lengths(), **got}
    for key in ("median_tokens", "between_sd", "within_sd", "drift_per_step"):
        off = abs(got[key] - truth[key])
        # each of a gate's 20 figures and a search's 320 lies within; measured, they spread 1.1 to
        # 1.2 standard errors, and 1 of 120 is 4 off
        wide = 6 if SEARCHING else 4
        assert off < wide * errors[key] + 0.03 * abs(truth[key]), (key, got[key], errors[key])
    total = math.hypot(got["between_sd"], got["within_sd"])
    assert total == pytest.approx(math.hypot(between, within), rel=0.2)


def test_no_longest_response_is_likely_where_all_would_be_cut() -> None:
    """A share of nearly one that is cut, taken from one, is nothing: a published log of single
    responses a prompt was fitted there, and its step told as 78 s of 46 s."""
    truth = {"median_tokens": 180.0, "between_sd": 0.4, "within_sd": 0.2}
    figures = _figures(80, 512, 1, 1024, {**truth, "runaway": 0.001, "drift_per_step": -0.002}, 1)
    x = figures.at - figures.at[-1]
    likely, absurd = (
        float(_by_step(figures, x, np.array(theta)).sum())
        for theta in ((5.2, -0.8, 1.4, -6.9, -0.002), (16.9, 1.3, 1.5, -0.2, -0.3))
    )
    assert absurd < likely
    found = fit_few(figures)
    assert found.lengths()["median_tokens"] == pytest.approx(180, rel=0.1)
    far = found.lengths(np.array([5.0, 900.0, -900.0, 900.0, 0.0]))  # as a draw may be
    assert max(far.values()) <= 1024


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    truth = {**TRUTH, "median_tokens": 500.0}
    inside = []
    for seed in range(12):
        found = fit_few(_figures(30, 16, 8, 8192, truth, seed))
        off = abs(math.log(found.lengths()["median_tokens"] / 500.0))
        inside.append(off < 1.645 * math.sqrt(found.covariance[0, 0]))
    assert sum(inside) >= 8  # of 12 at 90 %: fewer than 8 happen once in 230


@pytest.mark.parametrize("seed", [1, 2])
def test_how_steps_are_numbered_moves_no_fit(seed: int) -> None:
    """A search whose parameters were not alike in size ended an error away from the maximum."""
    figures = _figures(80, 32, 8, 1000, {**TRUTH, "drift_per_step": 0.01}, seed)
    once, apart = (fit_few(replace(figures, at=by * figures.at)) for by in (1, 5))
    off = (apart.values * (1, 1, 1, 1, 5) - once.values) / np.sqrt(np.diag(once.covariance))
    assert np.abs(off).max() < 0.02


def test_cut_at_the_cap_is_not_taken_for_short() -> None:
    truth = {**TRUTH, "between_sd": 0.5}
    figures = _figures(40, 32, 8, 1000, truth, 3)
    assert figures.cut.mean() > 0.2
    found = fit_few(figures)
    assert found.lengths()["median_tokens"] == pytest.approx(700, rel=0.15)


def test_a_split_that_nothing_tells_stays_wide() -> None:
    truth = TRUTH
    few = fit_few(_figures(4, 8, 8, 8192, truth, 1))
    many = fit_few(_figures(60, 8, 8, 8192, truth, 1))
    assert few.covariance[2, 2] > many.covariance[2, 2]
    assert math.sqrt(few.covariance[2, 2]) > 0.4
    assert fit_few(_figures(1, 8, 8, 8192, truth, 1)) is None


@given(
    count=st.integers(2, 600),
    mean=st.floats(20, 3000),
    ratio=st.floats(1.2, 8),
    cut=st.floats(0, 0.2),
    spread=st.floats(0.1, 1.2),
)
def test_lengths_made_alike_have_the_mean_and_the_longest(
    count: int, mean: float, ratio: float, cut: float, spread: float
) -> None:
    cap = 4096
    longest = min(mean * ratio, cap, mean * count)
    made = lengths_like(count, mean, longest, cut, cap, spread, np.random.default_rng(0))
    assert made.shape == (count,)
    assert made.min() >= 1
    assert made.max() <= cap
    if round(cut * count) * longest < mean * count:  # else the figures contradict each other
        assert made.max() == pytest.approx(longest, abs=1.5)
        assert made.mean() == pytest.approx(mean, rel=0.05, abs=2 + longest / count)


def test_lengths_have_the_measured_mean_whatever_contradicts_it() -> None:
    """Means that scatter as those of few prompts, and longest responses that were not cut: neither
    an assumed count of rollouts nor a runaway that is not drawn may move the mean."""
    rng = np.random.default_rng(3)
    mean = 40.0 * np.exp(0.3 * rng.standard_normal(60))
    longest = np.where(np.arange(60) % 5 == 0, 127.0, 1.05 * mean)
    for cut in (0.0, math.nan):
        figures = FewFigures(
            np.arange(60.0), mean, longest, 0.9 * mean, np.full(60, cut), np.full(60, 256.0), 8, 128
        )
        figures = replace(figures, cap_known=not math.isnan(cut))
        found = fit_few(figures)
        fitted = found.lengths()
        logs = math.log(fitted["median_tokens"]) + fitted["between_sd"] * rng.standard_normal(
            (20_000, 1)
        )
        logs = logs + fitted["within_sd"] * rng.standard_normal((20_000, 8))
        tokens = np.clip(np.ceil(np.exp(logs)), 1, 128)
        tokens[rng.random(tokens.shape) < fitted["runaway"]] = 128
        assert tokens.mean() == pytest.approx(mean.mean(), rel=0.04)


@given(count=st.sampled_from([4, 8, 24, 96, 128, 512, 768, 1024]), seed=st.integers(0, 10_000))
def test_exact_means_tell_how_many_responses_there_are(count: int, seed: int) -> None:
    sums = np.random.default_rng(seed).integers(count, 900 * count, size=60)
    sums[0] = 50 * count + 1  # in lowest terms
    means = sums / count
    assert responses_of_means(means) == count
    assert responses_of_means(np.append(means, np.nan)) == count
    assert responses_of_means(np.float32(means).astype(float)) == count
    assert responses_of_means(np.round(means[1:] + 0.03, 1)) is None  # rounded
    assert responses_of_means(means[:7]) is None  # too few


@pytest.mark.parametrize("runaway", [0.9, 0.97, 1.0])
@pytest.mark.parametrize("told", ["all", "no share cut", "means"])
def test_a_run_that_collapsed_to_its_cap_keeps_its_mean(runaway: float, told: str) -> None:
    figures = _figures(30, 16, 8, 4096, {**TRUTH, "median_tokens": 2500.0, "runaway": runaway}, 1)
    missing = np.full(30, math.nan)
    if told != "all":
        figures = replace(figures, cut=missing)
    if told == "means":
        figures = replace(figures, longest=missing, shortest=missing)
    found = fit_few(figures)
    assert found is not None
    lengths, rng = found.lengths(), np.random.default_rng(0)
    assert lengths["median_tokens"] <= 4096.5  # as scenarios have it at most
    logs = lengths["between_sd"] * rng.standard_normal(100_000)
    logs += lengths["within_sd"] * rng.standard_normal(100_000)
    tokens = np.minimum(lengths["median_tokens"] * np.exp(logs), 4096)
    tokens[rng.random(100_000) < lengths["runaway"]] = 4096
    assert tokens.mean() == pytest.approx(figures.mean.mean(), rel=0.01)
    made = lengths_like(512, 4064.0, 4096.0, math.nan, 4096, found.spread.total, rng)
    assert made.mean() == pytest.approx(4064.0, rel=0.002)


@pytest.mark.parametrize("mean", [400.0, 3000.0, 4003.3, 4096.0])
def test_of_too_few_steps_the_mean_is_kept_after_the_cut(tmp_path: Path, mean: float) -> None:
    """The lengths of a scenario are cut at its cap, as those of the log were."""
    step = f"response_length/mean:{mean} - timing_s/gen:60.0 - timing_s/step:100.0"
    launch = (
        "python3 -m verl.trainer.main_ppo data.max_response_length=4096 data.train_batch_size=8"
    )
    lines = "".join(f"step:{at} - training/global_step:{at} - {step}\n" for at in (1, 2))
    (tmp_path / "run.log").write_text(f"{launch}\n{lines}", "utf-8")
    said = {part.key: part.value for part in draft(read_log([tmp_path / "run.log"]))}
    assert said["workload.max_new_tokens"] == 4096
    spread = (said["workload.lengths.between_sd"], said["workload.lengths.within_sd"])
    model = LengthModel.lognormal(said["workload.lengths.median_tokens"], *spread, 0.0)
    assert model.marginal(4096).mean() == pytest.approx(mean, rel=1e-3)
