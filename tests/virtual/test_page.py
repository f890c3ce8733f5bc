"""docs/control_planes.md does what it says."""

import gzip
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.refusals import ran
from tests.virtual.test_pytest_plugin import ROOT, run_pytest

PAGE = (ROOT / "docs" / "control_planes.md").read_text("utf-8")


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the files of the page; fewer examples find the same."""
    for code in re.findall(r"```(?:python|yaml)\n(# \S+\n.*?)```", PAGE, re.DOTALL):
        (tmp_path / code.split()[1]).write_text(code.replace("search=50", "search=15"))
    return tmp_path


def test_from_nothing_to_a_failing_test_and_its_remedy(written: Path) -> None:
    said = run_pytest(written, "--rollcast")
    assert "2 failed" in said, said
    shown = re.search(r"```\n(AssertionError.*?)```\n.*?```\n( +0\.000 .*?)```", PAGE, re.DOTALL)
    assert shown[1] in said.replace(f"{written}/", ""), said
    folder = written / ".rollcast" / "test_my_scheduler.py-test_whatever_comes"
    assert (folder / "journal.txt").read_text() == shown[2]
    assert shown[1].splitlines()[1] in (folder / "smallest.txt").read_text()
    picture = (folder / "timeline.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert {"g0/0", "g1/0", "g2/0", "g3/0", "sync"} <= {event["name"] for event in events}
    scheduler = written / "my_scheduler.py"
    code = scheduler.read_text()
    assert "del ready[: training.batch_groups]" in PAGE
    scheduler.write_text(code.replace("ready.clear()", "del ready[: training.batch_groups]"))
    said = run_pytest(written, "--rollcast")
    assert "2 passed" in said, said


def test_the_comparison_of_the_page(
    written: Path, monkeypatch: pytest.MonkeyPatch, cli: object
) -> None:
    monkeypatch.chdir(written)
    monkeypatch.syspath_prepend(written)
    [line] = re.findall(r"^(rollcast compare .*)$", PAGE, re.MULTILINE)
    out = ran(cli(*line.split()[1:], "--set", "steps=4"))
    assert "my_scheduler:main" in out


def test_the_workflow_runs_the_laws_and_keeps_what_failed() -> None:
    text = (ROOT / "examples" / "control_planes" / "workflow.yml").read_text("utf-8")
    steps = yaml.safe_load(text)["jobs"]["laws"]["steps"]
    assert "pytest --rollcast --rollcast-seeds 8" in [step.get("run") for step in steps]
    kept = steps[-1]["with"]  # a folder that begins with a dot is left out unless told
    assert kept["path"] == ".rollcast/"
    assert kept["include-hidden-files"] is True
    assert steps[-1]["if"] == "failure()"


def test_the_files_that_it_names_are_there() -> None:
    for path in re.findall(r"\((\.\./[\w./]+)\)", PAGE):
        assert (ROOT / "docs" / path).exists()
    listed = subprocess.run(
        ["git", "ls-files", "examples/control_planes"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    assert "run.py" in listed or not listed
