"""The committed runs of an H200: calibrated on one, held against the other."""

from __future__ import annotations

import pytest

from benchmarks.measured import runs
from rollcast.calibration.folder import RunFolder
from tests.calibration import kept


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
