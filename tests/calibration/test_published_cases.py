"""What published sources share: tables, errors, fits, requests through a replica, the report."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.validation import draws, report
from benchmarks.validation.case import (
    Case,
    Check,
    Source,
    alternating,
    bias,
    grouped,
    held_out,
    mape,
    outside,
)
from benchmarks.validation.files import AbsentError, column, read_table
from benchmarks.validation.fitting import fit_relative
from benchmarks.validation.serving import Request, serve
from benchmarks.validation.suite import Mean, Reason, explain, mean_checks
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import Iteration, LinearCost, RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from tests.laws import examples

FAST = Case("a", "fast", "s", 10.0, 8.0)
SLOW = Case("a", "slow, tp 2", "s", 10.0, 13.0)
OTHER = Case("b", "other", "s", 4.0, 4.0, "calibrated")


def test_errors_by_hand() -> None:
    assert FAST.error == pytest.approx(-0.2)
    assert mape([FAST, SLOW]) == pytest.approx(0.25)
    assert bias([FAST, SLOW]) == pytest.approx(0.05)
    assert list(grouped([FAST, OTHER, SLOW])) == ["a", "b"]
    assert held_out([FAST, OTHER]) == [FAST]
    roles = alternating("aabab", str)
    assert [role[0] for role in roles] == ["c", "h", "c", "c", "h"]
    assert Check("x", -0.3, 0.2, signed=True).met is False
    assert Check("x", 0.3).met is None
    inside = Case("g", "n", "s", 1.0, 1.0, low=0.9, high=1.1)
    beyond = [Case("g", "n", "s", measured, 1.0, low=0.9, high=1.1) for measured in (0.8, 1.2)]
    assert outside([inside, *beyond, inside]) == 0.5


def test_a_declared_check_takes_its_groups_and_the_first_target_that_fits() -> None:
    cases = [FAST, SLOW, OTHER]
    (first,) = mean_checks(cases, Mean("of {group}", target={"x": 0.1, "a": 0.2}))
    assert (first.name, first.value, first.met, first.cases) == (
        "of a",
        pytest.approx(0.25),
        False,
        2,
    )
    assert "worst +30.0% (slow, tp 2)" in first.note
    (other,) = mean_checks(cases, Mean("{group}", role="calibrated", target=0.1, note=False))
    assert (other.met, other.note) == (True, "")
    (split,) = mean_checks([SLOW], Mean("{group}", split=r"tp \d+"))
    assert split.note.endswith("; tp 2: 30.0%")
    assert not list(mean_checks(cases, Mean("{group}", groups="c")))


def test_reasons_name_only_cases_that_miss() -> None:
    reasons = [
        Reason("slow ones", r"held out\|a: slow", "they are slow"),
        Reason("others", "other", "never told"),
    ]
    assert list(explain([FAST, SLOW, OTHER], reasons, 0.1)) == [
        "slow ones: 1 more than 10% off (+30% to +30%); they are slow."
    ]


def test_nothing_to_average_is_an_error_not_a_nan() -> None:
    for average in (mape, bias):
        with pytest.raises(ScenarioError, match="none to average"):
            average([])


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_case_needs_two_positive_figures(bad: float) -> None:
    with pytest.raises(ScenarioError, match="no positive s"):
        Case("a", "n", "s", bad, 1.0)
    with pytest.raises(ScenarioError, match="no positive ratio"):
        Case("a", "n", "", 1.0, bad)


@dataclass
class Line:
    """A row of a table."""

    name: str
    tokens: int
    share: float | None = column(least=0.5)
    word: bool = column(valid={"yes": True, "no": False})
    fixed: int = 3


HEAD = b"name,tokens,share,word\n"


def test_rows_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.csv"
    path.write_bytes(HEAD + b"x,12,,yes\ny,3,0.75,no\n")
    assert read_table(path, Line) == [Line("x", 12, None, True), Line("y", 3, 0.75, False)]
    with pytest.raises(AbsentError, match=r"none\.csv"):
        read_table(tmp_path / "none.csv", Line)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column name, tokens, share, word"),
        (b"name\nx\n", "no column tokens"),
        (HEAD, "no rows"),
        (HEAD + b"x,1,,yes\ny\n", "line 3.*cut short"),
        (b"name,tokens\n\xff\xfe,1\n", "not a CSV file"),
        *(
            (HEAD + b"x," + bad + b",,yes\n", "line 2, tokens")
            for bad in (b"", b"x", b"nan", b"inf", b"-1")
        ),
        (HEAD + b"x,1.5,,yes\n", "must be a whole number"),
        (HEAD + b"x,0,,yes\n", "1 or more"),
        (HEAD + b"x,1,0.4,yes\n", "line 2, share.*0.5 or more"),
        (HEAD + b"x,1,,maybe\n", "word.*must be one of yes, no"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message):
        read_table(path, Line)


@settings(max_examples=examples(15), deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 5), st.floats(0, 5), st.booleans())
def test_a_fit_recovers_what_made_the_data_whatever_one_outlier_says(
    seed: int, first: float, second: float, outlier: bool
) -> None:
    draw = np.random.default_rng(seed)
    fixed, columns = draw.uniform(1, 5, 40), draw.uniform(0.5, 3, (40, 2))
    measured = fixed + columns @ [first, second]
    measured[7] *= 5 if outlier else 1
    found = fit_relative(fixed, columns, measured)
    assert found == pytest.approx([first, second], abs=0.05 if outlier else 1e-6)


def test_a_fit_never_goes_below_zero_and_needs_cases() -> None:
    fixed, columns = np.full(5, 2.0), np.ones((5, 1))
    assert fit_relative(fixed, columns, np.full(5, 1.0)) == pytest.approx([0.0])
    with pytest.raises(ScenarioError, match="cannot determine"):
        fit_relative(fixed[:1], np.ones((1, 2)), fixed[:1])


# Requests through a replica

COST = LinearCost(
    iteration_s=0.01,
    per_rollout_s=0.001,
    per_context_token_s=1e-6,
    per_prefill_token_s=1e-4,
    train_per_token_s=1e-5,
    train_fixed_s=0.0,
    sync_s=1.0,
)


def test_requests_are_served_as_they_arrive() -> None:
    """The first is prefilled in two chunks, the second arrives during the first of them and shares
    the other, the third comes when all are gone."""
    engine = EngineSpec(2, 64, kv_tokens=100_000, prefix_caching=False)
    requests = [Request(10, 1, 5.0), Request(100, 2, 0.0), Request(10, 1, 0.001)]
    last, long, short = serve(requests, engine, COST)
    chunk_s = COST.mixed_iteration_s(Iteration(1, 64, 64, 64 * 65 // 2, 1, 64))
    pairs = 36 * 64 + 36 * 37 // 2 + 10 * 11 // 2
    both_s = chunk_s + COST.mixed_iteration_s(Iteration(2, 110, 46, pairs, 2, 110))
    end_s = both_s + COST.decode_curve(1).seconds(101)
    alone_s = 5.0 + COST.mixed_iteration_s(Iteration(1, 10, 10, 55, 1, 10))
    expected = [(alone_s, alone_s), (both_s, end_s), (both_s, both_s)]
    for served, (first_s, end_s) in zip((last, long, short), expected, strict=True):
        assert served.first_token_s == pytest.approx(first_s, abs=1e-8)
        assert served.end_s == pytest.approx(end_s, abs=1e-8)


def test_no_requests_and_ones_that_never_fit() -> None:
    engine = EngineSpec(4, 64, kv_tokens=160)
    with pytest.raises(ScenarioError, match="there are none"):
        serve([], engine, COST)
    with pytest.raises(ScenarioError, match=r"engine\.kv_tokens"):
        serve([Request(100, 100)], engine, COST)


# Intervals

ROOFLINE = RooflineCost(load_model("qwen3-8b"), load_gpu("h100-sxm"))


def test_an_interval_is_of_the_draws_and_around_the_forecast() -> None:
    assert draws.drawn(ROOFLINE, 2) == draws.drawn.__wrapped__(ROOFLINE, 2)
    work = Iteration(8, 8000, 700, 700 * 701 // 2, 1, 700)
    assert draws.iteration_s(ROOFLINE, work) == ROOFLINE.iteration_s(work)
    low, high = draws.interval(5.0, ROOFLINE, lambda cost: draws.iteration_s(cost, work))
    assert low < 5.0 < high


def test_a_token_takes_an_iteration_and_its_share_of_prompts() -> None:
    alone = draws.token_s(ROOFLINE, 1, 512, 100)
    assert alone == ROOFLINE.decode_curve(1).seconds(562)
    assert draws.token_s(ROOFLINE, 64, 4096, 100) > ROOFLINE.decode_curve(64).seconds(64 * 4146)


# The report


def sources() -> list[Source]:
    return [
        Source(
            "a",
            "First: of two",
            "somewhere",
            "nothing",
            "all",
            ("x",),
            (FAST, SLOW),
            (Check("a", 0.25, 0.2, 2),),
            ("slow is slow",),
            {"one": {"model": "m"}},
        ),
        Source("b", "Bulk", "elsewhere", cases=(OTHER,), listed=False),
        Source("c", "Gone", "", skipped="gone.csv is not in the data folder"),
    ]


def test_the_report_lists_single_figures_and_sums_up_bulk(tmp_path: Path) -> None:
    written = report.write(sources(), tmp_path / "out")
    names = ["validation.md", "validation.json", "validation.png", "forecasts.md", "one.yaml"]
    assert [path.name for path in written] == names
    text = written[0].read_text()
    assert "**missed**" in text
    assert "| a: slow, tp 2 | 10 s | 13 s | +30.0% |" in text
    assert "gone.csv" in text
    assert "| b: other" not in text
    found = json.loads(written[1].read_text())
    assert [len(source["cases"]) for source in found["sources"]] == [2, 0, 0]
    assert written[2].read_bytes().startswith(b"\x89PNG")
    assert "## Other" in written[3].read_text()
    assert "| First: a | 25.0% | 2 | **far** |" in written[3].read_text()
    assert written[4].read_text() == "model: m\n"
    assert any("skipped" in line for line in report.summary_lines(sources()[2]))


@pytest.mark.parametrize(
    ("error", "word"),
    [(0.0, "near"), (-0.1, "near"), (0.1001, "fair"), (-0.2, "fair"), (0.21, "far")],
)
def test_the_page_tells_how_near_a_kind_of_case_is(error: float, word: str) -> None:
    assert report.rating(Check("x", error, signed=True)).strip("*") == word


def test_the_page_leaves_out_what_is_no_error_and_what_was_fitted() -> None:
    checks = (
        Check("far", 0.5, 0.2, 3),
        Check("near", 0.01, 0.2, 4),
        Check("held out, outside their 90 % interval", 0.1, 0.1),
        Check("bottlenecks misnamed", 0.0, 0.0),
        Check("fitted to half, H100", 0.02, 0.1),
    )
    page = report.forecasts_page([Source("weight_updates", "Syncs, and more", "", checks=checks)])
    rows = [line for line in page.splitlines() if line.startswith("| Syncs")]
    assert rows == ["| Syncs: near | 1.0% | 4 | near |", "| Syncs: far | 50.0% | 3 | **far** |"]
    assert "## Weight sync" in page
    assert "## The engine" not in page
    assert "Intervals" not in page


def test_coverage_counts_held_out_measurements_with_intervals() -> None:
    def case(measured: float, role: str = "held out", low: float | None = 0.5) -> Case:
        high = None if low is None else 2.0
        return Case("g", "n", "s", measured, 1.0, role, low, high)  # type: ignore[arg-type]

    judged = [
        Source("a", "A: b", "", cases=(case(1.0), case(9.0, "calibrated"), case(9.0, low=None))),
        Source("peers", "Other simulators", "", cases=(case(9.0),)),
        Source("c", "C", "", cases=(case(3.0), case(1.0))),
    ]
    spread = f"{math.log(4) / 3.29:.0%}"
    assert list(report.coverage(judged)) == [
        ("A", "100%", "1", spread),
        ("C", "50%", "2", spread),
        ("all", "67%", "3", spread),
    ]
    assert f"| all | 67% | 3 | {spread} |" in report.forecasts_page(judged)
