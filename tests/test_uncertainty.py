"""Quick intervals: what they hold, what they come from, and what they cost."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.costs.scaled import PHASES, ScaledCost
from rollcast.simulator.errors import RunError
from rollcast.simulator.results.phases import SIDES, in_sum
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies import short_runs
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.redrawn import UNCERTAIN, redrawn
from rollcast.simulator.studies.short_runs import FIGURES, Responses
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.surrogate import Sides, Surrogate
from rollcast.simulator.studies.uncertainty import (
    COST_DRAWS,
    SEEDS,
    Uncertainty,
    add_intervals,
    cost_draws,
    uncertainty,
)
from rollcast.simulator.studies.work import SAME, Work
from tests.conftest import Cli
from tests.laws import examples
from tests.refusals import ran, refused

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ("steps=3", "workload.batch_groups=4", "cluster.replicas=2", "cluster.trainer_gpus=2")
FIXED = (
    "workload.lengths={family: lognormal, median_tokens: 300, between_sd: 0, within_sd: 0}",
    "workload.prompt_tokens=64",
    "workload.max_new_tokens=1024",
)
ONES = dict.fromkeys(PHASES, 1.0)


def small(*more: str, example: str = "april") -> Scenario:
    return load(EXAMPLES / f"{example}.yaml", *SMALL, "policy=sync", *more)


def with_spreads(scenario: Scenario, **spreads: float) -> Scenario:
    """Costs that are uncertain in these phases alone: standard deviations of the log."""
    return replace(scenario, cost=ScaledCost(scenario.cost, ONES, spreads))


def of(scenario: Scenario) -> Uncertainty:
    return uncertainty(simulate(scenario))


def log_sd(found: Uncertainty, figure: str = "step_s") -> float:
    return float(np.std(np.log(found.draws[figure])))


def test_what_is_known_has_no_width() -> None:
    """Lengths that are all alike, and costs that are exact."""
    scenario = with_spreads(small(*FIXED), decode=0.0)
    result = simulate(scenario)
    found = uncertainty(result)
    for key, (low, high) in found.intervals.items():
        assert low == pytest.approx(high) == pytest.approx(result.summary[key])
    assert found.shares == {}


@settings(max_examples=examples(8), deadline=None)
@given(
    decode=st.floats(0.0, 0.3),
    update=st.floats(0.0, 0.3),
    sync=st.floats(0.0, 0.3),
    seed=st.integers(0, 99),
)
def test_intervals_hold_the_point_and_shares_are_shares(
    decode: float, update: float, sync: float, seed: int
) -> None:
    scenario = replace(with_spreads(small(), decode=decode, update=update, sync=sync), seed=seed)
    result = simulate(scenario)
    found = uncertainty(result)
    assert set(found.draws) == {key for key in UNCERTAIN if key in result.summary}
    for key, (low, high) in found.intervals.items():
        assert low <= result.summary[key] * (1 + 1e-9)
        assert high >= result.summary[key] * (1 - 1e-9)
    assert 0.0 < sum(found.shares.values()) <= 1.0 + 1e-9
    assert all(share >= 0.0 for share in found.shares.values())
    assert list(found.shares.values()) == sorted(found.shares.values(), reverse=True)


def test_a_spread_acts_by_its_phase_s_part_of_the_step() -> None:
    scenario = small(*FIXED)
    summary = simulate(scenario).summary
    sync = of(with_spreads(scenario, sync=0.1))
    part = summary["sync_s"] / summary["makespan_s"]
    assert log_sd(sync) == pytest.approx(0.1 * part, rel=0.1)
    assert log_sd(sync, "sync_s") == pytest.approx(0.1, rel=0.05)
    assert set(sync.shares) == {"sync"}
    both = with_spreads(scenario, **dict.fromkeys(PHASES, 0.0) | {"decode": 0.2, "update": 0.1})
    decode, update = (
        log_sd(of(with_spreads(scenario, **{name: sd})))
        for name, sd in (("decode", 0.2), ("update", 0.1))
    )
    shares = of(both).shares
    assert shares["decode efficiency"] / shares["trainer efficiency"] == pytest.approx(
        decode**2 / update**2, rel=0.2
    )


def test_the_preset_s_own_errors_are_in_it() -> None:
    """And most of it, where it was fitted to 14 prompts."""
    with_preset = of(small())
    assert with_preset.shares["lengths"] > 0.25
    assert "lengths preset (14 prompts)" in with_preset.note(small())
    given = (
        "workload.lengths={family: lognormal, median_tokens: 4573, between_sd: 0.743, "
        "within_sd: 0.364}"
    )
    without = of(small(given))
    assert "lengths" not in without.shares
    assert log_sd(with_preset) > 1.1 * log_sd(without)


def test_a_drift_widens_a_long_run() -> None:
    lengths = (
        "{family: lognormal, median_tokens: 300, between_sd: 0, within_sd: 0, "
        "drift_per_step: 0.004}"
    )
    scenario = small(*FIXED[1:], f"workload.lengths={lengths}", "steps=60")
    found = of(with_spreads(scenario, decode=0.0))
    # Nine of ten runs drift by 0.18 to 1.82 times as much: on average 0.10 of the log either way.
    assert log_sd(found, "rollout_s") == pytest.approx(0.5 * 0.004 * 29.5, rel=0.25)
    assert found.shares["drift"] > 0.95


def test_quick_widths_are_those_of_whole_runs() -> None:
    """As far as forty whole runs can say."""
    scenario = small("steps=6")
    result = simulate(scenario)
    whole = [simulate(redrawn(scenario, d + 1)).summary["step_s"] for d in range(40)]
    quick = np.std(np.log(uncertainty(result).draws["step_s"]))
    assert quick == pytest.approx(np.std(np.log(whole)), rel=0.35)


@pytest.mark.parametrize("example", ["fully_async", "one_step_off"])
def test_runs_that_overlap_have_intervals_too(example: str) -> None:
    scenario = load(EXAMPLES / f"{example}.yaml", "steps=6", "workload.batch_groups=8")
    result = simulate(scenario)
    low, high = ends(uncertainty(result).draws["step_s"])
    assert 0.3 * result.summary["step_s"] < low < result.summary["step_s"] < high
    assert high < 3.0 * result.summary["step_s"]


def test_what_cannot_be_tried_is_left_out_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = small()
    result = simulate(scenario)

    def fails(*_: object) -> None:
        raise RunError("no")

    monkeypatch.setattr(short_runs, "drive", fails)
    found = add_intervals(result)
    assert "lengths/median_tokens" in found.left_out
    assert any("could not be varied" in said for said in result.summary["warnings"])
    assert result.summary["intervals"]["step_s"][0] < result.summary["step_s"]


def test_cost_draws_are_layered_and_of_those_that_are_uncertain() -> None:
    drawn = cost_draws(with_spreads(small(), decode=0.1))
    assert len(drawn) == COST_DRAWS
    factors = np.sort([np.log(cost.factors["decode"]) / 0.1 for cost in drawn])  # type: ignore[attr-defined]
    assert abs(float(np.mean(factors))) < 0.02
    assert float(np.std(factors)) == pytest.approx(1.0, abs=0.05)
    assert cost_draws(load(EXAMPLES / "engine.yaml")) == []


@pytest.mark.parametrize("example", ["april", "agent", "one_step_off", "fully_async", "pods"])
def test_draws_of_phases_add_up_and_hold_the_run(example: str) -> None:
    """Draw by draw; and the share of the draws in which each side bounds the step is a share."""
    settings = ("steps=6", "workload.batch_groups=4")
    if example == "agent":
        settings = (*settings, "cluster.replicas=2", "workload.max_new_tokens=2000")
    result = simulate(load(EXAMPLES / f"{example}.yaml", *settings))
    summary = result.summary
    step = add_intervals(result).step
    total = np.sum([step.phases[name] for name in in_sum(summary["overlapped"])], axis=0)
    assert total == pytest.approx(step.step_s)
    assert (step.phases["tail"] <= step.phases["generation"]).all()
    assert (step.phases["generation"] <= step.step_s * (1 + 1e-9)).all()
    for name, phase in summary["phases"].items():
        assert phase["low_s"] <= phase["s"] <= phase["high_s"]
        assert phase["low_s"] <= np.median(step.phases[name]) <= phase["high_s"]
    assert summary["phases"]["generation"]["low_s"] < summary["phases"]["generation"]["high_s"]
    shares = summary["bound_by_share"]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert set(shares) <= set(SIDES)


def test_a_phase_is_as_sure_as_its_own_costs() -> None:
    scenario = small(*FIXED)
    result = simulate(with_spreads(scenario, update=0.2))
    add_intervals(result)
    wide = {n for n, p in result.summary["phases"].items() if p["high_s"] > 1.05 * p["low_s"]}
    assert wide == {"update", "optimiser"}
    update = result.summary["phases"]["update"]
    assert np.log(update["high_s"] / update["low_s"]) == pytest.approx(2 * 1.645 * 0.2, rel=0.1)


@pytest.mark.parametrize(
    ("example", "policy"), [("april", "sync"), ("one_step_off", "one_step_off")]
)
def test_what_bounds_a_step_switches_as_a_cost_grows(example: str, policy: str) -> None:
    """In nearly all draws one side; in some either, where both take as long; then the other."""
    settings = ("steps=6", "workload.batch_groups=4", f"policy={policy}")

    def scaled(update: float) -> Scenario:
        scale = f"cost.scale={{update: {update}, update_sd: 0.5}}"
        return load(EXAMPLES / f"{example}.yaml", *settings, scale)

    seconds = simulate(scaled(1.0)).summary["phases"]
    even = (seconds["generation"]["s"] - seconds["log_prob"]["s"]) / seconds["update"]["s"]
    found = []
    for update in (even / 20, even, even * 20):
        result = simulate(scaled(update))
        add_intervals(result)
        found.append(result.summary["bound_by_share"])
    assert found[0]["generation"] > 0.99
    assert 0.2 < found[1]["generation"] < 0.8
    assert 0.2 < found[1]["trainer"] < 0.8
    assert found[2]["trainer"] > 0.99


def test_what_waits_for_environments_does_not_go_with_prices() -> None:
    settings = ("steps=2", "workload.batch_groups=4", "cluster.replicas=2")
    result = simulate(load(EXAMPLES / "agent.yaml", *settings))
    away_s = result.summary["replicas_wait_s"]["environment"]
    generation_s = result.summary["phases"]["generation"]["s"]
    assert 0.1 * generation_s < away_s < generation_s
    run = Surrogate(result.summary, Responses({}), flows=False)
    twice = {name: np.array([2.0]) for name in SAME}
    drawn = run.drawn(twice, {}, np.ones((1, len(FIGURES))))
    assert drawn.phases["generation"] == pytest.approx(2 * generation_s - away_s)
    slow = run.drawn({**twice, "tail": np.array([99.0])}, {}, np.ones((1, len(FIGURES))))
    assert slow.phases["tail"] == slow.phases["generation"] == drawn.phases["generation"]


def test_prices_of_a_run_are_as_if_it_was_run_with_them() -> None:
    scenario = small(*FIXED)
    result = simulate(scenario)
    work = Work(scenario, result.run)
    assert work.prices(scenario.cost) == pytest.approx(SAME)
    dear = ScaledCost(scenario.cost, {**ONES, "decode": 1.3, "update": 1.2, "sync": 2.0})
    prices = work.prices(dear)
    again = simulate(replace(scenario, cost=dear)).summary
    for name in ("generation", "log_prob", "update", "optimiser", "sync", "switch"):
        moved = again["phases"][name]["s"] / result.summary["phases"][name]["s"]
        assert prices[name] == pytest.approx(moved, rel=0.02), name


def test_the_tail_has_prices_of_few_rollouts() -> None:
    """A host's time for each iteration is most of one with few rollouts, and little of one with
    many; a longer attention the other way round."""
    scenario = small("workload.batch_groups=16")
    result = simulate(scenario)
    assert result.summary["phases"]["tail"]["s"] / result.summary["phases"]["generation"]["s"] > 0.1
    slow_host = small("workload.batch_groups=16", "cost.roofline.host_s=0.05")
    work = Work(scenario, result.run)
    prices = work.prices(slow_host.cost)
    assert prices["tail"] > 1.1 * prices["generation"] > 1.1
    again = simulate(slow_host).summary["phases"]["tail"]["s"]
    moved = again / result.summary["phases"]["tail"]["s"]
    assert prices["tail"] == pytest.approx(moved, rel=0.1)


def test_a_step_of_two_sides_goes_with_prices_and_is_at_least_either() -> None:
    sides = Sides(0.9, 0.6, 4.0)
    twice = np.array([2.0])
    one = np.array([1.0])
    assert sides.step(one, one) == pytest.approx(1.0)
    assert sides.step(twice, twice) == pytest.approx(2.0)
    assert 1.0 < float(sides.step(one, twice)[0]) < 2.0
    assert float(sides.step(one, 100 * one)[0]) == pytest.approx(100 * 0.6 / 0.945, rel=0.05)


def test_the_command_line_has_them_unless_told_not_to(cli: Cli) -> None:
    path = str(EXAMPLES / "april.yaml")
    options = [part for setting in (*SMALL, "policy=sync") for part in ("--set", setting)]
    out = ran(cli("simulate", path, *options, "--json"))
    summary = json.loads(out)
    assert summary["intervals"]["cost_usd"][0] < summary["cost_usd"]
    assert summary["intervals_from"] == "short runs"
    assert summary["interval_shares"]["lengths"] > 0.2
    assert SEEDS in summary["interval_shares"]
    _, text, _ = cli("simulate", path, *options)
    assert "90 % interval of the step time: " in text
    assert "; its variance: " in text
    for command in ("simulate", "compare"):
        _, text, _ = cli(command, path, *options, "--draws", "0")
        assert "90 %:" not in text
        for draws in (-1, 99_999_999):
            err = refused(cli(command, path, *options, "--draws", draws))
            assert f"--draws: is {draws}; give 10 to 10,000, or 0 for none" in err
