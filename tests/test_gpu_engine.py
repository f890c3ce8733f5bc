"""benchmarks.gpu_engine: the engine is asked for the lengths that the forecast was made of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import gpu_engine
from benchmarks.gpu_engine import CASES, SHAPES
from rollcast.simulator.errors import ScenarioError


def test_a_forecast_has_each_rollouts_length_by_group() -> None:
    case = replace(CASES["1.5b"], groups=3, group_size=2, max_new_tokens=64, median_tokens=60)
    told = gpu_engine.forecast(case, "h200-sxm")
    assert [len(group) for group in told["lengths"]] == [2, 2, 2]
    lengths = [length for group in told["lengths"] for length in group]
    assert max(lengths) == 64
    assert min(lengths) >= 1
    seconds = told["generation"]
    assert 0 < seconds["low_s"] <= seconds["s"] <= seconds["high_s"]


def test_every_case_is_of_a_known_shape_that_simulates() -> None:
    for case in CASES.values():
        assert case.model in SHAPES
    with pytest.raises(ScenarioError, match="gpu"):
        gpu_engine.forecast(CASES["1.5b"], "h2000")


def test_the_table_tells_what_was_not_measured_and_why() -> None:
    said = {"generation": {"s": 8.0, "low_s": 4.0, "high_s": 11.0}}
    told = {"cases": {"a": said, "b": said, "c": said}}
    found = {"cases": {"a": {"generation_s": 10.0}, "b": {"failed": "error: no GPU"}}}
    a, b, c = gpu_engine.table(told, found).strip().splitlines()[2:]
    assert "| 10.0 | -20% |" in a
    assert "error: no GPU" in b
    assert "not measured" in c
