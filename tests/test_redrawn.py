"""Scenarios drawn anew from what is not known of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rollcast.simulator.scenario.file import read_scenario
from rollcast.simulator.studies.redrawn import UNCERTAIN, intervals, redrawn
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values.chance import Drawn
from rollcast.simulator.workload.length_specs import PresetLengths, length_presets
from tests.conftest import Cli

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
    found = intervals(result, 10)
    assert set(found) == {key for key in UNCERTAIN if key in result.summary}
    assert all(low <= high for low, high in found.values())
    low, high = found["step_s"]
    own = [simulate(redrawn(scenario, d + 1)).summary["step_s"] for d in range(10)]
    assert min(own) <= low < high <= max(own)


def test_the_command_line_says_them(cli: Cli, tmp_path: Path) -> None:
    settings = [part for setting in SMALL for part in ("--set", setting)]
    path = str(EXAMPLES / "april.yaml")
    code, out, _ = cli("simulate", path, *settings, "--draws", "10", "--json")
    assert code == 0
    summary = json.loads(out)
    low, high = summary["intervals"]["makespan_s"]
    assert summary["draws"] == 10
    assert low < high
    code, _, err = cli("simulate", path, "--draws", "3", "--out", str(tmp_path / "x"))
    assert code == 2
    assert "--draws: is 3; give at least 10, or 0 for none" in err
    assert not (tmp_path / "x").exists()
