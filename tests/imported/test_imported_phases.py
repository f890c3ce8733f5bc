"""A simulated run, read as a log: the phases of its steps are those that the simulation told."""

from pathlib import Path

import numpy as np
import pytest

from rollcast import load
from rollcast.calibration.fits.steps import steps_of
from rollcast.calibration.judge.phases import said_of
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.results.metrics import by_phase
from rollcast.simulator.results.write import write_run
from rollcast.simulator.studies.simulate import simulate

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("example", ["april", "one_step_off"])
def test_an_imported_run_has_the_phases_of_the_run(example: str, tmp_path: Path) -> None:
    settings = ("steps=6", "workload.batch_groups=8", "cost.roofline.trainer.log_prob_passes=2")
    result = simulate(load(ROOT / f"examples/{example}.yaml", *settings))
    described = {"name": example, "scenario": result.scenario.raw.data}
    write_run(tmp_path, result.run, result.summary, described, plot=False)
    log = read_log([tmp_path])
    said = said_of(log, steps_of(log))
    assert said["overlapped"] == result.summary["overlapped"]
    assert said["bound_by"] == result.summary["bound_by"]
    made = by_phase(result.run).seconds
    names = {"log_prob", "reference", "update", "sync"} | set(said["phases"]) - {"other"}
    for name in names:
        seconds = made[name] + (made["optimiser"] if name == "update" else 0.0)
        # the first step warms up, and rollouts of APRIL begin a little after the step
        assert said["phases"][name]["s"] == pytest.approx(np.median(seconds[1:]), rel=0.02), name
