"""Intervals and rankings of comparisons."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.core.plan import Batch
from rollcast.simulator.studies.compare import run_each, table, warnings_of
from rollcast.simulator.studies.drawn import BLOCK_STEPS, block_rows
from rollcast.simulator.studies.ranking import Ranking, from_short_runs, redraw
from rollcast.simulator.studies.simulate import load
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.length_specs import length_presets

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE = EXAMPLES / "engine.yaml"


def ranking(**step_s: Any) -> Ranking:
    """Of policies with these step times by draw."""
    draws = np.column_stack(list(step_s.values()))
    return Ranking(tuple(step_s), draws.mean(axis=0), draws, "short runs")


def test_noise_that_all_policies_share_does_not_blur_their_ratio() -> None:
    times = np.random.default_rng(0).gamma(2.0, size=60)
    found = ranking(slow=2 * times, fast=times)
    assert found.order == ["fast", "slow"]
    assert found.speedup("fast") == pytest.approx((2.0, 2.0))
    assert found.may_flip() == []
    assert found.sure_of_next("fast") == 1.0
    assert np.isnan(found.sure_of_next("slow"))


def test_equal_policies_may_change_places() -> None:
    times = np.random.default_rng(0).gamma(2.0, size=60)
    assert ranking(one=times, other=times).may_flip() == [("one", "other", 0.5)]


def test_short_runs_draw_policies_alike() -> None:
    """So that a policy has no interval against itself, and costs that all share drop out."""
    scenario = load(EXAMPLES / "april.yaml", "steps=3", "workload.batch_groups=8")
    results = run_each([scenario.with_policy(p) for p in ("one = sync", "other = sync")])
    found = from_short_runs(results)
    assert found.speedup("other") == pytest.approx((1.0, 1.0))
    assert np.ptp(found.draws[:, 0]) > 0.1 * found.step_s[0]


def test_a_speedup_is_per_rollout_and_smaller_updates_are_told() -> None:
    """A step of half the rollouts is no step twice as fast."""
    scenario = load(EXAMPLES / "april.yaml", "steps=2", "workload.batch_groups=4")
    scenarios = [
        scenario.with_policy("whole = sync"),
        replace(scenario, plan=replace(scenario.plan, batch=Batch(2, 8))).with_policy(
            "half = sync"
        ),
        scenario.with_policy("pods(keep=2)"),
    ]
    results = run_each(scenarios)
    whole, half, pods = table(results, from_short_runs(results))
    assert half["speedup"] == pytest.approx(whole["step_s"] / half["step_s"] / 2)
    assert half["speedup_low"] <= half["speedup"] <= half["speedup_high"]
    assert pods["speedup"] == pytest.approx(whole["step_s"] / pods["step_s"])
    assert [row["trained_rollouts_per_step"] for row in (whole, half, pods)] == [32, 16, 8]
    [told] = [text for text in warnings_of(results) if "different numbers of rollouts" in text]
    assert "whole on 32, half on 16, pods(keep=2) on 8" in told


def test_a_row_of_another_model_or_split_is_drawn_by_its_own_costs_and_lengths() -> None:
    """Its interval was that of the first row's costs, and ended at its own figure."""
    small = ("steps=2", "workload.batch_groups=4", "policy=")
    rows = [
        load(EXAMPLES / "april.yaml", *small, key)
        for key in ("seed=0", "cluster.tensor_parallel=2", "workload.max_new_tokens=2000")
    ]
    named = [
        row.with_policy(f"{name} = sync")
        for row, name in zip(rows, ["one", "two", "cut"], strict=True)
    ]
    results = run_each(named)
    [told] = [text for text in warnings_of(results) if "numbers of GPUs" in text]
    gpus = results["one"].summary["gpus"]
    assert f"one on {gpus}, two on {results['two'].summary['gpus']}, cut on {gpus}" in told
    whole = redraw(results, 10)
    for ranking in (from_short_runs(results), whole):
        for name in ("two", "cut"):
            own = ranking.step_s[0] / ranking.step_s[ranking.names.index(name)]
            low, high = ranking.speedup(name)
            assert low < 0.999 * own < 1.001 * own < high
            assert name == "cut" or high < 1.5 * low


