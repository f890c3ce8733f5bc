"""A world with known constants is recovered, noise and outliers notwithstanding."""

from pathlib import Path

import numpy as np
import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.fits import iterations
from rollcast.calibration.fits.machine_speed import steady
from rollcast.calibration.fits.robust import fit, needed
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.costs.base import Iteration, TrainLoad
from tests.calibration.worlds import LENGTHS, LINEAR, REWARDS, write_world


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("known")
    policies = ["sync", "april(over_sampling=2)", "sync"]
    return [write_world(place / f"run{i}", policy=p, seed=i) for i, p in enumerate(policies)]


@pytest.fixture(scope="module")
def fitted(runs: list[Path]) -> Fitted:
    return calibrate(runs)


def test_constants_of_an_iteration_are_recovered_within_their_errors(fitted: Fitted) -> None:
    """The median step carries the outliers' share: 8 % of the iterations take 4 times as long."""
    found = fitted.content["fits"]["iteration"]
    ratio = found["step_ratio"]
    assert 1.1 < ratio < 1.4
    cost, errors = fitted.content["cost"]["iteration"], found["standard_errors"]
    truth = {
        "fixed_s": LINEAR["iteration_s"],
        "per_context_token_s": LINEAR["per_context_token_s"],
        "per_prefill_token_s": LINEAR["per_prefill_token_s"],
    }
    for name, value in truth.items():
        error = errors[name] / ratio
        assert 0 < error < 0.3 * value, name
        assert abs(cost[name] / ratio - value) < 3.5 * error + 2e-3 * value, name
    [[start, slope]] = cost["rollout_pieces"]
    assert start == 0
    error = errors["rollouts>0"] / ratio
    assert abs(slope / ratio - LINEAR["per_rollout_s"]) < 3.5 * error
    assert cost["per_admission_s"] / ratio < 1e-4
    assert cost["per_prefill_pair_s"] == 0.0


def test_updates_and_overheads_are_recovered(fitted: Fitted) -> None:
    cost = fitted.cost
    load = TrainLoad([(20, [40] * 6)] * 8)
    wanted = LINEAR["train_fixed_s"] + LINEAR["train_per_token_s"] * load.tokens
    assert cost.train(load).total_s == pytest.approx(wanted, rel=0.05)
    assert cost.sync_s == pytest.approx(LINEAR["sync_s"], rel=1e-6)
    assert cost.switch_to_train_s == pytest.approx(LINEAR["switch_to_train_s"], rel=1e-6)
    assert cost.switch_to_rollout_s == pytest.approx(LINEAR["switch_to_rollout_s"], rel=1e-6)


def test_lengths_and_rewards_are_recovered(fitted: Fitted) -> None:
    found = fitted.content["lengths"]
    assert found["unfinished"] > 0  # APRIL's carried rollouts are there, as censored ones
    for name in ("median_tokens", "between_sd", "within_sd"):
        error = found["standard_errors"][name]
        assert abs(found["lengths"][name] - LENGTHS[name]) < 3.5 * error, name
        assert error < 0.2 * LENGTHS[name]
    rewards = fitted.content["rewards"]
    for name, value in rewards["rewards"].items():
        if name != "family":
            error = rewards["standard_errors"][name]
            assert abs(value - REWARDS[name]) < 3.5 * error, name


def collect(run: Path) -> iterations.Samples:
    folder = RunFolder.open(run)
    return iterations.collect([folder], [steady(len(folder.steps["step"]))])


def test_a_bend_in_rollouts_is_found_and_a_straight_line_stays_one(tmp_path: Path) -> None:
    bent = write_world(tmp_path / "bent", bend=(16, 2e-4), steps=10)
    samples = collect(bent)
    found = iterations.fit_iterations(samples)
    assert 16 in found.knots
    low, high = found.fit["rollouts>0"], found.fit[f"rollouts>{found.knots[-1]}"]
    assert high - low == pytest.approx(2e-4, rel=0.25)


