"""What a few steps say of many: intervals that hold the truth, and what they may cost."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies import sampling_error, uncertainty
from rollcast.simulator.studies.compare import compare, run_each, warnings_of
from rollcast.simulator.studies.ranking import from_short_runs
from rollcast.simulator.studies.sampling_error import (
    FEW,
    SamplingError,
    WithOne,
    sampling_error_of,
    tail_of_groups,
)
from rollcast.simulator.studies.short_runs import kind_of
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.workload.lengths import Component, LengthModel
from rollcast.simulator.workload.rewards import BetaBernoulli
from rollcast.simulator.workload.synthetic import SyntheticWorkload
from tests.laws import examples

RARE = """
cluster: {placement: disaggregated, replicas: 2, tensor_parallel: 1, trainer_gpus: 2}
engine: {kv_tokens: 200000, max_seqs: 64}
workload:
  batch_groups: 6
  group_size: 4
  prompt_tokens: 64
  max_new_tokens: 2000
  lengths: {family: lognormal, median_tokens: 100, between_sd: 0.2, within_sd: 0.2, runaway: 0.002}
cost: {linear: {iteration_s: 6.0e-3, per_rollout_s: 2.0e-5, per_context_token_s: 2.2e-8,
                per_prefill_token_s: 4.0e-6, train_per_token_s: 1.0e-5, sync_s: 0.1}}
steps: 10
"""


def scenario(*settings: str, policy: str = "sync", seed: int = 0) -> Scenario:
    return from_raw(parse_scenario(RARE), *settings, seed=seed).with_policy(policy)


def of(result: Result, **more: int) -> SamplingError:
    return sampling_error_of(result.scenario, result.run, kind_of(result.run.steps), **more)


@pytest.mark.parametrize("policy", ["sync", "fully_async(max_staleness=1)"])
def test_ten_steps_know_that_they_may_have_met_no_rare_rollout(policy: str) -> None:
    """About one step in 30 holds a group with one, and then takes several times as long."""
    truth = simulate(scenario("steps=400", policy=policy, seed=99)).summary["step_s"]
    held, without = 0, 0
    for seed in range(8):
        result = simulate(scenario(policy=policy, seed=seed))
        low, high = uncertainty.uncertainty(result).intervals["step_s"]
        held += low <= truth <= high
        without += result.summary["step_s"] < 0.95 * truth
    assert without >= 2  # of which its own steps alone would say that they are sure
    assert held >= 7


def test_it_is_wide_only_where_something_rare_may_come() -> None:
    plain = simulate(scenario("workload.lengths.runaway=0"))
    rare = simulate(scenario(seed=next(s for s in range(9) if not met_one(s))))
    assert of(rare).share > 2 * of(plain).share
    assert of(rare).ratios[:, 0].mean() > 1.05


def met_one(seed: int) -> bool:
    return max(simulate(scenario(seed=seed)).run.segments["total_tokens"]) > 1500


def test_how_many_steps_are_enough() -> None:
    found = of(simulate(scenario()))
    assert found.share > FEW
    assert "10 steps are few" in found.warning
    assert "1 step is few" in replace(found, steps=1).warning
    assert f"about {found.enough:,} steps would bring it to 2 %" in found.warning
    exact = 10 * (found.share / 0.02) ** 2
    assert exact <= found.enough <= 1.11 * exact
    many = of(simulate(scenario("steps=120")))
    assert many.share < 0.6 * found.share, (many.share, found.share)
    assert SamplingError().warning == ""


def test_a_longer_run_s_error_is_that_of_what_was_simulated() -> None:
    result = simulate(scenario())
    assert of(result, whole=500).steps == 10
    assert of(result, whole=500).share == of(result).share
    assert of(result, whole=4).share > of(result).share


def test_a_comparison_says_it_once() -> None:
    results = run_each([scenario(policy=policy) for policy in ("sync", "one_step_off")])
    from_short_runs(results)
    told = [said for said in warnings_of(results) if "are few" in said]
    assert len(told) == 1
    most = max(results, key=lambda name: results[name].summary["sampling_error"]["enough_steps"])
    assert told[0].startswith(f"under {most}, 10 steps are few")


@pytest.mark.parametrize(
    ("policy", "steps"), [("sync", 12), ("april", 3), ("one_step_off", 12), ("fully_async", 3)]
)
def test_intervals_take_no_more_work_than_a_long_run(
    policy: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long is what a second's work is next to nothing of."""
    for module in (sampling_error, uncertainty):
        monkeypatch.setattr(module, "LEAST_ROLLOUTS", 1)
    monkeypatch.setattr(uncertainty, "MODEST_ROLLOUTS", 1)
    settings = (
        "model=qwen3-8b",
        "gpu=h100-sxm",
        "cost=roofline",
        "engine.kv_tokens=null",
        "workload.lengths={preset: qwen3-30b-a3b-thinking}",
        "workload.max_new_tokens=16384",
        f"steps={steps}",
    )
    result = simulate(scenario(*settings, policy=policy))
    made: list[StepRecord] = []
    found = uncertainty.uncertainty(result, made.append)
    assert len(made) <= steps
    alone = sampling_error_of(result.scenario, result.run, kind_of(result.run.steps))
    rollouts = sum(record.trained_rollouts for record in result.run.steps)
    assert alone.spent <= max(0.75 * rollouts, 2 * rollouts / steps)
    assert found.shares["lengths"] > 0.01


