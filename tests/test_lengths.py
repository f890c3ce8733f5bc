"""Laws of the length model: exact tables against SciPy, brute force and sampling."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.workload.length_specs import length_presets, lengths_from_spec
from rollcast.simulator.workload.lengths import (
    FAMILIES,
    Component,
    GammaEffect,
    LengthDistribution,
    LengthModel,
    WeibullEffect,
    whole_tokens,
)
from tests.laws import examples

LOGNORMAL = {"family": "lognormal", "median_tokens": 3200, "between_sd": 0.65, "within_sd": 0.3}

models = st.builds(
    lambda family, median, between, within, runaway: LengthModel(
        (Component(family, median, between, within),), (1.0,), runaway
    ),
    st.sampled_from(sorted(FAMILIES)),
    st.floats(2.0, 400.0),
    st.sampled_from([0.0, 1e-200, 0.1, 0.7, 5.0]),
    st.sampled_from([0.0, 1e-200, 1e-7, 0.05, 0.3, 5.0]),
    st.sampled_from([0.0, 0.05, 1.0]),
)


@settings(max_examples=examples(60), deadline=None)
@given(model=models, cap=st.integers(1, 600), z=st.sampled_from([None, -2.0, 0.0, 1.0]))
def test_a_distribution_agrees_with_its_own_probability_table(model, cap, z):
    """Moments, quantiles and tails from the probabilities, by another road than the tables'."""
    length = model.marginal(cap) if z is None else model.given(z, cap)
    values = np.arange(1, cap + 1)
    p = length.sf(values - 1) - length.sf(values)
    assert p.min() >= 0.0
    assert p.sum() == pytest.approx(1.0, abs=1e-12)
    assert length.sf(1.5) == length.sf(1)
    assert length.sf(cap + 1) == 0.0
    mean = float(p @ values)
    assert length.mean() == pytest.approx(mean, rel=1e-12)
    assert length.var() == pytest.approx(float(p @ (values - mean) ** 2), rel=1e-9, abs=1e-9)
    for q in (0.0, 0.01, 0.5, 0.9, 1.0):
        n = int(length.ppf(q))
        assert 1 <= n <= cap
        assert 1.0 - length.sf(n) >= q
        assert n == 1 or 1.0 - length.sf(n - 1) < q
    assert length.median() == length.ppf(0.5)


@pytest.mark.parametrize(("sd", "z"), [(0.1, 0.0), (0.3, 1.0), (1.2, -0.5)])
def test_conditional_gamma_and_weibull_against_scipy(sd, z):
    at = np.array([30, 100, 180, 400])
    centre = 100.0 * math.exp(0.5 * z)
    gamma = LengthModel((Component("gamma", 100.0, 0.5, sd),)).given(z, 4096)
    shape = float(np.exp(np.interp(-sd * sd, *_negative_trigamma())))
    reference = stats.gamma(shape, scale=centre / stats.gamma(shape).median())
    np.testing.assert_allclose(gamma.sf(at), reference.sf(at), rtol=1e-3, atol=1e-9)
    weibull = LengthModel((Component("weibull", 100.0, 0.5, sd),)).given(z, 4096)
    c = math.pi / math.sqrt(6.0) / sd
    reference = stats.weibull_min(c, scale=centre / math.log(2.0) ** (1.0 / c))
    np.testing.assert_allclose(weibull.sf(at), reference.sf(at), rtol=1e-9, atol=1e-12)


def _negative_trigamma():
    from scipy.special import polygamma

    log_shape = np.linspace(-3.0, 8.0, 20_001)
    return -polygamma(1, np.exp(log_shape)), log_shape


@pytest.mark.parametrize("effect", [GammaEffect, WeibullEffect])
@pytest.mark.parametrize("sd", [0.05, 0.3, 1.5])
def test_a_within_effect_has_median_zero_and_the_stated_spread(effect, sd):
    within = effect(sd)
    assert within.ppf(np.array([0.5]))[0] == pytest.approx(0.0, abs=1e-9)
    low, high = within.ppf(np.array([1e-13, 1.0 - 1e-13]))
    mean, _ = integrate.quad(lambda w: w * within.pdf(w), low, high, limit=200)
    second, _ = integrate.quad(lambda w: w * w * within.pdf(w), low, high, limit=200)
    assert math.sqrt(second - mean * mean) == pytest.approx(sd, rel=1e-4)
    u = np.array([0.01, 0.3, 0.99])
    np.testing.assert_allclose(1.0 - within.sf(within.ppf(u)), u, rtol=1e-9)


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(("between", "within"), [(0.8, 0.1), (0.3, 0.3), (0.1, 0.9), (1.5, 0.02)])
def test_marginal_is_the_conditional_averaged_over_prompts(family, between, within):
    component = Component(family, 500.0, between, within)
    for tokens in (20.0, 300.0, 800.0, 5000.0):
        at = np.log(np.array([tokens]))

        def averaged(z, at=at, component=component):
            return stats.norm.pdf(z) * component.sf_given(z, at)[0]

        step = (math.log(tokens / 500.0)) / between
        reference, _ = integrate.quad(
            averaged, -8.5, 8.5, points=[min(max(step, -8.0), 8.0)], limit=400, epsabs=1e-11
        )
        assert component.sf_marginal(at)[0] == pytest.approx(reference, abs=1e-8)


