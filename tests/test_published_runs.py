"""Published RL runs as scenarios (`benchmarks/data/published/runs`) keep their format."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.validation.published_runs import MEASURED
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw

FOLDER = Path(__file__).parent.parent / "benchmarks" / "data" / "published" / "runs"
FILES = sorted(FOLDER.glob("*.yaml"))
RUN_KEYS = {"version", "steps", "scenario", "unknown", "measured", "bound", "note"}
SET_BY_THE_JUDGE = {"name", "steps", "seed"}
ROUNDED = 1.01  # sources round their phases


def content(path: Path) -> dict[str, Any]:
    """A file, read as users' scenarios are."""
    read: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return read


def runs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every run of every file, by its name."""
    for path in FILES:
        yield from content(path)["runs"].items()


RUNS = list(runs())
each_run = pytest.mark.parametrize("run", [run for _, run in RUNS], ids=[name for name, _ in RUNS])
each_file = pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])


def with_value(scenario: Mapping[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    """The scenario with another value at a dotted key."""
    key, _, below = dotted.partition(".")
    inner = scenario.get(key, {})
    return {**scenario, key: with_value(inner, below, value) if below else value}


def phases(measured: Mapping[str, float]) -> dict[str, float]:
    """Seconds by name, without the step."""
    return {name: seconds for name, seconds in measured.items() if name != "step"}


def test_there_are_runs_of_many_sources() -> None:
    assert len(FILES) >= 25
    assert len(RUNS) >= 100


def test_names_are_unique() -> None:
    assert [name for name, times in Counter(name for name, _ in RUNS).items() if times > 1] == []


@each_file
def test_a_file_says_its_source_and_pairs_its_own_runs(path: Path) -> None:
    file = content(path)
    assert set(file) <= {"source", "runs", "pairs"}
    assert len(file["source"]) > 20
    assert "://" not in path.read_text("utf-8")
    for first, second in file.get("pairs", []):
        assert {first, second} <= set(file["runs"])
        for name in (first, second):
            assert "step" in file["runs"][name]["measured"], f"{name} has no step to compare"


@each_run
def test_a_run_has_known_keys_and_phases(run: dict[str, Any]) -> None:
    assert set(run) <= RUN_KEYS
    assert not SET_BY_THE_JUDGE & set(run["scenario"])
    names = [part for name in phases(run["measured"]) for part in name.split("+")]
    assert set(names) <= set(MEASURED)
    assert len(set(names)) == len(names), "a phase is measured twice"
    assert run["measured"]
    assert all(seconds >= 0 for seconds in run["measured"].values())
    assert run.get("bound", "generation") in MEASURED


@each_run
def test_the_stack_is_said(run: dict[str, Any]) -> None:
    assert run["scenario"]["cost"]["roofline"]["stack"]


@each_run
def test_phases_of_a_synchronous_step_are_no_longer_than_it(run: dict[str, Any]) -> None:
    measured, overlapped = run["measured"], bool(run["scenario"]["policy"])
    if "step" not in measured:
        pytest.skip("no step was published")
    beside = {"generation"} if overlapped else set()
    inside = [seconds for name, seconds in phases(measured).items() if name not in beside]
    assert math.fsum(inside) <= ROUNDED * measured["step"]


@each_run
def test_values_of_an_open_key_differ(run: dict[str, Any]) -> None:
    for key, values in run.get("unknown", {}).items():
        assert len(values) > 1, key
        assert all(values.count(value) == 1 for value in values), key


@each_run
def test_the_scenario_holds_the_best_guess_of_an_open_key(run: dict[str, Any]) -> None:
    scenario = run["scenario"]
    for key, values in run.get("unknown", {}).items():
        given = scenario
        for part in key.split("."):
            given = given.get(part) if isinstance(given, Mapping) else None
        assert given in (None, values[0]), f"{key} is {given}, its best guess {values[0]}"


@each_run
def test_a_scenario_builds_with_every_value_of_its_open_keys(run: dict[str, Any]) -> None:
    scenario = run["scenario"]
    from_raw(RawScenario(dict(scenario)))
    for key, values in run.get("unknown", {}).items():
        for value in values:
            from_raw(RawScenario(with_value(scenario, key, value)))
