"""Kept forecasts of real runs: a sample is what the code gives, and the rest follows from them.

Samples of the campaigns "policies", "settings" and "overlap" stand with the tests of their runs, in
test_real_runs.py and test_overlapped_runs.py.
"""

import numpy as np
import pytest

from benchmarks import measured
from benchmarks.held_out import CAMPAIGNS, MODES
from benchmarks.measured import runs
from rollcast.calibration.folder import RunFolder
from tests.calibration import kept
from tests.calibration.kept import KEPT, is_replayed_as_kept


def test_a_sample_of_the_replays_is_what_the_code_gives() -> None:
    is_replayed_as_kept("several", "one-off-10")


@pytest.mark.parametrize(("name", "run"), [("idle", "async1-10"), ("turns", "few-slots-april-10")])
def test_so_is_a_sample_of_the_runs_in_the_history(name: str, run: str) -> None:
    try:
        measured.past(CAMPAIGNS[name].data)
    except measured.AbsentError as error:
        pytest.skip(str(error))
    is_replayed_as_kept(name, run)


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


@pytest.mark.parametrize(("name", "run"), [("gpu", "sync-1"), ("gpu-swapped", "sync-0")])
def test_forecasts_are_close_and_those_that_are_kept(name: str, run: str) -> None:
    kept.is_replayed_as_kept(name, run)
    told = kept.kept_of(name, run)
    assert abs(told["replay"]["error"]) < 0.05
    assert abs(told["predict"]["error"]) < 0.05


def test_trainer_and_engine_agree_on_the_gpu() -> None:
    for name in ("sync-0", "sync-1"):
        run = RunFolder.open(runs("gpu/runs") / name)
        assert run.provenance["gpu"] == "NVIDIA H200"
        assert run.updates is not None
        assert all(0 < update["mismatch_mean"] < 0.02 for update in run.updates)
