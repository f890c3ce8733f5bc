"""Calibrations of runs whose replica and trainer had processes of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import forecast
from rollcast.calibration.machine_speed import MachineSpeed
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values.chance import Drawn
from tests.calibration.test_probes import write_probe
from tests.calibration.worlds import LINEAR, PULSE, edit_json, write_pulses, write_world

LOAD_S, CHECK_S, WIRE_S = 0.012, 0.005, 0.003
BESIDE = {"iterations": 1.2, "update": 1.4, "short": 1.5, "long": 1.25}


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
        alone = dict(PULSE)
        found.append(
            {
                "iterations": 200,
                "iterations_alone_s": 1.1,
                "iterations_beside_s": 1.1 * BESIDE["iterations"] * noise[0],
                "update_alone_s": 0.9,
                "update_beside_s": 0.9 * BESIDE["update"] * noise[1],
                "pulse_alone": alone,
                "pulse_beside": {
                    "short_s": alone["short_s"] * BESIDE["short"] * noise[2],
                    "long_s": alone["long_s"] * BESIDE["long"] * noise[3],
                },
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
    assert actors is not None
    assert actors.to_trainer_s == pytest.approx(LINEAR["switch_to_train_s"], rel=1e-3)
    assert actors.from_trainer_s == pytest.approx(LINEAR["switch_to_rollout_s"], rel=1e-3)
    assert (actors.load_s, actors.check_s) == pytest.approx((LOAD_S, CHECK_S), rel=1e-3)
    assert actors.iteration_beside == pytest.approx(BESIDE["iterations"], rel=0.02)
    assert actors.update_beside == pytest.approx(BESIDE["update"], rel=0.02)
    assert actors.cores == 2
    errors = fitted.content["fits"]["actors"]["standard_errors"]
    assert 0 < errors["update_beside"] < 0.06


def among(
    rows: list[dict[str, Any]], times: float, replicas: int, *, all_: float = 2.0, up: float = 2.0
) -> list[dict[str, Any]]:
    """The rounds with what replicas that work at once cost each other, and all with the trainer."""
    return [
        {
            **row,
            "among": {
                "replicas": replicas,
                "iterations": 90,
                "iterations_alone_s": 0.5,
                "iterations_among_s": 0.5 * times * (1 + place / 100),
                "all_iterations": 70,
                "all_iterations_alone_s": 0.4,
                "all_iterations_s": 0.4 * all_ * (1 + place / 100),
                "all_update_s": 0.9 * up * (1 - place / 100),
            },
        }
        for place, row in zip(range(-4, 5), rows, strict=False)
    ]


def test_what_replicas_cost_each_other_is_a_figure_of_its_own(
    runs: list[Path], fitted: Fitted, tmp_path: Path
) -> None:
    rows = among(rounds(9), 1.08, 2)
    cost = calibrate(runs, write_probe(tmp_path / "p.json", runs[0], beside=rows)).cost
    actors = cost.actors
    assert actors is not None
    assert actors.iteration_among == pytest.approx(1.08, abs=1e-6)
    assert actors.slower_iterations(2, False) == pytest.approx(1.08)
    assert actors.iteration_beside == pytest.approx(BESIDE["iterations"], rel=0.02)
    drawn = [cost.drawn(Drawn(np.random.default_rng(seed))).actors for seed in range(40)]
    among_drawn = [one.iteration_among for one in drawn if one is not None]
    assert np.std([times for times in among_drawn if times is not None]) > 0.002
    slow = cost.slowed(2.0, 2.0, 2.0).actors
    assert slow is not None
    assert slow.iteration_among == actors.iteration_among
    before = fitted.cost.actors
    assert before is not None
    assert before.iteration_among is None
    faster = calibrate(runs, write_probe(tmp_path / "q.json", runs[0], beside=among(rows, 0.9, 2)))
    assert faster.cost.actors is not None
    assert faster.cost.actors.iteration_among == 1.0


def test_what_is_waited_for_cores_that_are_too_few(runs: list[Path], tmp_path: Path) -> None:
    """Of two replicas and a trainer on two cores: half as long again by an even share."""
    rows = among(rounds(9), 1.1, 2, all_=2.3, up=1.6)
    cost = calibrate(runs, write_probe(tmp_path / "p.json", runs[0], beside=rows)).cost
    actors = cost.actors
    assert actors is not None
    assert actors.slower_iterations(2, True) == pytest.approx(2.3)
    assert actors.slower_updates(2) == pytest.approx(1.6)
    assert actors.iteration_crowded > 2.0
    assert 0.0 < actors.update_crowded < 1.0
    assert actors.slower_updates(1) == pytest.approx(BESIDE["update"], rel=0.02)
    drawn = [cost.drawn(Drawn(np.random.default_rng(seed))).actors for seed in range(20)]
    assert np.std([one.update_crowded for one in drawn if one is not None]) > 0.005
    # Where replicas alone are too many, what they cost each other cannot be told from waiting.
    rows = among(rounds(9), BESIDE["iterations"] + 0.5 * 0.8, 3, all_=BESIDE["iterations"] + 0.8)
    found = calibrate(runs, write_probe(tmp_path / "r.json", runs[0], beside=rows)).cost.actors
    assert found is not None
    assert found.iteration_among is None
    assert found.iteration_crowded == pytest.approx(0.8, abs=0.05)
    # An update that is no slower than alone waits for nothing.
    rows = among(rounds(9), 1.1, 2, all_=2.3, up=1.0)
    found = calibrate(runs, write_probe(tmp_path / "q.json", runs[0], beside=rows)).cost.actors
    assert found is not None
    assert found.update_crowded == 0.0


def test_without_a_probe_nobody_is_slower(runs: list[Path], tmp_path: Path) -> None:
    actors = calibrate(runs).cost.actors
    assert actors is not None
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


def test_a_run_of_one_process_says_nothing_of_actors(tmp_path: Path) -> None:
    assert calibrate([write_world(tmp_path / "run", seed=3)]).cost.actors is None


def test_the_file_keeps_them_and_says_how_sure_it_is(fitted: Fitted, tmp_path: Path) -> None:
    fitted.write(tmp_path / "fitted.json")
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
    assert usual is not None
    assert slow is not None
    assert slow.load_s == pytest.approx(4 * usual.load_s)
    assert (slow.update_beside, slow.cores) == (usual.update_beside, usual.cores)
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


def test_a_pulse_beside_a_replica_is_no_slower_machine(runs: list[Path], tmp_path: Path) -> None:
    """Of a run whose rollouts go on at once with new weights, the pulses are longer for what works
    beside them; the short ones say nothing."""
    speed = MachineSpeed(PULSE["short_s"], PULSE["long_s"], of_actors=True, beside=BESIDE["long"])
    run = write_actors(tmp_path / "run", seed=5)
    write_pulses(run, 3.0, BESIDE["long"])
    alone = speed.of(RunFolder.open(run))
    overlapping(run)
    segments = pd.read_csv(run / "rollouts.csv")
    segments["start_s"], segments["end_s"] = 0.0, 1e6
    segments.to_csv(run / "rollouts.csv", index=False)
    beside = speed.of(RunFolder.open(run))
    assert alone is not None
    assert beside is not None
    assert np.median(alone, axis=0) == pytest.approx([1.25, 1.25], rel=0.05)
    assert np.median(beside, axis=0) == pytest.approx([1.0, 1.0], rel=0.05)


def test_pulses_of_some_steps_stand_for_their_neighbours(tmp_path: Path) -> None:
    run = write_actors(tmp_path / "run", seed=6)
    write_pulses(run, 1.0)
    table = pd.read_csv(run / "pulses.csv").iloc[[0, 3, 7, 12]]
    table["long_s"] = [0.1, 0.2, 0.3, 0.4]
    table.to_csv(run / "pulses.csv", index=False)
    pulses = MachineSpeed(1.0, 1.0).of(RunFolder.open(run))
    assert pulses is not None
    assert pulses.shape == (12, 2)
    assert pulses[11, 1] == pytest.approx((0.3 + 5 * 0.4) / 6)  # around steps 9 to 14
    (run / "pulses.csv").write_text("steps_done,short_s,long_s\n4,1,1\n3,1,1\n")
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
    with pytest.raises(ScenarioError, match=said) as error:
        calibrate([run])
    assert error.value.field == "RUN_DIR"


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        (rounds(4), "fewer than 5 rounds"),
        ([{**rounds()[0], "update_alone_s": "soon"}], r"beside\[0\].update_alone_s"),
        ([{"iterations": 3}], r"beside\[0\]"),
        (3, "beside"),
        ([*among(rounds(3), 1.2, 2), *rounds(6)], "fewer than 5 rounds of beside are of as many"),
        ([*among(rounds(5), 1.2, 2), *among(rounds(5), 1.2, 3)], "of as many replicas"),
        (among(rounds(8), 1.2, 1), r"beside\[0\].among.replicas"),
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
