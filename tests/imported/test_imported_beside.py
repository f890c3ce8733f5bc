"""Work done in a process beside this one."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from rollcast.calibration import importing
from rollcast.calibration.judge import beside
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.calibration.pages.import_file import to_json
from rollcast.simulator.errors import ScenarioError
from tests.imported.test_imported_cli import _rows
from tests.logs import written


@pytest.fixture(params=[1, 2], ids=["one core", "two cores"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(beside, "cores", lambda: request.param)
    return int(request.param)


def test_the_result_is_that_of_the_work_where_ever_it_is_done(cores: int) -> None:
    with beside.beside(lambda: (os.getpid(), 3)) as result:
        process, value = result()
    assert value == 3
    assert (process == os.getpid()) is (cores == 1)


def test_what_the_work_raises_is_raised_where_its_result_is_asked_for(cores: int) -> None:
    def fails() -> None:
        raise ScenarioError("steps", "too few")

    with beside.beside(fails) as result, pytest.raises(ScenarioError, match="too few"):
        result()


def test_work_whose_process_was_killed_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "cores", lambda: 2)
    here = os.getpid()

    def killed_elsewhere() -> int:
        if os.getpid() != here:
            os._exit(9)
        return 5

    with beside.beside(killed_elsewhere) as result:
        assert result() == 5


def test_what_nobody_asked_for_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "cores", lambda: 2)
    with beside.beside(lambda: time.sleep(800)):  # longer than a test may take
        pass


def test_an_import_is_the_same_where_its_held_out_steps_are_forecast_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.table(tmp_path / "run.csv", _rows(20))
    log, hold_out = read_log([tmp_path / "run.csv"]), importing.hold_out
    here, found = [], []

    def noted(*given: Any) -> Any:
        here.append(len(found))
        return hold_out(*given)

    monkeypatch.setattr(importing, "hold_out", noted)
    for cores in (1, 2):
        monkeypatch.setattr(beside, "cores", lambda cores=cores: cores)
        outcome = importing.outcome(log, draft(log), advised=False)
        assert outcome.judged
        found.append(to_json(log, outcome))
    assert found[0] == found[1]
    assert here == [0]  # of two cores it was in a process of its own
