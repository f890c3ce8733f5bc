"""The machine's pulse: a slower hour is told from work that costs more."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.fits.machine_speed import MachineSpeed, by_step
from rollcast.calibration.fits.noise import run_levels
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.forecast import forecast
from rollcast.calibration.validate import validate
from rollcast.simulator.errors import ScenarioError
from tests.calibration.worlds import (
    LINEAR,
    PULSE,
    edit_json,
    slow_down,
    slow_trainer,
    write_pulses,
    write_world,
)
from tests.refusals import refuses

FACTORS = (1.0, 1.3, 0.8, 1.5)  # the last of a run that is not calibrated on


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("runs")
    made = [write_world(place / f"{s}", seed=s, steps=10, outliers=0.0) for s in range(4)]
    for run, factor in zip(made, FACTORS, strict=True):
        slow_down(run, factor)
        write_pulses(run, factor)
    return made


@pytest.fixture(scope="module")
def fitted(runs: list[Path]) -> Fitted:
    return calibrate(runs[:3])


def test_costs_are_at_the_mean_pulse(fitted: Fitted) -> None:
    level = float(np.exp(np.mean(np.log(FACTORS[:3]))))
    assert fitted.speed.short_s == pytest.approx(level * PULSE["short_s"], rel=0.05)
    assert fitted.speed.long_s == pytest.approx(level * PULSE["long_s"], rel=0.05)
    found = fitted.content["cost"]["iteration"]["fixed_s"]
    assert found == pytest.approx(level * LINEAR["iteration_s"], rel=0.05)
    assert fitted.cost.sync_s == pytest.approx(level * LINEAR["sync_s"], rel=0.05)


def test_a_run_is_judged_at_its_own_pulse(fitted: Fitted, runs: list[Path]) -> None:
    """A machine half as slow again: a replay knows it from the pulse, and from nothing else."""
    [own] = validate(fitted, runs[3:], "replay", draws=10).checks
    [typical] = validate(fitted, runs[3:], "replay", draws=10, at_pulse=False).checks
    assert abs(own.total_error) < 0.06
    assert own.error_of("step_s") < 0.07
    assert typical.total_error < -0.25
    assert own.pulse == pytest.approx((1.5 / 1.0132, 1.5 / 1.0132), rel=0.05)
    widths = [
        (c.compared.total_high_s - c.compared.total_low_s) / c.total_s for c in (own, typical)
    ]
    assert widths[0] < 0.3 * widths[1]
    assert typical.compared.total_covered  # who knows no pulse knows that machines differ


def test_updates_go_by_the_long_pulse_and_the_rest_by_the_short(tmp_path: Path) -> None:
    """Where only arithmetic is slower, only updates are."""
    made = [write_world(tmp_path / f"{s}", seed=s, outliers=0.0) for s in range(3)]
    for run, factor in zip(made, (1.0, 1.4, 0.7), strict=True):
        slow_trainer(run, factor)
        write_pulses(run, 1.0, factor)
    levels = run_levels(np.array(calibrate(made).content["step_ratios"]))
    assert levels == pytest.approx(np.ones((3, 3)), rel=0.06)
    [check] = validate(calibrate(made[:1]), made[1:2], "replay", draws=1).checks
    assert check.error_of("train_s") < 0.08
    assert check.error_of("rollout_s") < 0.05


def test_a_prediction_knows_no_pulse_unless_told(fitted: Fitted, runs: list[Path]) -> None:
    [plain] = validate(fitted, runs[3:], "predict", draws=8).checks
    [told] = validate(fitted, runs[3:], "predict", draws=8, at_pulse=True).checks
    assert not plain.forecast.at_pulse
    assert told.forecast.at_pulse
    ratio = np.median(told.forecast.total_s) / np.median(plain.forecast.total_s)
    assert ratio == pytest.approx(1.5 / 1.0132, rel=0.15)


def test_each_step_at_the_pulse_around_it(runs: list[Path], tmp_path: Path) -> None:
    """A machine that slows down half-way: each step is judged at the six nearest beats."""
    table = pd.read_csv(runs[0] / "speed_probes.csv")
    table["short_s"] = [0.002] * 5 + [0.003] * 6
    table["long_s"] = 0.05
    table.loc[2, "long_s"] = 0.35
    run = write_world(tmp_path / "run", seed=0, steps=10, outliers=0.0)
    table.to_csv(run / "speed_probes.csv", index=False)
    pulses = by_step(RunFolder.open(run))
    (run / "speed_probes.csv").rename(run / "pulses.csv")  # as earlier versions called it
    assert np.array_equal(by_step(RunFolder.open(run)), pulses)  # type: ignore[arg-type]
    assert pulses.shape == (10, 2)
    assert pulses[:2, 0] == pytest.approx(0.002)
    assert pulses[7:, 0] == pytest.approx(0.003)
    assert pulses[4, 0] == pytest.approx((3 * 0.002 + 3 * 0.003) / 6)  # beats 2 to 7
    assert pulses[1, 1] == pytest.approx(0.1)  # beat 2 is one of the six
    assert pulses[5:, 1] == pytest.approx(0.05)


def test_without_a_pulse_all_is_as_measured(
    fitted: Fitted, runs: list[Path], tmp_path: Path
) -> None:
    bare = write_world(tmp_path / "bare", seed=9, steps=10, outliers=0.0)
    assert MachineSpeed.of_runs([RunFolder.open(runs[0]), RunFolder.open(bare)]) is None
    assert calibrate([bare, runs[0]]).speed is None
    found = forecast(fitted, RunFolder.open(bare), "replay", draws=1, at_pulse=True)
    assert not found.at_pulse
    assert any("has no speed probe" in flag for flag in found.flags)
    assert validate(fitted, [bare], "replay", draws=1).to_json()["runs"][0]["pulse"] is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda table: table[:-1], "one speed probe before each step"),
        (
            lambda table: table.assign(short_s=0.0),
            "line 2, column 'short_s': must be a number from 1e-09",
        ),
        (lambda table: table.drop(columns="long_s"), "no column 'long_s'"),
        (
            lambda table: table.assign(long_s="soon"),
            "line 2, column 'long_s': must be .* got 'soon'",
        ),
    ],
)
def test_a_bad_table_of_pulses_is_named(
    tmp_path: Path, spoil: Callable[[pd.DataFrame], pd.DataFrame], said: str
) -> None:
    run = write_world(tmp_path / "run", steps=6)
    write_pulses(run, 1.0)
    spoil(pd.read_csv(run / "speed_probes.csv")).to_csv(run / "speed_probes.csv", index=False)
    with refuses("RUN_DIR", said):
        calibrate([run])


@pytest.mark.parametrize(
    ("pulse", "said"),
    [(3, "must be a mapping"), ({"short_s": 1}, "long_s"), ({"short_s": 0, "long_s": 1}, "short")],
)
def test_a_bad_pulse_in_a_fitted_file_is_named(
    fitted: Fitted, tmp_path: Path, pulse: object, said: str
) -> None:
    fitted.write(tmp_path / "fitted.json")
    edit_json(tmp_path / "fitted.json", pulse=pulse)
    with pytest.raises(ScenarioError, match=said):
        Fitted.read(tmp_path / "fitted.json")
