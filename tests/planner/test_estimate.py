"""What is said of a choice before it is simulated, and what a simulation says of it."""

from dataclasses import replace

import pytest

from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.estimate import Estimate, estimate, estimated
from rollcast.simulator.planner.measure import Failure, Measured, Setup, measured, setup_of
from rollcast.simulator.planner.question import Objective
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.scenario.plan_section import LimitSection
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import from_raw, simulate

SCENARIO = """
model: qwen3-8b
gpu: h100-sxm
cluster: {placement: disaggregated, replicas: 4, tensor_parallel: 1, trainer_gpus: 4}
workload:
  batch_groups: 16
  group_size: 4
  prompt_tokens: 64
  max_new_tokens: 2048
  lengths: {family: lognormal, median_tokens: 300, between_sd: 0.4, within_sd: 0.4}
  rewards: {family: beta_bernoulli, mean: 0.5, between_sd: 0.3}
steps: 6
"""
SETUP = Setup("h100-sxm", 8, "disaggregated", 4, 1, 4, 2.5)


def scenario(*settings: str, policy: str = "sync") -> Scenario:
    return from_raw(parse_scenario(SCENARIO), *settings).with_policy(policy)


def by_hand(overlaps: bool) -> Estimate:
    return Estimate(SETUP, 10.0, 6.0, 1.0, overlaps, 64.0, 16.0, 64.0)


# Estimates


def test_a_step_is_its_parts_one_after_the_other_or_the_longer_of_them() -> None:
    assert by_hand(overlaps=False).step_s() == 17.0
    assert by_hand(overlaps=False).step_s(2.0) == 27.0
    assert by_hand(overlaps=True).step_s() == 11.0
    assert by_hand(overlaps=True).step_s(0.3) == 7.0


def test_a_simulation_says_by_how_much_rollouts_were_off() -> None:
    for overlaps in (False, True):
        found = by_hand(overlaps)
        for factor in (0.8, 1.0, 1.7):
            assert found.factor(found.step_s(factor)) == pytest.approx(factor)
    assert by_hand(overlaps=True).factor(7.0) is None  # the update hides it
    assert by_hand(overlaps=False).factor(3.0) == 0.0


@pytest.mark.parametrize(
    "settings",
    [(), ("cluster.replicas=2",), ("engine.max_seqs=8",), ("cluster.placement=colocated",)],
)
def test_synchronous_estimates_are_near(settings: tuple[str, ...]) -> None:
    found = estimated(scenario(*settings))
    truth = simulate(scenario(*settings, "steps=12")).summary
    assert found.step_s() == pytest.approx(truth["step_s"], rel=0.12)
    assert found.train_s == pytest.approx(truth["train_s"] / 12, rel=0.12)
    assert found.taken == found.trained == 64
    assert found.used == 16


def test_an_estimate_knows_the_plan() -> None:
    plain = estimated(scenario())
    assert estimated(scenario(policy="april(over_sampling=1.5)")).train_s == plain.train_s
    few = estimated(scenario(policy="pods(keep=2)"))
    assert (few.taken, few.trained) == (64, 32)
    assert few.train_s < 0.8 * plain.train_s
    ahead = estimated(scenario(policy="one_step_off"))
    assert ahead.overlaps
    assert not plain.overlaps
    rarely = estimated(scenario(policy="fully_async(max_staleness=4, sync_every=2)"))
    often = estimated(scenario(policy="fully_async(max_staleness=4)"))
    assert often.between_s == pytest.approx(2 * rarely.between_s)
    wave = estimated(scenario(policy="sorted_rl"))  # four times the batch, until enough are done
    first = simulate(scenario("steps=1", policy="sorted_rl")).run.steps[0]
    assert wave.rollout_s == pytest.approx(first.rollout_s, rel=0.15)


def test_what_does_not_fit_is_known_without_a_simulation() -> None:
    huge = Choice({}, {"workload.max_new_tokens": 4_000_000}, "sync")
    found = estimate(parse_scenario(SCENARIO), huge)
    assert isinstance(found, Failure)
    assert "cannot hold one rollout" in found.problem
    assert isinstance(estimate(parse_scenario(SCENARIO), Choice({}, {}, "sync")), Estimate)


# What is measured


