"""Calibrations of runs whose replica and trainer had processes of their own."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.fits.machine_speed import MachineSpeed
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import forecast
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Drawn
from tests.calibration.test_probes import write_probe
from tests.calibration.worlds import LINEAR, edit_json, write_pulses, write_world
from tests.refusals import refuses

LOAD_S, CHECK_S, WIRE_S = 0.012, 0.005, 0.003
BESIDE = {"iterations": 1.2, "update": 1.4}


def write_actors(folder: Path, **options: Any) -> Path:
    """The run of a known world, as if its replica and its trainer had had processes of their own:
    what it says of switches is the ways between them."""
    run = write_world(folder, **options)
    scenario = json.loads((run / "scenario.json").read_text())["scenario"]
    scenario["cluster"] = {"placement": "disaggregated", "replicas": 1, "trainer_gpus": 1}
    edit_json(run / "scenario.json", scenario=scenario)
    steps = pd.read_csv(run / "steps.csv")
    sent_s = steps["end_s"] - LINEAR["sync_s"] - LINEAR["switch_to_rollout_s"]
    arrivals = pd.DataFrame(
        {
            "version": steps["step"] + 1,
            "replica": 0,
            "sent_s": sent_s,
            "start_s": sent_s + WIRE_S,
            "loaded_s": sent_s + WIRE_S + LOAD_S,
            "end_s": sent_s + WIRE_S + LOAD_S + CHECK_S,
        }
    )
    arrivals.to_csv(run / "arrivals.csv", index=False)
    return run


def rounds(count: int = 8) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(count):
        noise = np.exp(0.02 * rng.normal(size=4))
        found.append(
            {
                "iterations": 200,
                "iterations_alone_s": 1.1,
                "iterations_beside_s": 1.1 * BESIDE["iterations"] * noise[0],
                "update_alone_s": 0.9,
                "update_beside_s": 0.9 * BESIDE["update"] * noise[1],
            }
        )
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    return [write_actors(place / str(seed), seed=seed, outliers=0.0) for seed in range(2)]


@pytest.fixture(scope="module")
def fitted(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    probe = write_probe(tmp_path_factory.mktemp("probe") / "probe.json", runs[0], beside=rounds())
    return calibrate(runs, probe)


def test_the_ways_between_processes_and_what_these_cost_each_other(fitted: Fitted) -> None:
    actors = fitted.cost.actors
    assert actors.to_trainer_s == pytest.approx(LINEAR["switch_to_train_s"], rel=1e-3)
    assert actors.from_trainer_s == pytest.approx(LINEAR["switch_to_rollout_s"], rel=1e-3)
    assert (actors.load_s, actors.check_s) == pytest.approx((LOAD_S, CHECK_S), rel=1e-3)
    assert actors.iteration_beside == pytest.approx(BESIDE["iterations"], rel=0.02)
    assert actors.update_beside == pytest.approx(BESIDE["update"], rel=0.02)
    errors = fitted.content["fits"]["actors"]["standard_errors"]
    assert 0 < errors["update_beside"] < 0.06


def test_without_a_probe_nobody_is_slower(runs: list[Path], tmp_path: Path) -> None:
    actors = calibrate(runs).cost.actors
    assert (actors.iteration_beside, actors.update_beside) == (1.0, 1.0)
    old = write_probe(tmp_path / "probe.json", runs[0])  # of one process
    assert calibrate(runs, old).cost.actors == actors


def test_a_probe_may_say_nothing_else(runs: list[Path], fitted: Fitted, tmp_path: Path) -> None:
    probe = write_probe(tmp_path / "p.json", runs[0], beside=rounds(), updates=[], bursts=[])
    found = calibrate(runs, probe)
    assert found.cost.actors == fitted.cost.actors
    assert found.cost.iteration == calibrate(runs).cost.iteration
    probe = write_probe(tmp_path / "p.json", runs[0], beside=rounds(), updates=[])
    with pytest.raises(ScenarioError, match="fewer than 5 updates"):
        calibrate(runs, probe)


def test_the_file_keeps_them_and_says_how_sure_it_is(fitted: Fitted, tmp_path: Path) -> None:
    fitted.write(tmp_path / "fitted.json")
    spec = json.loads((tmp_path / "fitted.json").read_text())["cost"]
    earlier = {**spec["actors"], "iteration_among": 1.1, "iteration_crowded": 2.0, "cores": 2}
    edit_json(tmp_path / "fitted.json", cost={**spec, "actors": earlier})
    cost = Fitted.read(tmp_path / "fitted.json").cost
    assert cost.actors == fitted.cost.actors
    rng = np.random.default_rng(0)
    drawn = [cost.drawn(Drawn(rng)).actors for _ in range(60)]
    times = [actors.update_beside for actors in drawn if actors is not None]
    error = fitted.content["fits"]["actors"]["standard_errors"]["update_beside"]
    assert np.std(times) == pytest.approx(error, rel=0.4)
    assert min(times) >= 1.0


def test_on_a_slower_machine_the_ways_are_longer_and_the_slowing_the_same(fitted: Fitted) -> None:
    usual, slow = fitted.cost.actors, fitted.cost.slowed(2.0, 3.0, 4.0).actors
    assert slow.load_s == pytest.approx(4 * usual.load_s)
    assert slow.update_beside == usual.update_beside
    work = fitted.cost.slowed(2.0, 3.0, 4.0)
    assert work.sync_s == pytest.approx(4 * fitted.cost.sync_s)
    assert work.iteration.fixed_s == pytest.approx(2 * fitted.cost.iteration.fixed_s)
    assert work.dense.per_token_s == pytest.approx(3 * fitted.cost.dense.per_token_s)


def overlapping(run: Path) -> Path:
    """The run with each step's rollouts begun before the one before it had ended."""
    steps = pd.read_csv(run / "steps.csv")
    steps.loc[1:, "rollout_start_s"] -= 0.05
    steps.to_csv(run / "steps.csv", index=False)
    return run


