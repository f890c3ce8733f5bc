"""Committed runs of several turns: calibrated on one speed of environments, held against others."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.measure import CAMPAIGN, Campaign
from calibration.calibrate import Fitted, calibrate
from calibration.folder import RunFolder
from calibration.updates import loads
from calibration.validate import validate
from simulator.studies.replayed import replay

DATA = CAMPAIGN.parents[1] / "turns"
RUNS = DATA / "runs"
SYNC = [RUNS / f"sync-{seed}" for seed in range(2)]
HELD = [
    RUNS / f"{name}-10"
    for name in ("sync-again", "april", "fast", "slow", "slow-april", "few-slots",
                 "few-slots-april", "no-limit", "colocate-async")
]  # fmt: skip


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return calibrate(SYNC, RUNS / "probe.json")


def test_every_run_of_the_campaign_is_there() -> None:
    campaign = Campaign.read(DATA / "campaign.yaml")
    assert {run.name for run in campaign.runs} == {folder.name for folder in [*SYNC, *HELD]}
    for run in campaign.runs:
        found = RunFolder.open(RUNS / run.name)
        assert (found.seed, len(found.steps["step"])) == (run.seed, run.steps)
        assert (RUNS / run.name / "iterations.csv.gz").exists() == run.iterations
        assert found.turned() is not None
        assert found.pulses is not None


@pytest.mark.parametrize("name", ["sync-0", "april-10", "few-slots-april-10", "colocate-async-10"])
def test_what_an_update_was_fed_is_what_its_rollouts_came_to(name: str) -> None:
    """Turns and resumes of a rollout are one; its last token is sampled and not fed."""
    run = RunFolder.open(RUNS / name)
    fed = loads(run, skips=True)
    assert run.updates is not None
    for step, update in zip(run.steps["step"].tolist(), run.updates, strict=True):
        load = fed[int(step)]
        assert load.rollouts == update["rollouts"]
        assert load.tokens - load.rollouts == update["computed_tokens"]


def test_environments_of_another_speed_and_number_are_replayed(fitted: Fitted) -> None:
    checks = validate(fitted, HELD, "replay", draws=1).checks
    off = {c.run.name: c.forecast.point["step_s"].sum() / c.total_s - 1 for c in checks}
    assert np.median(np.abs(list(off.values()))) < 0.04, off
    assert max(map(abs, off.values())) < 0.08, off
    assert np.median([c.error_of("step_s") for c in checks]) < 0.10
    assert np.median([c.error_of("train_s") for c in checks]) < 0.15


def test_environments_of_another_speed_and_number_are_predicted(fitted: Fitted) -> None:
    """Blind to the machine's pulse, which was a quarter slower in one of them."""
    checks = validate(fitted, HELD, "predict", draws=4).checks
    off = {c.run.name: c.total_error for c in checks}
    assert np.median(np.abs(list(off.values()))) < 0.12, off
    by = {name: np.median(c.forecast.total_s) for name, c in zip(off, checks, strict=True)}
    assert by["slow-10"] > 1.8 * by["sync-again-10"]
    assert by["few-slots-10"] > 1.2 * by["sync-again-10"] > by["fast-10"]
    assert by["slow-april-10"] < 0.6 * by["slow-10"]


BESIDE = DATA / "beside"


@pytest.fixture(scope="module")
def fitted_beside() -> Fitted:
    return calibrate([BESIDE / f"sync-{seed}" for seed in range(2)], BESIDE / "probe.json")


@pytest.mark.parametrize("name", ["one-off-10", "async2-slow-10"])
def test_decisions_with_turns_beside_a_trainer_follow_from_the_record(name: str) -> None:
    found = replay(BESIDE / name)
    assert found.differs is None
    assert found.run.ledger.balance == 0
    assert found.run.steps[-1].step == 23


def test_rollouts_with_turns_beside_a_trainer_are_replayed(fitted_beside: Fitted) -> None:
    held = [run for run in Campaign.read(DATA / "beside.yaml").runs if run.entry != "sync"]
    assert len(held) == 4
    checks = validate(fitted_beside, [BESIDE / run.name for run in held], "replay", draws=1).checks
    off = {c.run.name: c.forecast.point["step_s"].sum() / c.total_s - 1 for c in checks}
    assert np.median(np.abs(list(off.values()))) < 0.08, off
    assert max(map(abs, off.values())) < 0.2, off
    for check in checks:
        staleness = check.run.steps["mean_staleness"]
        assert staleness.max() <= (1 if check.run.name.startswith("one-off") else 2)
        found = np.mean(check.forecast.point["staleness"])
        assert found == pytest.approx(np.mean(staleness), abs=0.2), check.run.name
