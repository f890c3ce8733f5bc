"""Committed runs of actors: calibrated on turns, held against what overlaps."""

import numpy as np
import pytest

from benchmarks.measure import CAMPAIGN, Campaign
from benchmarks.measured import runs
from rollcast.calibration.calibrate import Fitted
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.validate import Validation
from rollcast.simulator.runs.replay import replay
from tests.calibration import kept

DATA = CAMPAIGN.parents[1] / "overlap"
RUNS = runs("overlap/runs")
HELD = [RUNS / f"{name}-10" for name in ("one-off", "async2", "pipeline", "replicas")]


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return kept.fitted("overlap")


@pytest.fixture(scope="module")
def replayed(fitted: Fitted) -> Validation:
    return kept.replayed(fitted, HELD)


def test_every_run_of_the_campaign_is_there() -> None:
    for run in Campaign.read(DATA / "campaign.yaml").runs:
        found = RunFolder.open(RUNS / run.name)
        assert found.seed == run.seed
        assert len(found.steps["step"]) == run.steps
        assert (RUNS / run.name / "iterations.csv").exists() == run.iterations
        assert found.arrivals is not None
        assert found.pulses is not None
        assert found.overlaps == (run.policy not in ("sync", "streaming(groups=4)"))
        assert "address" not in str(found.provenance)


@pytest.mark.parametrize("name", ["pipeline-10", "replicas-10"])
def test_decisions_follow_from_the_record_alone(name: str) -> None:
    found = replay(RUNS / name)
    assert found.differs is None
    assert found.run.ledger.balance == 0


def test_each_is_slower_beside_the_other(fitted: Fitted) -> None:
    actors = fitted.cost.actors
    assert 1.0 <= actors.iteration_beside < 2.0
    assert 1.0 <= actors.update_beside < 2.0
    assert 0 < actors.to_trainer_s < 0.05
    assert 0 < actors.load_s < fitted.cost.sync_s


def test_no_pulse_is_heeded_where_actors_disturb_it(replayed: Validation, fitted: Fitted) -> None:
    heeded = {check.run.name: check.forecast.at_pulse for check in replayed.checks}
    assert heeded.pop("replicas-10")
    assert set(heeded.values()) == {False}
    [told] = kept.replayed(fitted, [RUNS / "one-off-10"], at_pulse=True).checks
    assert told.forecast.at_pulse


def test_replays_are_close(replayed: Validation) -> None:
    off = [c.forecast.point["step_s"].sum() / c.total_s - 1 for c in replayed.checks]
    assert np.median(np.abs(off)) < 0.08, off
    assert max(map(abs, off)) < 0.16, off  # two replicas and a trainer wait for two cores
    flags = {check.run.name: " ".join(check.forecast.flags) for check in replayed.checks}
    waited = [name for name, said in flags.items() if "shared 2 CPU cores" in said]
    assert waited == ["replicas-10"]


def test_forecasts_are_those_that_are_kept(replayed: Validation) -> None:
    for check in replayed.checks:
        kept.is_the_kept_replay("overlap", check)
    kept.is_predicted_as_kept("overlap", "one-off-10")


def test_replays_know_how_stale_training_is(replayed: Validation) -> None:
    for check in replayed.checks:
        real, expected = (x["staleness"] for x in (check.measured, check.forecast.point))
        assert np.mean(expected) == pytest.approx(np.mean(real), abs=0.35), check.run.name


@pytest.mark.parametrize(
    ("folder", "name", "bound"),
    [("runs", "one-off-10", 1), ("runs", "async2-10", 2), ("idle", "async4-10", 4)],
)
def test_each_bound_on_staleness_holds_for_real(folder: str, name: str, bound: int) -> None:
    run = RunFolder.open(runs(f"overlap/{folder}") / name)
    assert bound - 1 < run.steps["mean_staleness"].max() <= bound
    assert replay(run.path).differs is None


SEVERAL = runs("overlap/several")


def test_every_run_of_two_replicas_is_there() -> None:
    for run in Campaign.read(DATA / "several.yaml").runs:
        found = RunFolder.open(SEVERAL / run.name)
        assert len(found.steps["step"]) == run.steps
        assert found.section("cluster")["replicas"] == (1 if run.entry == "sync" else 2)
        assert replay(SEVERAL / run.name).differs is None
