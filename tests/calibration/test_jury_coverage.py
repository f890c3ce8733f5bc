"""Intervals of the jury's forecasts, and how many figures they hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation import draws
from benchmarks.validation.coverage import LEAST, MOST, by_source, of_cases
from benchmarks.validation.page import page
from benchmarks.validation.verdict import Case, Source
from rollcast.simulator.costs import Iteration, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model

COST = RooflineCost(load_model("qwen3-8b"), load_gpu("h100-sxm"))
JURY = Path(__file__).parents[2] / "benchmarks" / "results" / "validation"


def case(measured: float, role: str = "held out", low: float | None = 0.5) -> Case:
    return Case("g", "n", "s", measured, 1.0, role, low, None if low is None else 2.0)  # type: ignore[arg-type]


def test_only_what_was_held_out_and_has_an_interval_counts() -> None:
    cases = [
        case(1.0),
        case(3.0),
        case(0.4),
        case(1.5),
        case(9.0, "calibrated"),
        case(9.0, low=None),
    ]
    found = of_cases("x", cases)
    assert found is not None
    assert (found.cases, found.inside, found.share) == (4, 2, 0.5)
    assert found.spread == pytest.approx(math.log(4) / 3.29)
    assert of_cases("x", [case(9.0, "calibrated")]) is None


def test_all_sources_together_come_last_and_other_simulators_do_not_count() -> None:
    sources = [
        Source("a", "A: b", "", cases=(case(1.0),)),
        Source("peers", "P", "", cases=(case(9.0),)),
        Source("c", "C", "", cases=(case(3.0), case(1.0))),
    ]
    assert [(each.name, each.inside, each.cases) for each in by_source(sources)] == [
        ("A", 1, 1),
        ("C", 1, 2),
        ("all", 2, 3),
    ]
    assert "| all | 67% | 3 | 42% |" in page(sources)
    assert "Intervals" not in page([Source("a", "A", "")])


def test_an_interval_is_of_the_draws_and_around_the_forecast() -> None:
    drawn = draws.drawn(COST)
    assert [each.factors for each in drawn] == [each.factors for each in draws.drawn(COST)]  # type: ignore[attr-defined]
    work = Iteration(8, 8000, 700, 700 * 701 // 2, 1, 700)
    assert draws.iteration_s(COST, work) == COST.iteration_s(work)
    low, high = draws.interval(5.0, drawn, COST, lambda c: draws.iteration_s(c, work))
    assert low < 5.0 < high
    assert draws.ends(list(np.linspace(0, 1, 101))) == pytest.approx((0.045, 0.955), abs=0.01)


def test_a_token_takes_an_iteration_and_its_share_of_prompts() -> None:
    alone = draws.token_s(COST, 1, 512, 100)
    assert alone == COST.decode_curve(1).seconds(562)
    assert draws.token_s(COST, 64, 4096, 100) > COST.decode_curve(64).seconds(64 * 4146)


def test_nine_of_ten_held_out_figures_lie_inside_their_intervals() -> None:
    """As committed; who moves a forecast or a spread makes it anew."""
    text = (JURY / "forecasts.md").read_text("utf-8")
    (row,) = [line for line in text.splitlines() if line.startswith("| all |")]
    inside, rows = row.split(" | ")[1:3]
    assert LEAST <= float(inside.rstrip("%")) / 100 <= MOST
    assert int(rows) > 1000
    assert json.loads((JURY / "validation.json").read_text("utf-8"))["sources"]