# The longest of a group


@given(
    st.floats(0.0, 0.8),
    st.floats(0.05, 0.6),
    st.sampled_from([0.0, 0.01]),
    st.integers(1, 8),
    st.sampled_from([150, 400, 900]),
)
@settings(max_examples=examples(15), deadline=None)
def test_how_often_the_longest_is_longer(
    between: float, within: float, runaway: float, size: int, beyond: int
) -> None:
    parts = (Component("lognormal", 120, between, within), Component("gamma", 60, between, within))
    lengths = LengthModel(parts, (0.6, 0.4), runaway)
    workload = SyntheticWorkload(lengths, BetaBernoulli(0.5, 0.3), 8, 1000, 5)
    longest = np.array([max(workload.draw(group, size).new_tokens) for group in range(4000)])
    share, mean = tail_of_groups(lengths, size, beyond, 1000)
    seen = longest > beyond
    assert abs(share - seen.mean()) <= 4 * np.sqrt(share * (1 - share) / 4000) + 5e-4
    if seen.sum() > 100:
        assert mean == pytest.approx(longest[seen].mean(), rel=0.06)


def test_nothing_is_longer_than_the_cap() -> None:
    lengths = LengthModel.lognormal(100, 0.5, 0.5)
    assert tail_of_groups(lengths, 8, 1000, 1000) == (0.0, 1000.0)
    assert tail_of_groups(LengthModel.lognormal(10, 0, 0), 8, 500, 1000) == (0.0, 500.0)


def test_one_is_put_in_and_no_other_moves() -> None:
    base = scenario().workload
    put_in = WithOne(base, 3, 1999)
    assert put_in.draw(3, 4).new_tokens == [1999, *base.draw(3, 4).new_tokens[1:]]
    assert put_in.draw(2, 4) == base.draw(2, 4)
    assert put_in.draw(3, 4, attempt=1) == base.draw(3, 4, attempt=1)
    assert put_in.max_prompt_tokens == base.max_prompt_tokens
    result = simulate(replace(scenario(), workload=put_in))
    assert result.summary["makespan_s"] > simulate(scenario()).summary["makespan_s"]


def test_compare_warns_of_too_few_steps_in_python() -> None:
    few = [scenario("steps=4", policy=policy) for policy in ("sync", "april")]
    with pytest.warns(UserWarning, match="under april, 4 steps are too few") as caught:
        compare(few)
    assert len(caught) == 1  # none of sync, whose steps are alone
    assert caught[0].filename == __file__
