"""The jury's common parts: statistics, files, fits, requests through a replica, report."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.validation import verdict_files
from benchmarks.validation.files import AbsentError, number, one_of, read_rows, whole
from benchmarks.validation.fitting import fit_relative, halves
from benchmarks.validation.page import page, verdict
from benchmarks.validation.serving import Request, serve
from benchmarks.validation.verdict import (
    Case,
    Check,
    Kind,
    Source,
    bias,
    explain,
    grouped,
    mape,
    mape_checks,
)
from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.costs import Iteration, LinearCost
from rollcast.simulator.errors import ScenarioError
from tests.laws import examples

FAST = Case("a", "fast", "s", 10.0, 8.0)
SLOW = Case("a", "slow", "s", 10.0, 13.0)
OTHER = Case("b", "other", "s", 4.0, 4.0, "calibrated")


def test_errors_by_hand() -> None:
    assert FAST.error == pytest.approx(-0.2)
    assert mape([FAST, SLOW]) == pytest.approx(0.25)
    assert bias([FAST, SLOW]) == pytest.approx(0.05)
    assert list(grouped([FAST, OTHER, SLOW])) == ["a", "b"]
    first, second = mape_checks([FAST, OTHER, SLOW], 0.2)
    assert (first.value, first.met, first.cases) == (pytest.approx(0.25), False, 2)
    assert "slow" in first.note
    assert second.met is True
    assert Check("x", -0.3, 0.2, signed=True).met is False
    assert Check("x", 0.3).met is None


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


def test_reasons_name_only_kinds_that_miss() -> None:
    kinds = [
        Kind("slow ones", lambda case: case.name == "slow", "they are slow"),
        Kind("others", lambda case: case.name == "other", "never said"),
    ]
    assert explain([FAST, SLOW, OTHER], kinds, 0.1) == [
        "slow ones: 1 more than 10% off (+30% to +30%); they are slow."
    ]


def test_rows_of_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "good.csv"
    path.write_text("name,tokens\nx,12\ny,3.5\n")
    rows = read_rows(path, ("name", "tokens"))
    assert [row["name"] for row in rows] == ["x", "y"]
    assert whole(rows[0], "tokens", "good.csv") == 12
    assert number(rows[1], "tokens", "good.csv") == 3.5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no column name, tokens"),
        (b"name\nx\n", "no column tokens"),
        (b"name,tokens\n", "no rows"),
        (b"name,tokens\nx,1\ny\n", "line 3.*cut short"),
        (b"name,tokens\n\xff\xfe,1\n", "not a CSV file"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message):
        read_rows(path, ("name", "tokens"))


def test_an_absent_file_is_no_error_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(AbsentError, match=r"none\.csv"):
        read_rows(tmp_path / "none.csv", ("a",))


@pytest.mark.parametrize("text", ["", "x", "nan", "inf", "-1"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(ScenarioError, match="line 7, tokens"):
        number({"tokens": text}, "tokens", "file.csv, line 7")


def test_words_and_whole_numbers() -> None:
    with pytest.raises(ScenarioError, match="must be one of a, b"):
        one_of({"k": "c"}, "k", "file", ("a", "b"))
    with pytest.raises(ScenarioError, match="must be a whole number"):
        whole({"k": "1.5"}, "k", "file")
    with pytest.raises(ScenarioError, match="1 or more"):
        whole({"k": "0"}, "k", "file")


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 5), st.floats(0, 5))
def test_a_fit_recovers_what_made_the_data(seed: int, first: float, second: float) -> None:
    draw = np.random.default_rng(seed)
    fixed, columns = draw.uniform(1, 5, 30), draw.uniform(0.5, 3, (30, 2))
    measured = fixed + columns @ [first, second]
    assert fit_relative(fixed, columns, measured) == pytest.approx([first, second], abs=1e-6)


def test_one_outlier_does_not_move_a_fit() -> None:
    draw = np.random.default_rng(0)
    fixed, columns = draw.uniform(1, 5, 40), draw.uniform(0.5, 3, (40, 1))
    measured = fixed + 2.0 * columns[:, 0]
    measured[7] *= 5
    assert fit_relative(fixed, columns, measured) == pytest.approx([2.0], rel=0.01)


def test_a_fit_never_goes_below_zero_and_needs_cases() -> None:
    fixed, columns = np.full(5, 2.0), np.ones((5, 1))
    assert fit_relative(fixed, columns, np.full(5, 1.0)) == pytest.approx([0.0])
    with pytest.raises(ScenarioError, match="cannot determine"):
        fit_relative(fixed[:1], np.ones((1, 2)), fixed[:1])


@given(st.integers(0, 50))
def test_halves_part_the_rows(count: int) -> None:
    seen, unseen = halves(count)
    assert sorted(seen + unseen) == list(range(count))
    assert 0 <= len(seen) - len(unseen) <= 1


# --- requests through a replica ---

COST = LinearCost(
    **{
        "iteration_s": 0.01,
        "per_rollout_s": 0.001,
        "per_context_token_s": 1e-6,
        "per_prefill_token_s": 1e-4,
        "train_per_token_s": 1e-5,
        "train_fixed_s": 0.0,
        "sync_s": 1.0,
    }
)


def one_by_one(requests: list[Request], engine: EngineSpec) -> list[tuple[float, float, bool]]:
    """Plain reference, one iteration and one request at a time, with KV to spare: first token, last
    token, and whether a chunk of prefill left exactly one token over."""
    now, order = 0.0, sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    waiting: list[int] = []
    running: list[int] = []
    computed = [0] * len(requests)
    made = [0] * len(requests)
    first, end = [0.0] * len(requests), [0.0] * len(requests)
    one_left = [False] * len(requests)
    while order or waiting or running:
        while order and requests[order[0]].arrival_s <= now:
            waiting.append(order.pop(0))
        if not waiting and not running:
            now = requests[order[0]].arrival_s
            continue
        budget, context, prefill, pairs, filling, filling_context = (
            engine.max_batched_tokens,
            0,
            0,
            0,
            0,
            0,
        )
        scheduled: list[int] = []
        while waiting and len(running) < engine.max_seqs:
            running.append(waiting.pop(0))
        for i in running:
            if made[i]:
                budget -= 1
                computed[i] += 1
                context += computed[i]
                scheduled.append(i)
        for i in running:
            if not made[i] and budget > 0:
                tokens = min(budget, requests[i].prompt_tokens - computed[i])
                pairs += tokens * computed[i] + tokens * (tokens + 1) // 2
                computed[i] += tokens
                one_left[i] |= computed[i] == requests[i].prompt_tokens - 1
                budget, prefill, filling = budget - tokens, prefill + tokens, filling + 1
                context, filling_context = context + computed[i], filling_context + computed[i]
                scheduled.append(i)
        work = Iteration(len(scheduled), context, prefill, pairs, filling, filling_context)
        now += (
            COST.mixed_iteration_s(work)
            if prefill
            else COST.decode_curve(len(scheduled)).seconds(context)
        )
        for i in scheduled:
            if computed[i] >= requests[i].prompt_tokens:
                made[i] += 1
                if made[i] == 1:
                    first[i] = now
                if made[i] == requests[i].new_tokens:
                    end[i] = now
                    running.remove(i)
    return list(zip(first, end, one_left, strict=True))


REQUESTS = st.lists(
    st.builds(
        Request,
        st.integers(1, 300),
        st.integers(1, 60),
        st.floats(0, 3).map(lambda s: round(s, 3) + 1e-4),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=examples(40), deadline=None)
@given(REQUESTS, st.integers(1, 6), st.integers(64, 200))
def test_arrivals_are_served_as_one_by_one(
    requests: list[Request], max_seqs: int, max_batched: int
) -> None:
    engine = EngineSpec(max_seqs, max_batched, kv_tokens=100_000, prefix_caching=False)
    expected = one_by_one(requests, engine)
    assume(not any(one_left for _, _, one_left in expected))  # priced as a decoded token
    for served, (first, end, _) in zip(serve(requests, engine, COST), expected, strict=True):
        assert served.first_token_s == pytest.approx(first, abs=1e-6)
        assert served.end_s == pytest.approx(end, abs=1e-6)


def test_no_requests_and_ones_that_never_fit() -> None:
    engine = EngineSpec(4, 64, kv_tokens=160)
    with pytest.raises(ScenarioError, match="there are none"):
        serve([], engine, COST)
    with pytest.raises(ScenarioError, match=r"engine\.kv_tokens"):
        serve([Request(100, 100)], engine, COST)


# --- the report ---


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
            tuple(mape_checks([FAST, SLOW], 0.2)),
            ("slow is slow",),
            {"one": {"model": "m"}},
        ),
        Source("b", "Bulk", "elsewhere", cases=(OTHER,), listed=False),
        Source("c", "Gone", "", skipped="gone.csv is not in the data folder"),
    ]


def test_the_report_lists_single_figures_and_sums_up_bulk(tmp_path: Path) -> None:
    written = verdict_files.write(sources(), tmp_path / "out")
    names = ["validation.md", "validation.json", "validation.png", "forecasts.md", "one.yaml"]
    assert [path.name for path in written] == names
    text = written[0].read_text()
    assert "**missed**" in text
    assert "| a: slow | 10 s | 13 s | +30.0% |" in text
    assert "gone.csv" in text
    assert "| b: other" not in text
    found = json.loads(written[1].read_text())
    assert [len(source["cases"]) for source in found["sources"]] == [2, 0, 0]
    assert written[2].read_bytes().startswith(b"\x89PNG")
    assert "## Other" in written[3].read_text()
    assert "| First: a | 25.0% | 2 | **far** |" in written[3].read_text()
    assert written[4].read_text() == "model: m\n"
    assert any("skipped" in line for line in verdict_files.summary_lines(sources()[2]))


@pytest.mark.parametrize(
    ("error", "word"),
    [(0.0, "near"), (-0.1, "near"), (0.1001, "fair"), (-0.2, "fair"), (0.21, "far")],
)
def test_the_page_says_how_near_a_kind_of_case_is(error: float, word: str) -> None:
    assert verdict(Check("x", error, signed=True)).strip("*") == word


def test_the_page_leaves_out_what_is_no_error_and_what_was_fitted() -> None:
    checks = (
        Check("far", 0.5, 0.2, 3),
        Check("near", 0.01, 0.2, 4),
        Check("held out, outside their 90 % interval", 0.1, 0.1),
        Check("bottlenecks misnamed", 0.0, 0.0),
        Check("fitted to half, H100", 0.02, 0.1),
    )
    text = page([Source("weight_updates", "Syncs, and more", "", checks=checks)])
    rows = [line for line in text.splitlines() if line.startswith("| Syncs")]
    assert rows == ["| Syncs: near | 1.0% | 4 | near |", "| Syncs: far | 50.0% | 3 | **far** |"]
    assert "## Weight sync" in text
    assert "## The engine" not in text
