"""Tables of documents: what the results say, and the results what the code gives."""

from pathlib import Path

import pytest

from benchmarks import evidence, interval_quality, pearl, real_policies
from benchmarks.claims import april, frontier, pods, prefix_reuse, sagc
from benchmarks.claims.common import lognormal, percent
from benchmarks.measured import runs
from benchmarks.runner import RESULTS, read_json
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

KEPT = {row.claim: row for section in evidence.read_sections().values() for row in section.rows}


@pytest.mark.parametrize(
    "document",
    [one for one in evidence.DOCUMENTS if one.name != "gpus.md"],
    ids=lambda path: str(path.name),
)
def test_tables_of_a_document_are_those_of_the_results(document: Path) -> None:
    """That one is looked at where its rows are judged: test_gpu_cases."""
    text = document.read_text("utf-8")
    assert "<!-- table:" in text
    assert evidence.filled(text, document.name) == text


def test_every_table_is_in_a_document_and_every_paper_in_the_results() -> None:
    shown = "".join(document.read_text("utf-8") for document in evidence.DOCUMENTS)
    assert all(f"<!-- table: {name} -->" in shown for name in evidence.TABLES)
    sections = evidence.read_sections()
    assert list(sections) == list(evidence.papers())
    for paper, section in sections.items():
        kept = {key: getattr(section, key) for key in ("title", "source", "given", "misses")}
        assert kept == evidence.papers()[paper]
    page = (RESULTS / "published.md").read_text("utf-8")
    assert evidence.page(list(sections.values())) == page


def test_a_sample_of_the_rows_is_what_the_code_gives() -> None:
    """Of every paper but SAGC and APRIL what takes no more than a few seconds."""
    asynchronous = frontier.run_row("verl V1, separate_async over sync")
    for row in (asynchronous, pods.memory_row(), *prefix_reuse.memory_rows()):
        assert row == KEPT[row.claim]


def test_a_gain_a_step_and_a_rate_are_what_the_code_gives() -> None:
    claim = "rollout throughput, qwen3-4b, GRPO, mean 11,000 to 8,000 tokens"
    longest = april.gain("qwen3-4b", lognormal(april.lengths(11_000, 1_500)), [])
    assert KEPT[claim].forecast.startswith(f"{percent(longest)} to ")
    claim = "step, n = 16, m = 16, one L40S"
    assert KEPT[claim].forecast.startswith(f"{pods.step_s(16):.2f} s")
    preset, _ = sagc.SETTINGS["Qwen2.5-3B GRPO"]
    rate = f"{100 * sagc.drawn_rate(preset, 8):.1f} %"
    assert KEPT["straggler rate at G = 8, Qwen2.5-3B GRPO"].forecast == rate


def test_the_table_of_real_policies_is_that_of_the_committed_runs() -> None:
    kept = (RESULTS / "real_policies.md").read_text("utf-8").splitlines()
    folder = runs(real_policies.MEASURED)
    names = {name: real_policies.ENTRIES[name] for name in ("synchronous", "all together")}
    read = {
        n: [real_policies.read(folder / f"{e}-{i}") for i in range(3)] for n, e in names.items()
    }
    assert real_policies.table(read).splitlines() == [*kept[:3], kept[-1]]


def test_a_quick_interval_is_the_kept_one() -> None:
    name, example, settings, _ = interval_quality.CASES[2]
    (kept,) = (r for r in read_json(interval_quality.PATH, {})["rows"] if r["case"] == name)
    result = simulate(load(evidence.ROOT / "examples" / f"{example}.yaml", *settings))
    assert result.summary["step_s"] == pytest.approx(kept["point"], rel=1e-6)
    assert uncertainty(result).intervals["step_s"] == pytest.approx(kept["quick"], rel=1e-6)


def test_a_rollout_phase_of_pearls_set_up_is_the_kept_one() -> None:
    found = pearl.measured("qwen3-8b", 16, 4, 0.28)
    kept = read_json(pearl.KEPT, {})["rollouts, 0.28 s, qwen3-8b"]["16"]
    assert list(found) == pytest.approx(kept, rel=1e-6)


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
