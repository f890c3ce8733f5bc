"""Committed runs of several turns: calibrated on one policy, held against another."""

import pytest

from benchmarks.measured import runs
from rollcast.calibration.fits.updates import loads
from rollcast.calibration.folder import RunFolder
from tests.calibration import kept

RUNS = runs("turns/runs")


@pytest.mark.parametrize("name", ["sync-0", "few-slots-april-10"])
def test_what_an_update_was_fed_is_what_its_rollouts_came_to(name: str) -> None:
    """Turns and resumes of a rollout are one; its last token is sampled and not fed."""
    run = RunFolder.open(RUNS / name)
    fed = loads(run, skips=True)
    assert run.turned is not None
    assert run.updates is not None
    for step, update in zip(run.steps["step"].tolist(), run.updates, strict=True):
        load = fed[int(step)]
        assert load.rollouts == update["rollouts"]
        assert load.tokens - load.rollouts == update["computed_tokens"]


def test_another_number_of_environments_and_policy_is_replayed() -> None:
    """As kept; test_held_out.py holds that to what the code gives."""
    replay = kept.kept_of("turns", "few-slots-april-10")["replay"]
    assert abs(replay["error"]) < 0.08
    assert replay["step_error"] < 0.12
    assert abs(replay["train_error"]) < 0.2