def test_intervals_cover_the_truth(tmp_path: Path) -> None:
    """Nominal 90 % intervals of four coefficients, in worlds that differ only by chance."""
    hits = 0
    for seed in range(5):
        run = write_world(tmp_path / f"{seed}", policy="april(over_sampling=2)", seed=seed, steps=8)
        samples = collect(run)
        found = iterations.fit_iterations(samples).fit
        for term, name in (
            ("fixed", "iteration_s"),
            ("context", "per_context_token_s"),
            ("rollouts>0", "per_rollout_s"),
            ("prefill", "per_prefill_token_s"),
        ):
            hits += abs(found[term] - LINEAR[name]) < 1.645 * found.error(term)
    assert hits >= 14  # of 20 at 90 %: fewer than 14 happen once in 400 times


def test_without_noise_the_fit_is_exact(tmp_path: Path) -> None:
    run = write_world(tmp_path / "quiet", spread=0.0, outliers=0.0, steps=6)
    cost = calibrate([run]).cost
    for work in (Iteration(5, 300), Iteration(40, 2000)):
        wanted = LINEAR["iteration_s"] + work.rollouts * LINEAR["per_rollout_s"]
        wanted += work.context_tokens * LINEAR["per_context_token_s"]
        curve = cost.decode_curve(work.rollouts)
        assert curve.seconds(work.context_tokens) == pytest.approx(wanted, rel=1e-3)
        assert cost.mixed_iteration_s(work) == pytest.approx(wanted, rel=1e-3)


def test_least_squares_would_not_do() -> None:
    """The robust fit ignores what ruins a plain one."""
    rng = np.random.default_rng(3)
    x = rng.uniform(1, 100, 500)
    y = (1.0 + 0.1 * x) * np.exp(0.03 * rng.normal(size=500))
    y[rng.random(500) < 0.15] *= 5.0
    terms = {"fixed": np.ones(500), "x": x}
    found = fit(terms, y, np.arange(500))
    assert found["x"] == pytest.approx(0.1, rel=0.01)
    assert found["fixed"] == pytest.approx(1.0, rel=0.05)
    plain = np.linalg.lstsq(np.column_stack(list(terms.values())), y, rcond=None)[0]
    assert abs(plain[1] / 0.1 - 1) > 0.2


def test_terms_that_explain_nothing_are_left_out() -> None:
    rng = np.random.default_rng(4)
    x, idle = rng.uniform(1, 100, 400), rng.uniform(1, 100, 400)
    y = (1.0 + 0.1 * x) * np.exp(0.03 * rng.normal(size=400))
    terms = {"fixed": np.ones(400), "x": x, "idle": idle}
    assert needed(terms, y, ("fixed", "x", "idle")) == ("fixed", "x")


def test_no_coefficient_is_negative() -> None:
    x = np.arange(1.0, 101.0)
    found = fit({"fixed": np.ones(100), "x": x}, 10.0 - 0.05 * x, np.arange(100))
    assert found["x"] == 0.0
    assert found.error("x") == 0.0


def test_responses_cut_off_anywhere_are_censored_not_short() -> None:
    """Half the rollouts are stopped at a random point: told so, the fit finds the lengths."""
    from tests.test_fit_lengths import fit_lengths

    rng = np.random.default_rng(8)
    effect = 0.5 * rng.normal(size=(400, 1))
    tokens = np.ceil(np.exp(np.log(300.0) + effect + 0.3 * rng.normal(size=(400, 8))))
    stopped = rng.integers(20, 300, size=tokens.shape)
    stopped[rng.random(tokens.shape) < 0.5] = 10**6
    ended = tokens <= stopped
    whole = [row[done].tolist() for row, done in zip(tokens, ended, strict=True)]
    cut = [row[~done].tolist() for row, done in zip(stopped, ended, strict=True)]
    found = fit_lengths(whole, 10**5, cut)
    assert found.rollouts == tokens.size
    for name, value in (("median_tokens", 300.0), ("between_sd", 0.5), ("within_sd", 0.3)):
        assert abs(getattr(found, name) - value) < 3.5 * found.standard_errors[name], name
    naive = fit_lengths(whole, 10**5)
    assert abs(naive.median_tokens - 300.0) > 3 * abs(found.median_tokens - 300.0)