def test_a_preset_of_few_prompts_widens_a_speedup() -> None:
    """Its errors belong to the interval; given in full, the same lengths have none."""
    small = ("steps=3", "workload.batch_groups=8", "cluster.replicas=4", "cluster.trainer_gpus=4")
    preset = length_presets()["qwen3-30b-a3b-thinking"].lengths
    widths = []
    for lengths in ({"preset": "qwen3-30b-a3b-thinking"}, dict(preset)):
        scenario = load(EXAMPLES / "april.yaml", *small, f"workload.lengths={json.dumps(lengths)}")
        found = from_short_runs(run_each([scenario.with_policy(p) for p in ("sync", "april")]))
        low, high = found.speedup(found.names[1])
        widths.append(high - low)
    assert widths[0] > 1.1 * widths[1] > 0


def test_redrawn_runs_differ_from_one_another_and_agree_with_short_runs() -> None:
    scenario = load(EXAMPLE, "steps=12")
    chosen = ["sync", "april(over_sampling=2)"]
    results = run_each([scenario.with_policy(policy) for policy in chosen])
    ranking = redraw(results, 10)
    assert ranking.draws.shape == (10, 2)
    assert len({float(value) for value in ranking.draws[:, 0]}) == 10
    assert np.array_equal(redraw(results, 2).draws, ranking.draws[:2])
    speedup = float(ranking.step_s[0] / ranking.step_s[1])
    for found in (ranking, from_short_runs(results)):
        low, high = found.speedup(results["april"].scenario.policy_name)
        assert low < speedup < high
    rows = table(results, ranking)
    assert rows[1]["sure"] == 1.0
    assert rows[1]["speedup_low"] < rows[1]["speedup"] < rows[1]["speedup_high"]
    assert "speedup_low" not in table(results, None)[0]


def test_a_tie_is_half_sure() -> None:
    draws = np.array([[1.0, 1.0], [1.0, 2.0]])
    ranking = Ranking(("a", "b"), np.array([1.0, 1.5]), draws, "whole runs")
    assert ranking.sure("a", "b") == 0.75
    assert ranking.sure("b", "a") == 0.25


def test_roofline_costs_are_drawn_too() -> None:
    """Without lengths to draw, what remains is the doubt about the costs."""
    from rollcast.simulator.costs.roofline.cost import RooflineCost

    scenario = load(
        Path(__file__).parent.parent / "examples" / "one_step_off.yaml",
        "steps=2",
        "workload.batch_groups=4",
        "workload.lengths={family: lognormal, median_tokens: 300, between_sd: 0, within_sd: 0}",
    )
    cost = scenario.cost
    assert isinstance(cost, RooflineCost)
    rng = np.random.default_rng(0)
    drawn = [cost.with_figures_drawn(Drawn(rng)) for _ in range(60)]
    for name in ("host_s", "switch_fixed_s", "sync_fixed_s"):
        factors = np.array([getattr(each, name) / getattr(cost, name) for each in drawn])
        assert 0.2 <= factors.min() < factors.max() <= 7.0
        assert factors.std() > 0.3
    traffic = [each.trainer_of.traffic_per_logit for each in drawn]
    assert min(traffic) >= 0.4 * cost.trainer_of.traffic_per_logit
    for each in drawn:
        assert each.trainer_of.gpu is each.gpu
        assert each.gpu.gemm_bandwidth_efficiency <= 1.0
    ranking = redraw(run_each([scenario.with_policy("sync")]), 10)
    assert np.ptp(ranking.draws) > 0.05 * ranking.draws.mean()


@given(
    steps=st.integers(1, 40),
    wanted=st.integers(1, 60),
    draws=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_steps_are_drawn_again_in_stretches(steps: int, wanted: int, draws: int, seed: int) -> None:
    rows = block_rows(steps, wanted, draws, np.random.default_rng(seed))
    assert rows.shape == (draws, wanted)
    assert ((rows >= 0) & (rows < steps)).all()
    length = min(BLOCK_STEPS, steps)
    for place in range(1, wanted):
        if place % length:  # within a stretch
            assert (rows[:, place] == (rows[:, place - 1] + 1) % steps).all()


def test_every_step_is_drawn_equally_often() -> None:
    rows = block_rows(23, 23, 4000, np.random.default_rng(0))
    counts = np.bincount(rows.ravel(), minlength=23) / 4000
    assert np.abs(counts - 1.0).max() < 0.1