def above(sample, at):
    """The share of the sample that is longer than each of these."""
    return 1.0 - np.searchsorted(np.sort(sample, axis=None), at, side="right") / sample.size


def test_a_length_is_rounded_up_and_cut_at_the_cap():
    """So ``P(N > n) = P(X > n)`` holds exactly below the cap, where lengths are short too."""
    uncapped = np.array([0.0, 0.2, 1.0, 1.5, 2.0, 8.01, 9.0, 40.0, np.inf])
    assert whole_tokens(uncapped, 9).tolist() == [1, 1, 1, 2, 2, 9, 9, 9, 9]
    model, z = LengthModel.lognormal(3, 0.5, 0.4), np.random.default_rng(8).standard_normal(40_000)
    u = np.random.default_rng(9).random((40_000, 1))
    sample = whole_tokens(model.uncapped(u[:, 0], z, u), 6)
    at = [1, 2, 3, 5]
    np.testing.assert_allclose(above(sample, at), model.marginal(6).sf(at), atol=0.01)


def test_runaway_adds_an_atom_at_the_cap_and_scales_the_rest():
    plain = lengths_from_spec(LOGNORMAL)
    away = lengths_from_spec({**LOGNORMAL, "runaway": 0.1})
    at = np.arange(0, 8192, 100)
    np.testing.assert_allclose(away.marginal(8192).sf(at), 0.1 + 0.9 * plain.marginal(8192).sf(at))
    assert lengths_from_spec({**LOGNORMAL, "runaway": 1}).given(0.0, 77).mean() == 77.0


def test_scaling_and_drift_move_the_median_and_leave_the_spread():
    model = lengths_from_spec({**LOGNORMAL, "drift_per_step": 0.01})
    assert model.scaled(2.0).marginal(1 << 20).median() == 6400
    drifted = model.scaled(model.drift(70)).components[0]
    assert drifted.median_tokens == pytest.approx(3200 * math.exp(0.7))
    assert (drifted.between_sd, drifted.within_sd) == (0.65, 0.3)
    for factor in (0.0, -1.0, math.inf):
        with pytest.raises(ValueError, match="positive"):
            model.scaled(factor)


def test_a_table_that_is_no_distribution_and_a_bad_quantile_are_refused():
    for table in ([1.0], [0.9, 0.0], [1.0, 0.5], [[1.0], [0.0]]):
        with pytest.raises(ValueError, match="survival table"):
            LengthDistribution(np.array(table))
    with pytest.raises(ValueError, match="quantile"):
        lengths_from_spec(LOGNORMAL).marginal(10).ppf(1.1)
    for cap in (0, 1 << 25):
        with pytest.raises(ValueError, match="cap"):
            lengths_from_spec(LOGNORMAL).marginal(cap)


@pytest.mark.parametrize("spec", [None, "lognormal", [1], 3])
def test_a_section_that_is_no_mapping_is_refused(spec):
    with pytest.raises(ScenarioError, match="mapping"):
        lengths_from_spec(spec)


def test_every_preset_loads_and_a_key_beside_a_preset_overrides_it():
    presets = length_presets()
    assert {p.kind for p in presets.values()} == {"fitted", "published"}
    for preset in presets.values():
        assert preset.source
        assert preset.model.marginal(16384).mean() > 1.0
        if preset.kind == "fitted":
            assert {"prompts", "rollouts", "cap_tokens", "standard_errors"} <= set(preset.details)
        else:
            assert "published" in preset.details
    spec = {"preset": "glm-4.5", "within_sd": 0.9}
    component = lengths_from_spec(spec).components[0]
    assert component.within_sd == 0.9
    assert component.median_tokens == presets["glm-4.5"].lengths["median_tokens"]


@pytest.mark.parametrize("runaway", [0.0, 0.003, 0.2, 1.0])
@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_what_runs_away_hangs_on_the_prompt_and_its_share_stays(runaway, correlation):
    """The share is the mean over prompts; two responses to one prompt run away together as often as
    two standard normals with that correlation pass the threshold together."""
    model = LengthModel.lognormal(300, 0.5, 0.3, runaway)
    model = replace(model, runaway_correlation=correlation)
    z, weight = np.polynomial.hermite_e.hermegauss(180)
    weight = weight / weight.sum()
    share = model.runaway_given(z)
    assert share @ weight == pytest.approx(runaway, abs=2e-4)
    normals = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    threshold = stats.norm.ppf(runaway)
    both = runaway if runaway in (0.0, 1.0) else normals.cdf([threshold, threshold])
    assert (share**2) @ weight == pytest.approx(both, abs=1e-3)
