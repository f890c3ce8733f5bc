"""Fits recover known parameters, and the presets are what the fits and equations give."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from benchmarks.published_lengths import capped_moments, lognormal_for_moments, straggler_rate
from rollcast.calibration.fits.lengths import _negative_log_likelihood, _observe, fit_owned
from rollcast.simulator.workload.length_specs import length_presets
from rollcast.simulator.workload.lengths import LengthModel, whole_tokens
from tests.data.extract import LENGTHS, read, statistics

PRESETS = length_presets()


def flat(groups):
    """Group and tokens of each response."""
    owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return owner, np.array([tokens for group in groups for tokens in group], dtype=np.float64)


def fit_lengths(groups, cap, unfinished=None):
    """The fit of responses by group, and of what others had reached when they were cut off."""
    cut_off = flat(unfinished) if unfinished else None
    return fit_owned(len(groups), *flat(groups), cap, cut_off)


def _groups(model: LengthModel, groups: int, size: int, cap: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    shape = (groups, size)
    lengths = model.uncapped(rng.random(groups), rng.standard_normal(groups), rng.random(shape))
    lengths[rng.random(shape) < model.runaway] = np.inf
    return whole_tokens(lengths, cap).tolist()


@pytest.mark.parametrize(
    ("cap", "runaway"),
    [(10**6, 0.0), (6000, 0.0), (10**6, 0.02), (12000, 0.03)],
    ids=["uncapped", "censored", "runaway", "both"],
)
def test_known_parameters_are_recovered(cap, runaway):
    true = LengthModel.lognormal(3200, 0.65, 0.3, runaway)
    fit = fit_lengths(_groups(true, 600, 8, cap, seed=5), cap)
    wanted = {"median_tokens": 3200, "between_sd": 0.65, "within_sd": 0.3, "runaway": runaway}
    for name, value in wanted.items():
        found, error = getattr(fit, name), fit.standard_errors.get(name)
        if error is None:
            assert name == "runaway"
            assert runaway == found == 0.0 or abs(found) < 1e-3
        else:
            assert abs(found - value) < 3.5 * error, (name, found, error)
            assert error < 0.1 * max(value, 0.05)
    assert fit.capped == 0 or cap < 10**6 or runaway


def test_treating_capped_lengths_as_lengths_would_be_wrong():
    """The censored fit is needed: without it the spread between prompts is far off."""
    groups = _groups(LengthModel.lognormal(3200, 0.65, 0.3), 400, 8, 4000, seed=6)
    censored, naive = fit_lengths(groups, 4000), fit_lengths(groups, 10**6)
    assert abs(censored.between_sd - 0.65) < 3.5 * censored.standard_errors["between_sd"]
    assert naive.between_sd < 0.5


def test_standard_errors_match_the_scatter_of_repeated_fits():
    true = LengthModel.lognormal(500, 0.5, 0.25)
    fits = [fit_lengths(_groups(true, 60, 6, 900, seed), 900) for seed in range(30)]
    for name in ("median_tokens", "between_sd", "within_sd"):
        scatter = np.std([getattr(fit, name) for fit in fits], ddof=1)
        stated = np.mean([fit.standard_errors[name] for fit in fits])
        assert 0.65 < stated / scatter < 1.5, name  # the scatter of 30 is known to 13 %


def test_likelihood_against_brute_force_integration():
    groups = [[300, 520, 900], [900, 900, 750], [40, 900], [900, 900]]
    groups += [[310, 410, 520], [250, 33, 820], [50, 60, 70], [600, 601]]  # rows of several groups
    cap = 900
    mu, between, within, runaway = math.log(420.0), 0.6, 0.35, 0.04
    effects = np.linspace(-9.0, 9.0, 40_001) * between
    weights = stats.norm.pdf(effects, scale=between) * (effects[1] - effects[0])
    total = 0.0
    for group in groups:
        likelihood = np.ones_like(effects)
        for n in group:
            centre = mu + effects
            if n < cap:
                likelihood *= (1 - runaway) * stats.norm.pdf(np.log(n - 0.5), centre, within)
            else:
                beyond = stats.norm.sf(math.log(cap - 1), centre, within)
                likelihood *= runaway + (1 - runaway) * beyond
        total += math.log(float(likelihood @ weights))
    observed = _observe(len(groups), *flat(groups), cap)
    assert len(observed.groups) == 6
    ours = -_negative_log_likelihood(observed, mu, between, within, runaway)
    assert ours == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize(
    ("groups", "cap", "says"),
    [
        ([], 100, "two groups"),
        ([[5, 6]], 100, "two groups"),
        ([[5], [6], [100, 100]], 100, "two responses"),
        ([[0, 5], [6, 7]], 100, "one token"),
        ([[math.nan, 5], [6, 7]], 100, "one token"),
        ([[5, 6], [6, 7]], 1, "cap"),
    ],
)
def test_data_that_cannot_be_fitted_are_refused(groups, cap, says):
    with pytest.raises(ValueError, match=says):
        fit_lengths(groups, cap)


def test_identical_rollouts_fit_with_almost_no_spread():
    fit = fit_lengths([[100] * 4, [200] * 4, [400] * 4], 1000)
    assert fit.within_sd < 0.01
    assert fit.between_sd > 0.3


@pytest.mark.parametrize("tau", [1.25, 2.5])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 16])
def test_straggler_rate_against_sampling(size, tau):
    sample = np.exp(0.25 * tau * np.random.default_rng(3).standard_normal((60_000, size)))
    seen = float((sample.max(axis=1) / np.median(sample, axis=1) > tau).mean())
    expected = straggler_rate(0.25 * tau, size, tau)
    assert abs(seen - expected) < 4.0 * math.sqrt(expected * (1 - expected) / 60_000) + 1e-6


def test_straggler_rate_at_its_ends():
    assert straggler_rate(0.0, 8, 1.25) == 0.0
    assert straggler_rate(1e-3, 8, 1.25) == pytest.approx(0.0, abs=1e-9)
    for bad in ((0.3, 1, 1.25), (-0.1, 8, 1.25), (0.3, 8, 1.0)):
        with pytest.raises(ValueError, match="straggler"):
            straggler_rate(*bad)


def test_moments_split_into_between_and_within():
    model = LengthModel.lognormal(7000, 0.6, 0.2)
    rng = np.random.default_rng(4)
    lengths = model.uncapped(
        rng.random(60_000), rng.standard_normal(60_000), rng.random((60_000, 4))
    )
    sample = whole_tokens(lengths, 16384)
    mean, sd, within = capped_moments(model, 16384)
    assert sample.mean() == pytest.approx(mean, rel=0.01)
    assert sample.std() == pytest.approx(sd, rel=0.01)
    assert math.sqrt(sample.var(axis=1, ddof=1).mean()) == pytest.approx(within, rel=0.01)


@pytest.mark.parametrize(
    "moments", [(8000, 4000, 5000, 16384), (20000, 4000, 1000, 16384), (994, 250, 62, 1024)]
)
def test_moments_that_no_capped_lognormal_has_are_refused(moments):
    with pytest.raises(ValueError, match=r"spreads less|no lognormal"):
        lognormal_for_moments(*moments)


PUBLISHED = [preset for preset in PRESETS.values() if preset.kind == "published"]


@pytest.mark.parametrize("preset", PUBLISHED, ids=lambda preset: preset.name)
def test_a_published_preset_solves_its_equations(preset):
    facts, component = preset.details["published"], preset.model.components[0]
    if "straggler_rate" in facts:
        found = straggler_rate(component.within_sd, facts["group_size"], facts["tau"])
        assert found == pytest.approx(facts["straggler_rate"], abs=5e-4)
    elif "sd_tokens" in facts:
        solved = lognormal_for_moments(*facts.values()).components[0]
        assert component.median_tokens == pytest.approx(solved.median_tokens, abs=0.5)
        assert component.between_sd == pytest.approx(solved.between_sd, abs=5e-5)
        assert component.within_sd == pytest.approx(solved.within_sd, abs=5e-5)
    else:
        assert preset.model.marginal(1 << 16).mean() == pytest.approx(facts["mean_tokens"], abs=1.0)


FITTED = [preset for preset in PRESETS.values() if preset.kind == "fitted"]


def pattern(count: int) -> np.ndarray:
    """``count`` numbers with sum 0 and sum of squares 1."""
    signs = np.resize([1.0, -1.0], count)
    signs[count - count % 2 :] = 0.0
    return signs / max(math.sqrt(float(signs @ signs)), 1.0)


def lengths_with(row: dict[str, str], cap: int) -> list[list[float]]:
    """Groups of lengths of which the likelihood takes just these statistics (the normal effects of
    prompt and response make it a function of them), responses at the cap included."""
    prompts, responses = int(row["prompts"]), int(row["responses"])
    between, within = float(row["squares_between"]), float(row["squares_within"])
    means = float(row["mean_log"]) + math.sqrt(between) * pattern(prompts)
    effects = math.sqrt(within / prompts) * pattern(responses)
    capped = [float(cap)] * int(row["capped"])
    return [[*(np.exp(mean + effects) + 0.5).tolist(), *capped] for mean in means]


def like(groups: list[list[float]], rows: list[dict[str, str]], cap: int) -> bool:
    """Whether these are lengths below the cap, apart from those counted at it: made ones may pass
    it."""
    below = sum(int(row["prompts"]) * int(row["responses"]) for row in rows)
    lengths = [n for group in groups for n in group]
    return min(lengths) >= 1 and sum(n < cap for n in lengths) == below


@pytest.mark.parametrize("preset", FITTED, ids=lambda preset: preset.name)
def test_a_fitted_preset_is_what_its_data_give(preset):
    cap = preset.details["cap_tokens"]
    rows = [row for row in read(LENGTHS) if row["preset"] == preset.name]
    groups = [group for row in rows for group in lengths_with(row, cap)]
    assert like(groups, rows, cap)
    fit = fit_lengths(groups, cap)
    counts = {key: preset.details[key] for key in ("prompts", "rollouts", "capped")}
    assert counts == {"prompts": fit.groups, "rollouts": fit.rollouts, "capped": fit.capped}
    for name, value in preset.lengths.items():
        if name != "family":
            assert value == pytest.approx(getattr(fit, name), rel=3e-3, abs=6e-4), name
    for name, error in preset.details["standard_errors"].items():
        assert error == pytest.approx(fit.standard_errors[name], rel=0.1, abs=6e-4), name


@given(
    groups=st.lists(st.lists(st.integers(2, 90), min_size=2, max_size=6), min_size=2, max_size=6),
    cap=st.integers(40, 100),
)
def test_the_statistics_hold_all_that_a_fit_takes(groups: list[list[int]], cap: int) -> None:
    """Whatever the parameters, lengths made from the statistics are as likely as the measured."""
    below = [sum(n < cap for n in group) for group in groups]
    assume(min(below) >= 1 and max(below) >= 2)
    rows = list(statistics("any", groups, cap))
    made = [group for row in rows for group in lengths_with(row, cap)]
    assume(like(made, rows, cap))
    for parameters in ((3.0, 0.5, 0.4, 0.0), (4.0, 1.2, 0.8, 0.02)):
        likely = [
            _negative_log_likelihood(_observe(len(g), *flat(g), cap), *parameters)
            for g in (groups, made)
        ]
        assert likely[1] == pytest.approx(likely[0], rel=1e-5)
