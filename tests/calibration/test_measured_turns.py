"""Committed runs of several turns: calibrated on one policy, held against another."""

from __future__ import annotations

import pytest

from benchmarks.measured import runs
from rollcast.calibration.calibrate import Fitted, calibrate
from rollcast.calibration.fits.updates import loads
from rollcast.calibration.folder import RunFolder
from tests.calibration import kept

RUNS = runs("turns/runs")
HELD = RUNS / "few-slots-april-10"


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return calibrate([RUNS / "sync-0"], RUNS / "probe.json")


@pytest.mark.parametrize("name", ["sync-0", "few-slots-april-10"])
def test_what_an_update_was_fed_is_what_its_rollouts_came_to(name: str) -> None:
    """Turns and resumes of a rollout are one; its last token is sampled and not fed."""
    run = RunFolder.open(RUNS / name)
    fed = loads(run, skips=True)
    assert run.turned() is not None
    assert run.updates is not None
    for step, update in zip(run.steps["step"].tolist(), run.updates, strict=True):
        load = fed[int(step)]
        assert load.rollouts == update["rollouts"]
        assert load.tokens - load.rollouts == update["computed_tokens"]


def test_another_number_of_environments_and_policy_is_replayed(fitted: Fitted) -> None:
    [check] = kept.replayed(fitted, [HELD]).checks
    assert check.forecast.point["step_s"].sum() == pytest.approx(check.total_s, rel=0.08)
    assert check.error_of("step_s") < 0.12
    assert check.error_of("train_s") < 0.2
