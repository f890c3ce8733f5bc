"""Published RL runs as scenarios (`benchmarks/data/published/runs`) keep their format."""

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation.published_runs import MEASURED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw
from rollcast.simulator.values.yaml_file import read_yaml

FOLDER = Path(__file__).parent.parent / "benchmarks" / "data" / "published" / "runs"
RUN_KEYS = {"version", "steps", "scenario", "unknown", "measured", "bound", "first_step", "note"}
SET_BY_THE_JUDGE = {"name", "steps", "seed"}
AGREE = 3  # figures of two sources, to three digits: as many are no chance
ROUNDED = 1.01  # sources round their phases


@cache
def content() -> dict[str, dict[str, Any]]:
    """Every file by its name."""
    return {path.stem: read_yaml(path) for path in sorted(FOLDER.glob("*.yaml"))}


@cache
def runs() -> list[tuple[str, dict[str, Any]]]:
    """Every run of every file, with its name."""
    return [run for file in content().values() for run in file["runs"].items()]


def with_value(scenario: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """The scenario with another value at a dotted key."""
    key, _, below = dotted.partition(".")
    inner = scenario.get(key, {})
    return {**scenario, key: with_value(inner, below, value) if below else value}


def phases(measured: Mapping[str, float]) -> dict[str, float]:
    """Seconds by name, without the step."""
    return {name: seconds for name, seconds in measured.items() if name != "step"}


def test_there_are_runs_of_many_sources() -> None:
    assert len(content()) >= 25
    assert len(runs()) >= 100


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(name for name, _ in runs()).items() if times > 1] == []


def test_a_file_says_its_source_and_pairs_its_own_runs() -> None:
    for name, file in content().items():
        assert set(file) <= {"source", "runs", "pairs"}, name
        assert len(file["source"]) > 20, name
        assert "://" not in (FOLDER / f"{name}.yaml").read_text("utf-8"), name
        for first, second in file.get("pairs", []):
            assert {first, second} <= set(file["runs"]), name
            for one in (first, second):
                assert "step" in file["runs"][one]["measured"], f"{one} has no step to compare"


def test_no_run_is_in_two_sources() -> None:
    """It would be forecast by what was fitted to itself. Two figures may agree by chance."""
    seen: dict[tuple[str, str], set[str]] = {}
    for name, file in content().items():
        for run in file["runs"].values():
            for phase, seconds in phases(run["measured"]).items():
                seen.setdefault((phase, f"{seconds:.3g}"), set()).add(name)
    alike = Counter(pair for names in seen.values() for pair in combinations(sorted(names), 2))
    assert {pair: times for pair, times in alike.items() if times >= AGREE} == {}


def test_a_run_has_known_keys_and_phases() -> None:
    for name, run in runs():
        assert set(run) <= RUN_KEYS, name
        assert not SET_BY_THE_JUDGE & set(run["scenario"]), name
        assert run["scenario"]["cost"]["roofline"]["stack"], name
        parts = [part for phase in phases(run["measured"]) for part in phase.split("+")]
        assert set(parts) <= set(MEASURED), name
        assert len(set(parts)) == len(parts), f"{name}: a phase is measured twice"
        assert run["measured"], name
        assert all(seconds >= 0 for seconds in run["measured"].values()), name
        assert run.get("bound", "generation") in MEASURED, name


def test_phases_of_a_synchronous_step_are_no_longer_than_it() -> None:
    steps = [(name, run) for name, run in runs() if "step" in run["measured"]]
    assert len(steps) >= 50
    for name, run in steps:
        beside = {"generation"} if run["scenario"]["policy"] else set()
        inside = [s for phase, s in phases(run["measured"]).items() if phase not in beside]
        assert math.fsum(inside) <= ROUNDED * run["measured"]["step"], name


def test_values_of_an_open_key_differ_and_the_scenario_holds_the_best_guess() -> None:
    for name, run in runs():
        for key, values in run.get("unknown", {}).items():
            assert len(values) > 1, (name, key)
            assert all(values.count(value) == 1 for value in values), (name, key)
            given = run["scenario"]
            for part in key.split("."):
                given = given.get(part) if isinstance(given, Mapping) else None
            assert given in (None, values[0]), f"{name}: {key} is {given}, best guess {values[0]}"


def test_a_scenario_builds_with_every_value_of_its_open_keys() -> None:
    for name, run in runs():
        scenarios = [run["scenario"]]
        for key, values in run.get("unknown", {}).items():
            scenarios += [with_value(run["scenario"], key, value) for value in values]
        for scenario in scenarios:
            try:
                from_raw(RawScenario(dict(scenario)))
            except ScenarioError as error:
                pytest.fail(f"{name}: {error}")