def test_what_an_update_takes_in_uses_up_and_trains_on() -> None:
    found = measured(simulate(scenario(policy="dynamic_sampling+pods(keep=2)")))
    records = simulate(scenario(policy="dynamic_sampling+pods(keep=2)")).run.steps
    assert found.taken == 64
    assert found.trained == 32
    rejected = sum(record.rejected_groups for record in records)
    assert rejected
    assert found.used == pytest.approx(16 + rejected / len(records))
    assert found.staleness_max == 0
    assert found.steps == len(found.series_s) == 6


def test_how_old_how_settled_how_sure() -> None:
    result = simulate(scenario("steps=24", policy="fully_async(max_staleness=2)"))
    found = measured(result, 100)
    assert found.staleness_max == 2
    assert found.settled
    assert found.startup_s == pytest.approx(result.summary["startup_s"])
    assert found.startup_steps == result.summary["steady_steps"][0] > 0
    assert min(found.factors) < 1 < max(found.factors)
    short = measured(simulate(scenario("steps=3", policy="fully_async(max_staleness=2)")))
    assert not short.settled
    assert short.factors == ()
    assert Measured.from_plain(found.plain()) == found


def test_luck_is_said_of_what_was_simulated() -> None:
    rare = ("workload.batch_groups=2", "workload.lengths.runaway=0.003", "steps=5")
    found = measured(simulate(scenario(*rare)), 500)
    assert any("5 steps are few" in said for said in found.warnings)
    assert not any("are few" in said for said in measured(simulate(scenario(*rare))).warnings)


def test_gpus_of_a_pipeline() -> None:
    found = setup_of(scenario("cluster.tensor_parallel=2", "cluster.pipeline_parallel=2"))
    assert (found.gpus, found.tensor_parallel, found.stages) == (20, 2, 2)
    assert found.replica == "TP 2 x PP 2"
    assert setup_of(scenario()) == replace(
        SETUP, usd_per_gpu_hour=setup_of(scenario()).usd_per_gpu_hour
    )


# What is aimed at


def run_cost(hours: float, usd: float | None) -> RunCost:
    return RunCost(10.0, hours, 8 * hours, usd)


def run_of(staleness: int) -> Measured:
    return replace(measured(simulate(scenario("steps=1"))), staleness_max=staleness)


def test_which_limits_are_broken() -> None:
    objective = Objective("usd", LimitSection(hours=10, usd=100, gpus=8, staleness=1))

    def broken(gpus: int, stale: int, made: RunCost) -> list[str]:
        setup = replace(SETUP, gpus=gpus)
        return [name for name, _ in objective.beyond(setup, run_of(stale), made)]

    assert broken(8, 1, run_cost(10, 100)) == []  # a limit may be reached
    assert broken(8, 1, run_cost(10, None)) == []
    assert broken(9, 1, run_cost(10, 100)) == ["gpus"]
    assert broken(8, 2, run_cost(10, 100)) == ["staleness"]
    assert broken(8, 1, run_cost(10.1, 100)) == ["hours"]
    assert broken(16, 2, run_cost(11, 101)) == ["hours", "usd", "gpus", "staleness"]


def test_estimates_in_a_row_are_those_of_each_alone() -> None:
    raw = parse_scenario(SCENARIO)
    wide = {"cluster.placement": "colocated", "cluster.trainer_gpus": 4}
    small = {"gpu": "rtx-5090", **wide}  # fits with its states away
    tiny = {
        "gpu": {"preset": "l4", "memory_bytes": 4e9},
        "cluster.placement": "colocated",
        "cluster.trainer_gpus": 1,
    }
    policies = ("sync", "pods(keep=2)", "prefix_reuse", "sync+pods(keep=2)", "april")
    choices = [
        Choice({}, settings, policy)
        for settings in ({}, wide, small, tiny, {"workload.group_size": 8})
        for policy in policies
    ]
    in_a_row = [estimate(raw, choice) for choice in choices]
    assert any(isinstance(one, Failure) for one in in_a_row)
    assert any(isinstance(one, Estimate) and one.unasked for one in in_a_row)
    for choice, known in zip(choices, in_a_row, strict=True):
        alone = estimate(parse_scenario(SCENARIO), choice)  # another object: nothing is shared
        assert alone == known
