"""What stands on a page: the books balance, the picture is the run's, the page stays small."""

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from rollcast.simulator.report.assumptions import GIVEN, given, of_defaults, of_presets
from rollcast.simulator.report.comparison_page import comparison_page
from rollcast.simulator.report.ledger import USES, gpu_use, token_parts
from rollcast.simulator.report.plots import Axis, Point, Series, front, series
from rollcast.simulator.report.timeline import BINS, MOST_LANES, states, timeline_of, timelines
from rollcast.simulator.report.words import time_spent
from rollcast.simulator.results.intervals import total_s
from rollcast.simulator.results.over_time import gpu_lanes
from rollcast.simulator.results.scale import around, marks
from rollcast.simulator.scenario.file import parse_scenario
from rollcast.simulator.studies import ranking
from rollcast.simulator.studies.compare import run_each
from rollcast.simulator.studies.simulate import Result, from_raw, load, simulate
from tests.scenarios import TINY

pytestmark = pytest.mark.usefixtures("quick_intervals")

ROOT = Path(__file__).parent.parent
VOID = {"meta", "br", "path", "line", "circle", "rect", "link", "input", "wbr"}


class Balanced(HTMLParser):
    """Reads a page: every element is closed, and nothing is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        assert not {"src", "href", "onclick"} & {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Counter[str]:
    reader = Balanced()
    reader.feed(page)
    assert reader.open == []
    return reader.seen


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    scenario = from_raw(parse_scenario(TINY), "steps=24")
    return run_each([scenario.with_policy(p) for p in ("sync", "april", "pods(keep=2)")])


def test_a_comparison_is_one_page(results: dict[str, Result]) -> None:
    page = comparison_page(results, ranking.from_short_runs(results))
    seen = read(page)
    assert seen["script"] == 1
    assert seen["circle"] == 3
    assert page == comparison_page(results, ranking.from_short_runs(results))
    assert "rollcast compare scenario.yaml --policy sync --policy april" in page
    best = min(results, key=lambda name: results[name].summary["step_s"])
    assert re.search(rf'class="lead">{re.escape(best)} is the fastest of these', page)


def test_few_steps_and_one_policy_make_a_page(results: dict[str, Result]) -> None:
    alone = {"sync": results["sync"]}
    page = comparison_page(alone, None)
    assert "No intervals were asked for." in page
    assert read(page)["circle"] == 0


def test_a_label_is_reproduced_with_its_chain(results: dict[str, Result]) -> None:
    scenario = results["sync"].scenario
    labelled = run_each([scenario.with_policy("sync"), scenario.with_policy("mine = april")])
    page = comparison_page(labelled, None, draws=20)
    assert "--policy &#x27;mine = april&#x27; --draws 20" in page


def test_all_gpu_time_is_accounted_for(results: dict[str, Result]) -> None:
    for result in results.values():
        use = gpu_use(result.run)
        assert sum(use.values()) == pytest.approx(1.0)
        causes = result.summary["bubble_by_cause"]
        assert {cause: use[cause] for cause in causes} == pytest.approx(causes)


def test_idle_time_is_of_every_cause() -> None:
    use = {**dict.fromkeys((what for what, *_ in USES), 0.0), "rollout": 0.4, "environment": 0.5}
    said = time_spent({**use, "train": 0.04, "stragglers": 0.06})
    assert said == (
        "GPU time: 40.0 % rollouts, 4.0 % training, 56.0 % idle, mostly waiting for environments."
    )


def test_every_token_is_accounted_for(results: dict[str, Result]) -> None:
    for result in results.values():
        assert sum(part.share for part in token_parts(result.summary)) == pytest.approx(1.0)


def test_a_timeline_is_the_runs_own(results: dict[str, Result]) -> None:
    """Bins are counted against the very intervals that the bubble is computed from."""
    run = results["sync"].run
    steps = len(run.steps)
    drawn = timeline_of(run, "sync", results["sync"].summary, steps)
    assert len(drawn.held) == len(drawn.lanes) == run.shape.replicas
    bin_s = drawn.span_s / BINS
    for lane, gpus in zip(drawn.lanes, gpu_lanes(run), strict=True):
        kinds = Counter(states(lane))
        assert kinds["train"] * bin_s == pytest.approx(total_s(gpus.busy["train"]), abs=30 * bin_s)
        rolled = sum(kinds[kind] for kind in ("few", "some", "middle", "many", "most"))
        assert rolled * bin_s == pytest.approx(total_s(gpus.busy["rollout"]), abs=60 * bin_s)
    assert max(drawn.running) <= drawn.peak
    assert [step.number for step in drawn.steps] == list(range(steps))


def test_a_large_run_is_a_small_picture() -> None:
    """96 replicas for 20 steps: the page of it stays far below a megabyte."""
    scenario = from_raw(
        parse_scenario(TINY), "steps=20", "cluster.replicas=96", "workload.batch_groups=96"
    )
    found = run_each([scenario.with_policy("sync")])
    assert len(comparison_page(found, None).encode()) < 200_000
    drawn = timeline_of(found["sync"].run, "sync", found["sync"].summary, 20)
    assert len(drawn.lanes) == MOST_LANES
    assert len(timelines([drawn, drawn])) < 400_000


def test_a_trainer_apart_has_a_lane() -> None:
    scenario = from_raw(
        parse_scenario(TINY),
        "cluster.placement=disaggregated",
        "cluster.trainer_gpus=2",
        "policy=one_step_off",
    )
    result = simulate(scenario)
    drawn = timeline_of(result.run, "x", result.summary)
    assert drawn.held[-1].name == "trainer"
    assert {"train"} < set(states(drawn.held[-1])) <= {"train", "sync", "idle"}


def test_a_run_in_which_nothing_happened_has_no_timeline(results: dict[str, Result]) -> None:
    result = results["sync"]
    assert timeline_of(result.run, "x", result.summary, steps=0) is None
    assert timelines([None]) == ""


def test_what_no_other_beats_is_marked() -> None:
    points = [
        Point("a", 1, 3, "a"),
        Point("b", 2, 2, "b"),
        Point("c", 3, 3, "c", 2.5, 3.5),
        Point("d", 3, 1, "d", chosen=True),
    ]
    drawn = front(points, Axis("x", str), Axis("y", str))
    kinds = dict(re.findall(r'class="dot (\w+)"[^>]*data-tip="(\w)"', drawn))
    assert Counter(re.findall(r'class="dot (\w+)"', drawn)) == {"best": 2, "other": 1, "chosen": 1}
    assert kinds["other"] == "c"
    assert drawn.count('class="whisker"') == 1
    assert front([], Axis("x", str), Axis("y", str)) == ""


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 7), (13, 14), (1e-7, 3e-7), (0, 98765)])
def test_marks_are_round_and_inside(low: float, high: float) -> None:
    found = marks(low, high, 5)
    assert 2 <= len(found) <= 5
    assert all(low - 1e-9 * high <= mark <= high * (1 + 1e-9) for mark in found)
    steps = np.diff(found)
    assert np.allclose(steps, steps[0])
    assert float(f"{steps[0]:.0e}"[0]) in (1, 2, 5)


def test_an_axis_holds_its_values() -> None:
    assert marks(3.0, 3.0) == [3.0]
    for values in ([5.0], [0.0], [1.0, 100.0], [90.0, 100.0], [-3.0, 2.0]):
        low, high = around(values)
        assert low <= min(values) < max(values) + 1e-300 or low < high
        assert low < high
        assert high > max(values)
    assert around([1.0, 100.0])[0] == 0.0


def test_a_series_of_one_step_is_drawn() -> None:
    one = Series("a <b>", [(0, 2.0)], [0], [2.1], [1.9], [2.3])
    drawn = series([one])
    assert drawn.count('class="measured"') == 1
    assert "a &lt;b&gt;" in drawn
    assert "nan" not in drawn


def test_assumptions_have_kinds_and_sources() -> None:
    scenario = load(ROOT / "examples" / "april.yaml", "workload.lengths.within_sd=0.9")
    said = {row.key: row for row in given(scenario)}
    assert said["workload.lengths.within_sd"].kind == GIVEN
    assert said["workload.lengths.within_sd"].source == "--set workload.lengths.within_sd"
    assert said["workload.group_size"].source == "april.yaml"
    presets = {row.key: row for row in of_presets(scenario)}
    assert presets["gpu.usd_per_hour"].kind == "assumed"
    assert "workload.lengths.within_sd" not in presets
    assert presets["gpu.bandwidth_bytes_per_s"].kind == "datasheet"
    assert presets["workload.lengths.median_tokens"].value.startswith("4573 ± ")
    assert "qwen" in presets["model"].source.lower()
    defaults = {row.key: row for row in of_defaults(scenario)}
    assert defaults["cost.roofline.sync_fixed_s"].kind == "fitted"
    assert all(row.source for row in defaults.values())
    assert not defaults.keys() & said.keys()
