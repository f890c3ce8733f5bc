"""Tables of documents: what the results say, and the results what the code gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import evidence
from benchmarks.claims import frontier, pods, prefix_reuse, sagc
from benchmarks.claims.common import Row

KEPT = {row.claim: row for section in evidence.read_sections().values() for row in section.rows}


@pytest.mark.parametrize("document", evidence.DOCUMENTS, ids=lambda path: str(path.name))
def test_tables_of_a_document_are_those_of_the_results(document: Path) -> None:
    text = document.read_text("utf-8")
    assert "<!-- table:" in text
    assert evidence.filled(text, document.name) == text


def test_the_page_is_that_of_the_results() -> None:
    sections = evidence.read_sections()
    assert tuple(sections) == evidence.PAPERS
    page = (evidence.RESULTS / "published.md").read_text("utf-8")
    assert evidence.page(list(sections.values())) == page


def sample() -> list[Row]:
    """Of every paper what takes no more than a second or two, forecasts of runs among them."""
    return [
        pods.memory_row(),
        *prefix_reuse.memory_rows(),
        *frontier.order_rows()[:1],
    ]


def test_a_sample_of_the_rows_is_what_the_code_gives() -> None:
    for row in sample():
        assert row == KEPT[row.claim]


def test_a_forecast_of_a_step_and_a_rate_is_what_the_code_gives() -> None:
    claim = "step, n = 16, m = 16, one L40S"
    assert KEPT[claim].forecast.startswith(f"{pods.step_s(16):.2f} s")
    preset, _ = sagc.SETTINGS["Qwen2.5-3B GRPO"]
    rate = f"{100 * sagc.drawn_rate(preset, 8):.1f} %"
    assert KEPT["straggler rate at G = 8, Qwen2.5-3B GRPO"].forecast == rate


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- table: nothing -->\n<!-- end of table -->", "no table 'nothing'"),
        ("<!-- table: published -->\n", "without <!-- end of table -->"),
    ],
)
def test_a_wrong_marker_is_named(text: str, problem: str) -> None:
    with pytest.raises(evidence.MarkerError, match=f"page.md: .*{problem}"):
        evidence.filled(text, "page.md")
