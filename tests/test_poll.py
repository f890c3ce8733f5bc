"""A trainer that looks now and then whether its rollouts are done."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.core.plan import Batch, EnoughGroups, Launch, StepPlan
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs.base import AdjustedCost
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import build_scenario
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.testing.strategies import Scenario, run_scenario
from rollcast.simulator.testing.tables import TableCost, TableWorkload
from tests.laws import examples
from tests.scenarios import FREE
from tests.test_exactness import require_equal, run_both

SECOND_A_TOKEN = TableCost(1.0, 0.0, 0.0, (), 0.0, sync_s=0.5)


def scenario_of(plan: StepPlan, lengths: tuple[int, ...], poll_s: float, **other: bool) -> Scenario:
    return Scenario(
        shape=ClusterShape(1, 1, 1, other.get("colocated", True)),
        engine=EngineSpec(8, 64, 4096, 4, True),
        cost=SECOND_A_TOKEN,
        workload=TableWorkload((4,), lengths, (0.0, 1.0), max(lengths)),
        routing="round_robin",
        plans=(plan,),
        steps=6,
        poll_s=poll_s,
    )


@settings(max_examples=examples(40), deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5).map(tuple),
    poll_s=st.sampled_from([0.25, 1.0, 2.0, 7.0, 1 / 3]),
)
def test_a_phase_in_turns_is_rounded_up(lengths: tuple[int, ...], poll_s: float) -> None:
    """From its beginning: verl's trainer begins to wait when its prompts are handed out."""
    plan = StepPlan(Batch(2, 2))
    at_once = run_scenario(scenario := scenario_of(plan, lengths, 0.0), scenario.world())
    polled = replace(scenario, poll_s=poll_s)
    fast, slow, _ = run_both(polled)
    require_equal(fast, slow)
    for before, now in zip(at_once.steps, fast.steps, strict=True):
        phase_s = before.rollout_end_s - before.rollout_start_s
        waited_s = poll_s * math.ceil(phase_s / poll_s - 1e-9) - phase_s
        assert now.step_s == pytest.approx(before.step_s + waited_s)
    assert fast.ledger == at_once.ledger


@dataclass(frozen=True)
class Read(AdjustedCost):
    """Whose driver opens a step for 3 s and reads a response in 2 s."""

    def opening_s(self, rollouts: int) -> float:
        return 3.0

    def reading_s(self, rollouts: int, at_once: int) -> float:
        assert at_once == min(rollouts, 8)
        return 2.0 * rollouts


@pytest.mark.parametrize(
    ("rollouts", "length", "polled_s", "phase_s"),
    [(4, 5, 0.0, 11.0), (4, 20, 0.0, 23.0), (10, 5, 0.0, 23.0), (4, 5, 4.0, 12.0)],
)
def test_a_phase_lasts_until_the_driver_has_read_its_responses(
    rollouts: int, length: int, polled_s: float, phase_s: float
) -> None:
    """Which it does while others are generated; a trainer that polls looks after it."""
    scenario = scenario_of(StepPlan(Batch(rollouts // 2, 2)), (length,), polled_s)
    scenario = replace(scenario, cost=Read(scenario.cost), steps=2)
    for step in run_scenario(scenario, scenario.world()).steps:
        assert step.rollout_end_s - step.rollout_start_s == pytest.approx(phase_s)


def test_what_is_not_done_goes_on_until_the_look() -> None:
    """One of two groups is enough, and the other has the seconds up to the look."""
    plan = StepPlan(
        Batch(1, 1), launch=Launch(over_sampling=2.0), stop=EnoughGroups(), unfinished="resume"
    )
    run = run_scenario(scenario := scenario_of(plan, (3, 20), 5.0), scenario.world())
    assert run.steps[0].rollout_end_s == 5.0
    segments = {
        (g, e)
        for g, e in zip(run.segments["group"].tolist(), run.segments["end_s"].tolist(), strict=True)
    }
    assert (0, 3.0) in segments
    assert (1, 5.0) in segments


def test_a_trainer_that_comes_back_looks_at_once_and_then_in_its_beat() -> None:
    """Where rollouts run on, the beat is that of the trainer's own waiting."""
    plan = StepPlan(
        Batch(1, 1),
        launch=Launch(over_sampling=4.0, refill="group", run_ahead=1),
        stop=EnoughGroups(),
        interrupt="for_weights",
        unfinished="resume",
    )
    at_once = run_scenario(
        scenario := scenario_of(plan, (3,), 0.0, colocated=False), scenario.world()
    )
    polled = replace(scenario, poll_s=100.0)
    fast, slow, _ = run_both(polled)
    require_equal(fast, slow)
    # a batch that is there when it comes back is taken; one that is not, a whole beat later
    assert [each.step_s for each in at_once.steps] == [4.5, 1.5, 1.5, 1.5, 3.5, 1.5]
    assert [each.step_s for each in fast.steps] == [101.5, 1.5, 1.5, 1.5, 101.5, 1.5]


LENGTHS = {"family": "lognormal", "between_sd": 0.5, "within_sd": 0.3}


def _built(**keys: object) -> RawScenario:
    data = {
        "workload": {
            "batch_groups": 2,
            "group_size": 2,
            "prompt_tokens": 4,
            "max_new_tokens": 64,
            "lengths": {**LENGTHS, "median_tokens": 20},
        },
        "engine": {"kv_tokens": 4096},
        "cost": {"linear": {**FREE, "iteration_s": 0.1, "train_per_token_s": 1e-3}},
        "steps": 5,
        **keys,
    }
    return RawScenario(data, name="polled", folder=Path())


def test_the_key_of_a_scenario() -> None:
    found, at_once = (simulate(build_scenario(_built(poll_s=s))).run for s in (2.0, 0.0))
    assert found.decisions == at_once.decisions
    assert found.end_s > at_once.end_s + 1


@pytest.mark.parametrize("value", [-1, "often", 1e9, True])
def test_bad_values(value: object) -> None:
    with pytest.raises(ScenarioError, match="poll_s"):
        build_scenario(_built(poll_s=value))


def test_a_real_run_is_told_at_once() -> None:
    from rollcast.engine.config import build_run

    with pytest.raises(ScenarioError, match="poll_s: applies to simulation only"):
        build_run(_built(poll_s=2.0))
