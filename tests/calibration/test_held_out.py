"""Kept forecasts of real runs: a sample is what the code gives, and the rest follows from them."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from benchmarks import measured
from benchmarks.held_out import CAMPAIGNS, DRAWS, MODES, PATH, HeldOut, figures
from benchmarks.runner import read_json
from rollcast.calibration.calibrate import Fitted
from rollcast.calibration.forecast import Mode
from rollcast.calibration.validate import validate

KEPT = read_json(PATH, {})["campaigns"]


@cache
def calibration(data: str, calibrated_on: tuple[str, ...], history: bool) -> Fitted:
    return HeldOut("", data, calibrated_on, history=history).fitted()


def compared(name: str, run: str, mode: Mode, draws: int) -> tuple[Any, Any]:
    """The kept figures of a run, and those that the code gives."""
    held = CAMPAIGNS[name]
    fitted = calibration(held.data, held.calibration, held.history)
    (check,) = validate(fitted, [held.folder() / run], mode, draws).checks
    (kept,) = (kept for kept in KEPT[name]["runs"] if kept["run"] == run)
    assert check.total_s == pytest.approx(kept["measured_s"], rel=1e-5)
    return kept[mode], figures(check)


def agree_without_draws(kept: dict[str, Any], found: dict[str, Any]) -> None:
    """In all that one draw, which is not of the noise, gives as well as many."""
    for key in ("rollout_error", "train_error", "step_error", "staleness"):
        assert found[key] == pytest.approx(kept[key], rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize(
    ("name", "run"),
    [("settings", "wide-april-10"), ("several", "one-off-10")],
)
def test_a_sample_of_the_replays_is_what_the_code_gives(name: str, run: str) -> None:
    agree_without_draws(*compared(name, run, "replay", 1))


@pytest.mark.parametrize(("name", "run"), [("idle", "async1-10"), ("turns", "april-10")])
def test_so_is_a_sample_of_the_runs_in_the_history(name: str, run: str) -> None:
    try:
        measured.past(CAMPAIGNS[name].data)
    except measured.AbsentError as error:
        pytest.skip(str(error))
    agree_without_draws(*compared(name, run, "replay", 1))


@pytest.mark.parametrize(("name", "run"), [("settings", "wide-pods-10"), ("overlap", "one-off-10")])
def test_a_sample_of_the_predictions_is_what_the_code_gives(name: str, run: str) -> None:
    kept, found = compared(name, run, "predict", DRAWS)
    assert set(found) == set(kept)
    for key, value in kept.items():
        assert found[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_medians_and_coverage_are_those_of_the_runs(name: str) -> None:
    runs = [run for run in KEPT[name]["runs"] if run["held_out"]]
    assert {run["run"] for run in KEPT[name]["runs"]} >= set(KEPT[name]["calibrated_on"])
    for mode in MODES:
        overall, found = KEPT[name]["overall"][mode], [run[mode] for run in runs]
        errors = [abs(of["error"]) for of in found]
        assert overall["run_time"] == pytest.approx(np.median(errors), rel=1e-4)
        assert overall["largest"] == pytest.approx(max(errors))
        assert overall["coverage"]["runs"] == pytest.approx(np.mean([of["inside"] for of in found]))
        weights = [run["steps"] for run in runs]
        inside = np.average([of["steps_inside"] for of in found], weights=weights)
        assert overall["coverage"]["steps"] == pytest.approx(inside, rel=1e-4)


def test_runs_that_are_nowhere_are_said_to_be_absent() -> None:
    with pytest.raises(measured.AbsentError, match="turns/nowhere are in the repository's history"):
        measured.past("turns/nowhere")
