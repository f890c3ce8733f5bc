"""The law of progress: theory by brute force, order between policies, draws, and its files."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.data import load, prior, save
from rollcast.simulator.learning.group_signal import ACCURACIES, group_signal
from rollcast.simulator.learning.progress import nodes
from rollcast.simulator.learning.schedule import schedule_of
from rollcast.simulator.learning.signals import Signals, signals_of
from rollcast.simulator.loop.selection import max_variance
from rollcast.testing import try_policy


def signals(updates: int = 40, rollouts: int = 128, size: int = 8, age: float = 0.0) -> Signals:
    ones = np.ones(updates)
    return Signals(
        rollouts=np.full(updates, rollouts),
        groups=np.full(updates, rollouts // size),
        group_size=size * ones,
        kept=ones,
        age=age * ones,
        age_spread=0 * ones,
        minibatches=ones,
        seconds=np.arange(1.0, updates + 1),
    )


@pytest.mark.parametrize(("sampled", "trained", "rule"), [(4, 4, "none"), (6, 2, "MaxVariance")])
def test_the_signal_is_that_of_every_outcome(sampled: int, trained: int, rule: str) -> None:
    spread, mixed = group_signal(sampled, trained, rule, math.inf)
    at = 50
    p, want, share = float(ACCURACIES[at]), 0.0, 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=sampled):
        chance = math.prod(p if r else 1 - p for r in outcome)
        kept = [outcome[i] for i in max_variance(outcome, trained)]
        want += chance * float(np.std(kept))
        share += chance * (float(np.std(kept)) > 0)
    assert spread[at] == pytest.approx(want)
    assert mixed[at] == pytest.approx(share)


@given(st.floats(0.05, 0.9), st.integers(1, 60), st.floats(0, 8))
def test_age_never_helps_and_rollouts_never_harm(start: float, updates: int, age: float) -> None:
    law = prior()
    fresh = law.best(signals(updates), start)
    assert (np.diff(fresh) >= 0).all()
    assert (law.best(signals(updates, age=age), start) <= fresh + 1e-12).all()
    assert (law.best(signals(updates, rollouts=256), start) >= fresh - 1e-12).all()
    assert fresh[0] == pytest.approx(start)


def test_an_update_without_rollouts_changes_nothing() -> None:
    run = signals(6, age=2.0)
    run.rollouts[3] = 0
    curve = prior().best(run, 0.3)
    assert curve[4] == curve[3]
    assert (np.diff(curve)[[0, 1, 2, 4, 5]] > 0).all()


@given(st.floats(0.1, 0.8), st.integers(16, 512), st.floats(0, 8), st.integers(1, 4), st.booleans())
def test_many_at_once_is_one_after_another(
    start: float, rollouts: int, age: float, steps: int, filtered: bool
) -> None:
    """Against the formula of the page, one update after another."""
    law, run = prior(), signals(12, rollouts, 4, age)
    run = replace(run, minibatches=steps * np.ones(12), filtered=filtered)
    log_speed, slowing, log_noise, power, log_staleness = law.parameters.values()
    first = z = math.log(start / (1 - start))
    a = law.concentration
    for got in law.best(run, start)[1:]:
        p = 1 / (1 + math.exp(-z))
        chance = [
            math.comb(4, k) * beta(k + a * p, 4 - k + a * (1 - p)) / beta(a * p, a * (1 - p))
            for k in range(5)
        ]
        mixed = sum(chance[1:4])
        s = sum(c * math.sqrt(k * (4 - k)) / 4 for k, c in enumerate(chance)) / mixed
        n = rollouts / steps * (1.0 if filtered else mixed)
        move = math.exp(log_speed) * steps**power * math.exp(-slowing * (z - first))
        move *= s / math.sqrt(s**2 + math.exp(log_noise) / n)
        z += move / math.sqrt(1 + (math.exp(log_staleness) * age * move) ** 2)
        assert got == pytest.approx(1 / (1 + math.exp(-z)), abs=1e-3)


def beta(x: float, y: float) -> float:
    return math.exp(math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y))


def test_draws_are_shared_by_policies_and_their_mean_is_the_fit() -> None:
    law = replace(prior(), run_sd=0.0, policy_sd=0.0, level_sd=0.0)
    fresh = law.curves(signals(), 0.2, draws=400, seed=3)
    stale = law.curves(signals(age=4), 0.2, draws=400, seed=3)
    assert fresh.shape == (400, 41)
    assert (fresh >= stale).all()  # draw by draw: only the policies differ
    assert (fresh == law.curves(signals(), 0.2, draws=400, seed=3)).all()
    middle = float(np.median(fresh[:, -1]))
    assert middle == pytest.approx(law.best(signals(), 0.2)[-1], abs=0.05)


def test_it_abstains_outside_of_what_it_was_fitted_to() -> None:
    law = prior()
    assert law.domain_reason(signals(), 0.3) is None
    for unlike, start in (
        (signals(age=40), 0.3),
        (signals(), 0.999),
        (replace(signals(), selection="Mine"), 0.3),
        (signals(rollouts=8), 0.3),
        (signals(0), 0.3),
    ):
        reason = law.domain_reason(unlike, start)
        assert reason.endswith(".")


def test_it_abstains_where_the_policy_moves_far_while_tokens_wait() -> None:
    """Age and learning rate are each near what was fitted, but not both together."""
    own = {**prior().parameters, "log_speed": -1.4}
    law = replace(prior(), parameters=own, domain=replace(prior().domain, lag=2.0))
    for age, rate in ((8.0, 1.0), (0.0, 2.0), (4.0, 2.0)):
        assert law.domain_reason(signals(age=age), 0.3, learning_rate_factor=rate) is None
    steps = replace(signals(age=8.0), minibatches=2 * np.ones(40))
    assert "can fall again" in str(law.domain_reason(steps, 0.3, learning_rate_factor=2.0))
    assert law.domain_reason(steps, 0.3) is None


def test_signals_of_a_run_say_what_its_policy_did() -> None:
    plain = signals_of(try_policy("sync", [[4, 6, 5, 9]], steps=4).run)
    assert plain.age.tolist() == [0.0] * 4
    assert (plain.kept == 1).all()
    assert (plain.selection, plain.filtered) == ("none", False)
    late = signals_of(try_policy("one_step_off+pods(keep=2)", [[4, 6, 5, 9]], steps=5).run)
    assert late.age[-1] == 1.0
    assert (late.kept == 0.5).all()
    assert late.selection == "MaxVariance"
    assert (np.diff(late.seconds) > 0).all()
    assert not plain.first_come
    assert not signals_of(try_policy("april", [[4, 6, 5, 9]], steps=3).run).first_come
    tail = signals_of(try_policy("tail_batching", [[4, 6, 5, 9]], steps=3).run)
    assert tail.first_come
    assert "finishes late" in str(prior().domain_reason(tail, 0.3))


@given(st.floats(0.3, 2), st.integers(1, 4))
def test_an_update_counts_with_the_learning_rate_in_force(rate: float, minibatches: int) -> None:
    law, run = prior(), replace(signals(), minibatches=minibatches * np.ones(40))
    scaled = law.best(replace(run, rates=np.full(40, rate)), 0.3)
    assert scaled == pytest.approx(law.best(run, 0.3, learning_rate_factor=rate))
    late = np.arange(40) >= 5
    warm = law.best(replace(run, rates=late.astype(float)), 0.3)
    assert (warm[:6] == warm[0]).all()
    assert warm[6:] == pytest.approx(law.best(run, 0.3)[1:36])


@given(st.integers(0, 9), st.sampled_from(["linear", "cosine"]), st.integers(1, 3))
def test_an_updates_rate_is_the_mean_over_its_minibatches(
    warmup: int, course: str, minibatches: int
) -> None:
    trainer = {"warmup_updates": warmup, "schedule": course, "schedule_updates": 20, "loss": "x"}
    schedule = schedule_of(trainer)
    numbers = np.arange(12)
    each = [schedule.rate_factor(n) for n in range(12 * minibatches)]
    want = np.reshape(each, (12, minibatches)).mean(axis=1)
    assert schedule.rates(numbers, minibatches) == pytest.approx(want)
    assert not schedule.open_ended
    assert schedule_of({"schedule": course}).open_ended


def test_a_law_is_read_as_it_was_written(tmp_path: Path) -> None:
    save(prior(), tmp_path / "law.json")
    assert load(tmp_path / "law.json") == prior()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("schema", "rollcast-fitted/1", "schema"),
        ("parameters", {"log_speed": 1.0}, "parameters must be"),
        ("covariance", [[1.0]], "5 rows"),
        ("run_sd", -1.0, "0 or more"),
        ("domain", {}, "domain"),
        ("source", 3, "source"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, key: str, value: object, said: str) -> None:
    path = tmp_path / "law.json"
    save(prior(), path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(ScenarioError, match=said) as caught:
        load(path)
    assert "calibrate --learning" in caught.value.message


def test_late_updates_taken_at_once_are_as_good_as_each() -> None:
    law, many, numbers = prior(), signals(1200), nodes(1200)
    together = np.diff(numbers)
    best, drawn = law.over(signals(len(together)), together, 0.3, draws=40, seed=0)
    each = law.curves(many, 0.3, draws=40, seed=0)[:, numbers]
    assert np.abs(drawn - each).max() < 1e-3
    assert np.abs(best - law.best(many, 0.3)[numbers]).max() < 1e-3
    assert numbers[:33].tolist() == list(range(33))
    assert numbers[-1] == 1200
