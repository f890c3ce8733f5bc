"""``rollcast import --what-if``: a step with other lengths and settings, beside now."""

import json
from pathlib import Path

import pytest

from rollcast.calibration.importing import Outcome, outcome, with_what_if
from rollcast.calibration.judge.asked import asked
from rollcast.calibration.logs.draft import draft
from rollcast.calibration.logs.gather import read_log
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.parts import given
from tests.imported import truth
from tests.imported.test_imported_cli import _rows
from tests.logs import written
from tests.running import exit_code


def _found(folder: Path, stack: str = "") -> Outcome:
    log = read_log([folder])
    said = given(truth.MODEL, truth.FORMS[stack].gpu) if stack else ()
    return outcome(log, draft(log, said), advised=False)


def _seconds(found: Outcome, *texts: str) -> tuple[float, float]:
    """Now, and as asked."""
    found = with_what_if(found, asked(texts))
    changed = found.what_if[1]
    assert changed.low_s <= changed.seconds <= changed.high_s
    return found.step.seconds, changed.seconds


def test_generation_grows_with_the_lengths(tmp_path: Path) -> None:
    """The table's generation and update are in proportion to the mean, beside 1 s of rest."""
    written.table(tmp_path / "run.csv", _rows(40))
    found = _found(tmp_path / "run.csv")
    now, longer = _seconds(found, "mean_tokens=600")
    assert longer - 1 == pytest.approx(2 * (now - 1), rel=0.15)
    _, same = _seconds(found, "mean_tokens=300")
    assert same == pytest.approx(now, rel=0.05)
    _, tail = _seconds(found, "longest_tokens=1400")
    _, short = _seconds(found, "longest_tokens=900")
    assert short < 1.002 * tail  # of costs that hardly hang on it


@pytest.mark.parametrize("stack", ["verl", "openrlhf"])  # with dumps, and without
def test_of_dumps_and_of_figures(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _found(truth.write(stack, tmp_path, monkeypatch), stack)
    now, longer = _seconds(found, "mean_tokens=1200")
    assert 1.2 < longer / now < 2.5
    now, half = _seconds(found, "batch_groups=8")
    assert half < now


def test_the_command_says_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written.table(tmp_path / "run.csv", _rows(30))
    options = ("--no-advise", "--what-if", "mean_tokens=450", "--what-if", "group_size=4")
    assert exit_code("import", tmp_path / "run.csv", *options) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "with mean_tokens=450 group_size=4: " in said
    assert " times now's " in said
    assert exit_code("import", tmp_path / "run.csv", *options, "--json") == 0
    found = json.loads(capsys.readouterr().out)["imported"]["what_if"]
    assert found["asked"] == "mean_tokens=450 group_size=4"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mean_tokens", "is not of the form key=value"),
        ("mean_tokens=", "is not of the form key=value"),
        ("mean_tokens=many", "must be tokens of 1 or more"),
        ("mean_tokens=0", "must be tokens of 1 or more"),
        ("mean_tokens=nan", "must be tokens of 1 or more"),
        ("mean_tokens=99999999", "is not below the limit"),
        ("longest_tokens=5", "is below the mean"),
        ("mean_token=5", "did you mean mean_tokens"),
        ("workload.group_sise=5", "group_sise"),
    ],
)
def test_what_is_none(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.table(tmp_path / "run.csv", _rows(30))
    assert exit_code("import", tmp_path / "run.csv", "--no-advise", "--what-if", text) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_twice(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="twice"):
        asked(["group_size=4", "group_size=8"])
    assert asked([]) is None
