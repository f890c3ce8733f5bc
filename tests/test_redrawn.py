"""Scenarios drawn anew from what is not known of them."""

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.simulator.scenario.file import read_scenario
from rollcast.simulator.studies import redrawn as module
from rollcast.simulator.studies.compare import run_each
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.ranking import redraw
from rollcast.simulator.studies.redrawn import (
    UNCERTAIN,
    add_phases,
    from_whole_runs,
    redrawn,
    whole_runs,
)
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.length_specs import PresetLengths, length_presets
from tests.conftest import Cli
from tests.refusals import ran, refused

EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = ("steps=1", "workload.batch_groups=2", "workload.group_size=2", "policy=sync")
PRESET = "qwen3-30b-a3b-thinking"


def test_a_preset_is_drawn_by_its_standard_errors() -> None:
    preset = length_presets()[PRESET]
    errors = preset.details["standard_errors"]
    rng = np.random.default_rng(0)
    drawn = [PresetLengths(PRESET).drawn(Drawn(rng)) for _ in range(500)]
    for key in ("median_tokens", "between_sd", "within_sd"):
        logs = np.log([getattr(each, key) for each in drawn])
        assert np.std(logs) == pytest.approx(errors[key] / preset.lengths[key], rel=0.1)
        assert np.mean(logs) == pytest.approx(np.log(preset.lengths[key]), abs=0.03)


def test_what_is_said_in_place_of_a_preset_is_not_drawn() -> None:
    drawn = PresetLengths(PRESET, median_tokens=900).drawn(Drawn(np.random.default_rng(1)))
    assert drawn.median_tokens == 900
    assert drawn.within_sd != length_presets()[PRESET].lengths["within_sd"]


def test_policies_meet_the_same_in_the_same_draw() -> None:
    scenario = from_raw(read_scenario(EXAMPLES / "april.yaml"), *SMALL)
    one, other = (redrawn(scenario.with_policy(name), 3) for name in ("sync", "april"))
    assert one.cost.sync_s == other.cost.sync_s
    assert one.workload.draw(0, 4) == other.workload.draw(0, 4)
    assert one.workload.draw(0, 4) != redrawn(scenario, 4).workload.draw(0, 4)


def test_intervals_hold_their_own_draws_and_are_wider_than_luck() -> None:
    """Of coefficients that are given, the draws are of lengths alone."""
    scenario = from_raw(read_scenario(EXAMPLES / "april.yaml"), *SMALL)
    result = simulate(scenario)
    summary = dict(result.summary)
    from_whole_runs(summary, whole_runs(scenario, 10))
    found = summary["intervals"]
    assert set(found) == {key for key in UNCERTAIN if key in result.summary}
    assert all(low <= high for low, high in found.values())
    low, high = found["step_s"]
    own = [simulate(redrawn(scenario, d + 1)).summary["step_s"] for d in range(10)]
    assert min(own) <= low < high <= max(own)


def test_whole_runs_tell_the_phases_too_and_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = from_raw(read_scenario(EXAMPLES / "april.yaml"), *SMALL)
    result = simulate(scenario)
    made = [simulate(redrawn(scenario, d + 1)).summary for d in range(10)]
    runs = iter(made)
    monkeypatch.setattr(module, "simulate", lambda *_: Result(scenario, result.run, next(runs)))
    from_whole_runs(result.summary, whole_runs(scenario, 10))
    assert next(runs, None) is None
    for name, phase in result.summary["phases"].items():
        seconds = [run["phases"][name]["s"] for run in made]
        low, high = ends(seconds).tolist()
        assert phase["low_s"] == min(low, phase["s"])
        assert phase["high_s"] == max(high, phase["s"])
        assert phase["low_s"] <= np.median(seconds) <= phase["high_s"]
    assert sum(result.summary["bound_by_share"].values()) == pytest.approx(1.0)


def test_shares_of_draws_are_by_side_the_largest_first() -> None:
    summary = {"phases": {"update": {"s": 4.0, "share": 1.0}}}
    seconds = {"update": np.array([3.0, 5.0, 6.0, 7.0])}
    add_phases(summary, seconds, ["sync", "trainer", "trainer", "trainer"])
    assert list(summary["bound_by_share"].items()) == [("trainer", 0.75), ("sync", 0.25)]
    assert summary["phases"]["update"]["low_s"] <= 4.0 <= summary["phases"]["update"]["high_s"]


def test_a_comparison_by_whole_runs_has_intervals_of_phases() -> None:
    scenario = from_raw(read_scenario(EXAMPLES / "april.yaml"), *SMALL)
    results = run_each([scenario.with_policy(name) for name in ("sync", "april")])
    redraw(results, 10)
    for result in results.values():
        assert result.summary["draws"] == 10
        low, high = result.summary["intervals"]["step_s"]
        assert low < high
        generation = result.summary["phases"]["generation"]
        assert generation["low_s"] < generation["high_s"]


def test_the_command_line_says_them(cli: Cli, tmp_path: Path) -> None:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    path = str(EXAMPLES / "april.yaml")
    out = ran(cli("simulate", path, *settings, "--draws", "10", "--json"))
    summary = json.loads(out)
    low, high = summary["intervals"]["makespan_s"]
    assert summary["draws"] == 10
    assert low < high
    err = refused(cli("simulate", path, "--draws", "3", "--out", str(tmp_path / "x")))
    assert "--draws: is 3; give 10 to 10,000, or 0 for none" in err
    assert not (tmp_path / "x").exists()