def test_pulses_of_some_steps_stand_for_their_neighbours(tmp_path: Path) -> None:
    run = write_actors(tmp_path / "run", seed=6)
    write_pulses(run, 1.0)
    table = pd.read_csv(run / "speed_probes.csv").iloc[[0, 3, 7, 12]]
    table["long_s"] = [0.1, 0.2, 0.3, 0.4]
    table.to_csv(run / "speed_probes.csv", index=False)
    pulses = MachineSpeed(1.0, 1.0).of(RunFolder.open(run))
    assert pulses.shape == (12, 2)
    assert pulses[11, 1] == pytest.approx((0.3 + 5 * 0.4) / 6)  # around steps 9 to 14
    (run / "speed_probes.csv").write_text("steps_done,short_s,long_s\n4,1,1\n3,1,1\n")
    with pytest.raises(ScenarioError, match="not in order of the run's steps"):
        _ = RunFolder.open(run).pulses


def test_a_forecast_of_another_policy_has_its_steps_overlap(
    fitted: Fitted, runs: list[Path], tmp_path: Path
) -> None:
    """The forecast step is shorter than its phases, and both are longer than in turns."""
    run = RunFolder.open(runs[0])
    turns = forecast(fitted, run, "predict", draws=0).point
    scenario = {**run.scenario, "policy": "one_step_off"}
    run.description["scenario"] = scenario
    beside = forecast(fitted, run, "predict", draws=0).point
    both_s = beside["rollout_s"] + beside["train_s"]
    assert beside["step_s"][1:].sum() < 0.9 * both_s[1:].sum()
    assert beside["train_s"].sum() > 1.15 * turns["train_s"].sum()
    assert beside["step_s"].sum() < turns["step_s"].sum()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda run: overlapping(run), "takes turns with its trainer"),
        (lambda run: (run / "arrivals.csv").unlink(), "no arrivals.csv"),
        (
            lambda run: (run / "arrivals.csv").write_text("version,replica\n1,0\n"),
            "arrivals.csv has no column",
        ),
    ],
)
def test_a_run_that_cannot_calibrate_is_named(tmp_path: Path, spoil: Any, said: str) -> None:
    run = write_actors(tmp_path / "run", seed=7)
    spoil(run)
    with refuses("RUN_DIR", said):
        calibrate([run])


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (rounds(4), "fewer than 5 rounds"),
        ([{**rounds()[0], "update_alone_s": "soon"}], r"beside\[0\].update_alone_s"),
        ([{"iterations": 3}], r"beside\[0\]"),
        (3, "beside"),
    ],
)
def test_a_bad_round_of_a_probe_is_named(
    runs: list[Path], tmp_path: Path, beside: Any, said: str
) -> None:
    probe = write_probe(tmp_path / "probe.json", runs[0], beside=beside)
    with pytest.raises(ScenarioError, match=said) as error:
        calibrate(runs, probe)
    assert error.value.field.startswith("--probe")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"load_s": -1}, "actors.load_s"),
        ({"update_beside": 0.5}, "actors.update_beside"),
        ({"unheard": 1}, "actors"),
    ],
)
def test_a_bad_figure_in_a_fitted_file_is_named(
    fitted: Fitted, tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    fitted.write(tmp_path / "fitted.json")
    cost = json.loads((tmp_path / "fitted.json").read_text())["cost"]
    edit_json(tmp_path / "fitted.json", cost={**cost, "actors": {**cost["actors"], **change}})
    with pytest.raises(ScenarioError, match=said):
        Fitted.read(tmp_path / "fitted.json")
