"""Plans up to an accuracy, and what the local page says of it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.explore.view import Asked, view
from rollcast.simulator.explore.work import Choice, outcome
from rollcast.simulator.learning.data import prior, save
from rollcast.simulator.planner.answer import Planned
from rollcast.simulator.planner.measure import Measured, measured
from rollcast.simulator.planner.planner import plan
from rollcast.simulator.planner.whole_run import Work
from rollcast.simulator.studies.compare import run_each
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.simulate import load, simulate
from tests.conftest import Cli
from tests.learning.worlds import anywhere, written
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("quick_intervals")

POLICIES = ("sync", "april", "pods(keep=2)")


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("planned"))


def planned(scenario: Path, section: Mapping[str, Any], *settings: str) -> Planned:
    return plan(load(scenario, *settings), section, POLICIES, workers=1, intervals=False)


def test_the_law_says_how_many_updates_each_choice_needs(scenario: Path) -> None:
    found = planned(scenario, {})  # up to learning.target
    rows = {row.choice.policy: row for row in found.rows}
    steps = rows["sync"].measured.steps
    base = load(scenario, f"steps={steps}")
    results = run_each([base.with_policy(name) for name in POLICIES])
    for name, result in results.items():
        told, run = result.summary["learning"], rows[name].run_cost
        assert run.updates == pytest.approx(told["updates"])
        assert run.hours == pytest.approx(told["hours"], rel=1e-6)
    assert rows["sync"].quality == 1.0
    assert rows["pods(keep=2)"].quality > 1.0
    assert rows["april"].measured.staleness_mean > 0
    assert rows["april"].quality > 1.0
    levels = [needs.level for row in rows.values() if (needs := row.measured.needs)]
    assert levels == pytest.approx([rows["sync"].run_cost.updates] * 3)  # on-policy, unselected
    assert " updates to accuracy 0.6 take " in found.sentences[1]
    assert found.sentences[-1].startswith("Accuracy from 0.3 to 0.6 follows a law fitted to ")
    assert found.scenario["learning"]["target"] == 0.6
    further = planned(scenario, {"run": {"accuracy": 0.7}})
    assert min(row.run_cost.hours for row in further.rows) > min(
        row.run_cost.hours for row in found.rows
    )


def test_a_factor_by_hand_takes_precedence_for_its_policy(scenario: Path) -> None:
    free = {row.choice.policy: row for row in planned(scenario, {}).rows}
    rated = planned(scenario, {"quality": {"pods": 1.7}})
    rows = {row.choice.policy: row for row in rated.rows}
    assert rows["pods(keep=2)"].quality == 1.7
    assert rows["pods(keep=2)"].run_cost.updates == pytest.approx(
        1.7 * rows["sync"].run_cost.updates
    )
    for name in ("sync", "april"):
        assert rows[name].run_cost == free[name].run_cost


@pytest.mark.parametrize(("group_size", "reached"), [((64.0, 99.0), 0.9), ((1.0, 99.0), 0.5)])
def test_where_the_law_says_nothing_the_plan_is_in_steps(
    scenario: Path, tmp_path: Path, group_size: tuple[float, float], reached: float
) -> None:
    law = anywhere(prior(), reached)
    save(replace(law, domain=replace(law.domain, group_size=group_size)), tmp_path / "other.json")
    setting = f"learning.file={tmp_path / 'other.json'}"
    found = planned(scenario, {"run": {"accuracy": 0.6}}, setting)
    assert "500 steps of 16 rollouts, an assumed length" in found.sentences[1]
    why = "so it says nothing here" if reached == 0.9 else "is not reached in what was measured"
    assert why in found.sentences[-1]
    assert found.sentences[-1].endswith("So the plan is for 500 steps.")
    assert found.scenario["learning"]["accuracy"] == 0.3  # the scenario's own section stays


def test_the_interval_of_a_plan_holds_what_is_not_known_of_the_law(scenario: Path) -> None:
    [row] = plan(load(scenario), {}, ["sync"], workers=1).rows
    needs, hours = row.measured.needs, row.hours
    low, high = ends(needs.factors).tolist()  # coefficients of linear costs are taken as exact
    assert hours.high / hours.low == pytest.approx(high / low, rel=0.2)
    assert hours.high / hours.low > 2


def test_draws_that_never_reach_the_target_take_long_but_not_for_ever(scenario: Path) -> None:
    found = load(scenario, "learning.target=0.8")
    law = found.learning.law
    covariance = np.array(law.covariance)
    covariance[0, 0] = 60.0
    slow = replace(law, covariance=tuple(map(tuple, covariance.tolist())))
    slowly = replace(found, learning=replace(found.learning, law=slow))
    needs = measured(simulate(slowly), whole=40).needs
    assert np.isfinite(needs.factors).all()
    assert max(needs.factors) > 500


def test_a_plan_in_steps_asks_no_law(scenario: Path) -> None:
    found = planned(scenario, {"run": {"steps": 50}})
    assert all(row.measured.needs is None for row in found.rows)
    assert "Accuracy" not in " ".join(found.sentences)


def test_what_is_measured_goes_through_a_journal(scenario: Path) -> None:
    one = measured(simulate(load(scenario)), whole=40)
    assert Measured.from_plain(json.loads(json.dumps(asdict(one)))) == one
    assert one.needs is not None
    target = one.up_to_target()
    assert max(target.factors) / min(target.factors) > max(one.factors) / min(one.factors)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--target", "accuracy=1.2"), "plan.run.accuracy: must be a number above 0"),
        (("--target", "accuracy=most"), "(from --target)"),
        (("--target", "accuracy=0.2"), "give a higher target"),
        (("--target", "reward=0.7"), "--target: takes accuracy=0.7 alone"),
        (("--target", "0.7"), "--target: '0.7' is not of the form key=value"),
        (("--target", "accuracy=0.7", "--run", "steps=9"), "give one of them"),
        (("--run", "accuracy=0.7,steps=9"), "plan.run: give one of steps"),
    ],
)
def test_bad_targets_are_a_sentence(
    cli: Cli, scenario: Path, flags: tuple[str, ...], said: str
) -> None:
    error = refused(cli("plan", scenario, *flags))
    assert said in error


def test_a_target_needs_a_start(scenario: Path) -> None:
    without = load(scenario, "learning=null", "workload.rewards=null")
    with pytest.raises(ScenarioError, match=r"learning\.accuracy: missing"):
        plan(without, {"run": {"accuracy": 0.7}}, POLICIES, workers=1)


def test_the_page_says_when_the_target_is_reached(scenario: Path) -> None:
    raw = load(scenario).raw
    here = [outcome(Choice(raw, name)) for name in ("sync", "april")]
    drawn = outcome(Choice(raw, "april", drawn=True))
    asked = Asked("april", Work("9 steps", rollouts=144), 2.0, "2 replicas", "", 0.6)
    said, _ = view(asked, here, [], drawn)
    assert "9 steps under april take" in said
    figures = drawn.figures
    assert figures.needs.level is not None
    assert figures.needs.quality is not None
    updates = round(figures.needs.level * figures.needs.quality)
    assert f"{updates} updates to accuracy 0.6 take " in said
    assert "to accuracy" not in view(replace(asked, target=None), here, [], drawn)[0]
