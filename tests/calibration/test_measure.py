"""Campaigns of real runs: reading them, and what is kept of a run."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure import CAMPAIGN, Campaign, Measurement, command, keep, main, spread
from rollcast.calibration.calibrate import calibrate
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.errors import ScenarioError
from tests.calibration.worlds import write_pulses, write_world
from tests.refusals import refuses

GOOD = """
scenario: scenario.yaml
runs:
  sync: {policy: sync, seeds: [3, 4], steps: 5}
  april: {policy: april, seeds: [3], steps: 5, set: {workload.group_size: 16}, iterations: true}
"""


def read(folder: Path, text: str) -> Campaign:
    path = folder / "campaign.yaml"
    path.write_text(text)
    return Campaign.read(path)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_the_runs_of_an_entry_are_spread_over_the_campaign(counts: list[int]) -> None:
    """Each is made once, in its entry's order, and in every stretch of the campaign about as many
    of an entry as its share of all runs."""
    entries = [
        [Measurement(str(entry), "sync", seed, 5, {}) for seed in range(count)]
        for entry, count in enumerate(counts)
    ]
    order = spread(entries)
    for entry in entries:
        assert [run for run in order if run.entry == entry[0].entry] == entry
        share = len(entry) / len(order)
        for end in range(len(order) + 1):
            made = sum(run in entry for run in order[:end])
            assert abs(made - share * end) <= 1 + share * len(entries)


def test_a_campaign_is_read(tmp_path: Path) -> None:
    campaign = read(tmp_path, GOOD)
    assert [run.name for run in campaign.runs] == ["sync-3", "sync-4", "april-3"]
    assert campaign.scenario == tmp_path / "scenario.yaml"
    april = campaign.runs[2]
    assert april.iterations
    assert not campaign.runs[0].iterations
    line = command(campaign, april, tmp_path / "out", resume=True)
    assert line[1:4] == ["-m", "rollcast", "run"]
    for option in (
        "--seed=3",
        "--set=workload.group_size=16",
        '--set=policy="april"',
        "--set=steps=5",
        "--resume",
    ):
        assert option in line


def test_the_committed_campaign_is_one() -> None:
    campaign = Campaign.read(CAMPAIGN)
    assert campaign.scenario.resolve().is_file()
    assert len({run.name for run in campaign.runs}) == len(campaign.runs)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (("scenario: scenario.yaml", "scenario: 3"), "scenario"),
        (("scenario: scenario.yaml", ""), "scenario"),
        (("seeds: [3, 4]", "seeds: 3"), "runs.sync.seeds"),
        (("seeds: [3, 4]", "seeds: [x]"), "runs.sync.seeds"),
        (("steps: 5}", "steps: 0}"), "runs.sync.steps"),
        (("policy: sync, ", ""), "runs.sync.policy"),
        (("policy: sync", "polcy: sync"), "runs.sync.polcy"),
        (("iterations: true", "iterations: 1"), "runs.april.iterations"),
        (("set: {workload.group_size: 16}", "set: 3"), "runs.april.set"),
        ((GOOD, "[]"), "CAMPAIGN"),
        ((GOOD, "a: ["), "CAMPAIGN"),
        ((GOOD, "scenario: s.yaml\nruns: {}"), "runs"),
    ],
)
def test_a_bad_campaign_names_the_key(tmp_path: Path, change: tuple[str, str], field: str) -> None:
    with refuses(field):
        read(tmp_path, GOOD.replace(*change))


def test_a_missing_campaign_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["measure", str(tmp_path / "none.yaml")])
    assert main() == 2
    assert "none.yaml" in capsys.readouterr().err


def test_what_is_kept_calibrates_alike(tmp_path: Path) -> None:
    run = write_world(tmp_path / "run", steps=12)
    write_pulses(run, 1.0)
    keep(run, tmp_path / "kept")
    keep(run, tmp_path / "short", iterations=False)
    assert not list(tmp_path.glob("tmp*"))
    whole, kept = calibrate([run]), calibrate([tmp_path / "kept"])
    for name, value in whole.content["cost"]["dense"].items():
        assert kept.content["cost"]["dense"][name] == pytest.approx(value, rel=1e-3, abs=1e-6)
    assert kept.content["lengths"]["lengths"] == whole.content["lengths"]["lengths"]
    assert kept.speed.short_s == pytest.approx(whole.speed.short_s, rel=1e-3)
    fixed = whole.content["cost"]["iteration"]["fixed_s"]
    assert kept.content["cost"]["iteration"]["fixed_s"] == pytest.approx(fixed, rel=1e-3)
    short = RunFolder.open(tmp_path / "short")
    assert np.allclose(short.steps["step_s"], RunFolder.open(run).steps["step_s"], atol=2e-6)
    with pytest.raises(ScenarioError, match=r"iterations\.csv"):
        calibrate([tmp_path / "short"])


def test_what_is_asked_for_is_kept_or_nothing_is(tmp_path: Path) -> None:
    run = write_world(tmp_path / "run", steps=6)
    (run / "iterations.csv").unlink()
    with pytest.raises(FileNotFoundError):
        keep(run, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    keep(run, tmp_path / "kept", iterations=False)


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    keep(write_world(tmp_path / "run", steps=6), tmp_path / "kept")
    for file in ("steps.csv", "decisions.jsonl"):
        path = tmp_path / "kept" / f"{file}.gz"
        whole = path.read_bytes()
        for content in (whole[: len(whole) // 2], b"no gzip", whole[:40] + b"x" * 30 + whole[70:]):
            path.write_bytes(content)
            run = RunFolder.open(tmp_path / "kept")
            with pytest.raises(ScenarioError, match=file):
                _ = run.steps if file == "steps.csv" else run.layouts
        path.write_bytes(whole)
