"""Runs of rollouts with turns: calibrated on two, unseen ones are replayed and predicted.

The world is the plain reference with a noisy cost. Environments are a fifth and five times as slow,
slots bind, and policies put rollouts away in the model and in their environments.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import forecast
from rollcast.simulator.errors import OldName, ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.scenario import build_scenario
from tests.calibration import kept
from tests.calibration.worlds import edit_json, write_world
from tests.running import run

APRIL = "april(over_sampling=2)"
WORK: dict[str, Any] = yaml.safe_load("""
steps: 5
group_size: 4
outliers: 0.02
lengths: {family: lognormal, median_tokens: 6, between_sd: 0.3, within_sd: 0.3}
turns: {family: lognormal, median: 4, between_sd: 0.3, within_sd: 0.35, max_turns: 10,
  length_sd: 0.4, observation_tokens: {median_tokens: 12, sd: 0.5, max_tokens: 60}}
reward: {slots: 8, seconds: 0.05}
""")


def environment(times: float = 1.0, slots: int | None = None, **more: Any) -> dict[str, Any]:
    seconds = {"family": "lognormal", "median_s": 0.15 * times, "sd": 0.8, "between_sd": 0.2}
    return {
        "turn_s": seconds,
        "slots": slots,
        "boot_s": 0.1 * times,
        "timeout_s": 5 * times,
        "failure": 0.01,
        **more,
    }


UNSEEN: dict[str, tuple[str, dict[str, Any]]] = {
    "five times as slow": (APRIL, environment(5.0)),
    "closed": (APRIL, environment(1.0, 6, on_suspend="close")),
    "budget": ("token_budget(turns=2,tokens=20)", environment()),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("calibrated")
    return [
        write_world(place / f"{seed}", seed=seed, policy=policy, environment=environment(), **WORK)
        for seed, policy in ((1, "sync"), (2, APRIL))
    ]


@pytest.fixture(scope="module")
def fitted(runs: list[Path]) -> Fitted:
    file = runs[0].parent / "fitted.json"
    calibrate(runs).write(file)
    return Fitted.read(file)


@pytest.mark.parametrize("name", UNSEEN)
def test_a_replay_is_near_whatever_environments_take(
    fitted: Fitted, tmp_path: Path, name: str
) -> None:
    policy, away = UNSEEN[name]
    folder = write_world(tmp_path / "unseen", seed=11, policy=policy, environment=away, **WORK)
    [check] = kept.replayed(fitted, [folder]).checks
    # Without the draws of costs, of which few would be luck: ten updates fix theirs loosely.
    assert check.forecast.point["step_s"].sum() == pytest.approx(check.total_s, rel=0.03)
    assert check.error_of("step_s") < 0.04
    assert check.held_out


def test_a_prediction_has_the_targets_environments(fitted: Fitted, tmp_path: Path) -> None:
    """Against the mean of many runs of the truth: one of five steps is luck."""
    folder = write_world(tmp_path / "unseen", seed=11, environment=environment(5.0), **WORK)
    target = RunFolder.open(folder)
    scenario = build_scenario(RawScenario({**target.scenario, "steps": 60, "seed": 5}))
    truth = run(scenario.world(), scenario.policy, scenario.plan, 60)
    mean_s = np.mean([record.step_s for record in truth.steps])
    found = forecast(fitted, target, "predict", draws=6)
    assert np.median(found.total_s) / 5 == pytest.approx(mean_s, rel=0.2)


def test_a_scenario_takes_the_measured_turns(fitted: Fitted, tmp_path: Path) -> None:
    fitted.write(tmp_path / "fitted.json")
    data = {
        "cluster": {"replicas": 1},
        "engine": {"max_seqs": 64, "max_batched_tokens": 512, "kv_tokens": 20000},
        "workload": {
            "batch_groups": 8,
            "group_size": 4,
            "max_new_tokens": 200,
            "max_context_tokens": 150,
            "lengths": {"file": "fitted.json"},
        },
        "environment": {"slots": 4, "timeout_s": 2.0},
        "cost": {"file": "fitted.json"},
        "steps": 2,
    }
    scenario = build_scenario(RawScenario(data, folder=tmp_path))
    result = run(scenario.world(), scenario.policy, scenario.plan, 2)
    assert len(result.calls) > 50
    assert (result.calls["end_s"] - result.calls["start_s"]).max() <= 2.0 + 1e-9
    segments = result.segments
    contexts = segments["prompt_tokens"] + segments["total_tokens"] + segments["observation_tokens"]
    assert contexts.max() <= 150
    data["environment"] = {"turn_s": 3.0}
    with pytest.raises(ScenarioError, match="has its own; leave this out") as error:
        build_scenario(RawScenario(data, folder=tmp_path))
    assert error.value.field == "environment.turn_s"


def test_runs_of_an_earlier_version_are_read(runs: list[Path], tmp_path: Path) -> None:
    """Their suspended calls have another word, and so has the key of the environment."""
    run = shutil.copytree(runs[1], tmp_path / "old")
    calls = RunFolder.open(run).calls()
    table = run / "environments.csv"
    assert ",suspended," in table.read_text()
    table.write_text(table.read_text().replace(",suspended,", ",put_away,"))
    scenario = json.loads((run / "scenario.json").read_text())["scenario"]
    edit_json(
        run / "scenario.json", scenario={**scenario, "environment": environment(put_away="close")}
    )
    old = RunFolder.open(run)
    again = old.calls()
    assert again["ended"].tolist() == calls["ended"].tolist()
    with pytest.warns(OldName, match=r"environment\.on_suspend"):
        assert old.environment is not None
    assert old.environment.on_suspend == "close"


def test_runs_with_other_environments_are_not_calibrated_together(
    runs: list[Path], tmp_path: Path
) -> None:
    one, other = (shutil.copytree(run, tmp_path / run.name) for run in runs)
    scenario = json.loads((other / "scenario.json").read_text())["scenario"]
    edit_json(other / "scenario.json", scenario={**scenario, "environment": environment(2.0)})
    with pytest.raises(ScenarioError, match=r"differ in environment\.turn_s"):
        calibrate([one, other])
    table = one / "environments.csv"
    table.write_text(table.read_text().replace("answered", "anwered", 1))
    with pytest.raises(ScenarioError, match="'anwered' is none of answered, timeout"):
        RunFolder.open(one).calls()
