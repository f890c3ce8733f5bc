"""Pictures: drawn for every shape of cluster, alike for alike runs, and true to the metrics."""

import io
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from rollcast import load
from rollcast.simulator.core.spans import Run, StepRecord
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.results import timeline
from rollcast.simulator.results.intervals import merged
from rollcast.simulator.results.lanes import covered, mean_running
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.over_time import running_over_time
from rollcast.simulator.results.text import share
from rollcast.simulator.results.timeline import BINS, draw_comparison, draw_run
from rollcast.simulator.studies.compare import table
from rollcast.simulator.studies.simulate import simulate
from tests.laws import examples
from tests.test_metrics import REAL, add_segment, hand_made_runs, real_run

PNG = b"\x89PNG\r\n\x1a\n"
WIDE = "dynamic_sampling()+pods(keep=4)+prefix_reuse()+april(over_sampling=2.0)+and more of it"


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures drawn, kept before they are written."""
    kept: list[Figure] = []
    save = timeline.save

    def keep(figure: Figure, target: object) -> None:
        kept.append(figure)
        save(figure, target)  # type: ignore[arg-type]

    monkeypatch.setattr(timeline, "save", keep)
    return kept


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for t in (*figure.texts, *(t for a in figure.axes for t in a.texts))]


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts on the picture that touch, and texts that leave it."""
    figure.draw_without_rendering()  # at this figure's own resolution
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    found = [*figure.texts, *(t for legend in figure.legends for t in legend.get_texts())]
    for axes in figure.axes:
        found += [*axes.texts, axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
    boxes = [(t.get_text(), t.get_window_extent(renderer)) for t in found if t.get_text()]
    bad = [("outside", a) for a, box in boxes if box.x0 < 0 or box.x1 > figure.bbox.width]
    for i, (a, box) in enumerate(boxes):
        bad += [(a, b) for b, other in boxes[:i] if box.overlaps(other)]
    return bad


@pytest.mark.parametrize("name", REAL)
def test_one_run(name: str, figures: list[Figure]) -> None:
    file = io.BytesIO()
    draw_run(REAL[name], file)
    assert file.getvalue().startswith(PNG)
    assert overlapping(figures[0]) == []


@pytest.mark.parametrize("count", [1, 7])
def test_comparison_has_room_for_long_names(count: int, figures: list[Figure]) -> None:
    runs = [REAL["synchronous"], *REAL.values(), REAL["april"]]
    draw_comparison({f"{WIDE} {i}": runs[i] for i in range(count)}, io.BytesIO())
    assert overlapping(figures[0]) == []


def test_many_replicas(figures: list[Figure]) -> None:
    draw_run(real_run("", replicas=40, colocated=True), io.BytesIO(), "a $5_title^ {as it is}")
    assert overlapping(figures[0]) == []


def test_same_run_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        draw_run(REAL["april"], tmp_path / f"{name}.svg")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_settings_of_others_change_nothing_and_are_left_alone() -> None:
    plain, odd = io.BytesIO(), io.BytesIO()
    draw_comparison({"a": REAL["april"]}, plain)
    with matplotlib.rc_context({"font.size": 20, "figure.facecolor": "red"}):
        draw_comparison({"a": REAL["april"]}, odd)
        assert matplotlib.rcParams["font.size"] == 20
    assert plain.getvalue() == odd.getvalue()


def test_the_picture_leaves_clear_what_the_metrics_call_idle(figures: list[Figure]) -> None:
    run = REAL["wide_trainer"]
    draw_run(run, io.BytesIO(), steps=len(run.steps))
    image = next(a for a in figures[0].axes[0].get_children() if isinstance(a, AxesImage))
    alpha = np.asarray(image.get_array())[:3, :, 3].mean(axis=1)  # two replicas, the trainer
    idle = 1 - alpha @ np.array([2, 2, 3]) / 7
    assert idle == pytest.approx(summarise(run)["bubble_fraction"], abs=1e-9)


def test_the_comparison_writes_the_figures(figures: list[Figure]) -> None:
    sync, april = summarise(REAL["synchronous"]), summarise(REAL["april"])
    draw_comparison({"one": REAL["synchronous"], "two": REAL["april"]}, io.BytesIO())
    shown = texts(figures[0])
    assert f"{sync['step_s'] / april['step_s']:.2f}x" in shown
    assert share(april["bubble_fraction"]) in shown
    ends = [axes.get_xlim()[1] for axes in figures[0].axes]
    assert len(set(ends)) == 1


def test_a_speed_up_in_the_picture_is_that_of_the_table(figures: list[Figure]) -> None:
    """Per rollout taken in: a policy that doubles its groups doubles its batch."""
    scenario = load("examples/april.yaml", "steps=3", "workload.batch_groups=4")
    larger = load("examples/april.yaml", "steps=3", "workload.batch_groups=8")
    results = {
        "small": simulate(scenario.with_policy("sync")),
        "large": simulate(larger.with_policy("sync")),
    }
    draw_comparison({name: result.run for name, result in results.items()}, io.BytesIO())
    rows = table(results, None)
    assert rows[1]["speedup"] > 1 > rows[0]["step_s"] / rows[1]["step_s"]
    assert f"{rows[1]['speedup']:.2f}x" in texts(figures[0])


def test_long_runs_show_their_first_steps_and_say_so(figures: list[Figure]) -> None:
    draw_run(REAL["april"], io.BytesIO(), steps=2)
    draw_run(REAL["april"], io.BytesIO(), steps=99)
    assert any("first 2 of 4 steps" in text for text in texts(figures[0]))
    assert any("all 4 steps" in text for text in texts(figures[1]))
    end_s = [REAL["april"].steps[i].end_s for i in (1, 3)]
    assert [f.axes[0].get_xlim()[1] for f in figures] == pytest.approx(end_s)


def test_what_cannot_be_drawn() -> None:
    empty = Run("hand-made", ClusterShape(1, 1, 1, True))
    with pytest.raises(ValueError, match="complete step"):
        draw_run(empty, io.BytesIO())
    with pytest.raises(ValueError, match="no time passed"):
        draw_run(Run("hand-made", ClusterShape(1, 1, 1, True), steps=[StepRecord(0, 0)]), "x.png")
    with pytest.raises(ValueError, match="no run"):
        draw_comparison({}, io.BytesIO())
    with pytest.raises(ValueError, match="at least 1"):
        draw_run(REAL["april"], io.BytesIO(), steps=0)


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 4)), max_size=8))
def test_cover_of_bins(spans: list[tuple[float, float]]) -> None:
    edges = np.linspace(0, 10, 17)
    intervals = merged([a for a, _ in spans], [a + n for a, n in spans])
    expected = [
        sum(max(0.0, min(b, right) - max(a, left)) for a, b in intervals) / (right - left)
        for left, right in pairwise(edges)
    ]
    assert covered(intervals, edges) == pytest.approx(expected, abs=1e-9)


@settings(max_examples=examples(30))
@given(hand_made_runs())
def test_mean_running_keeps_the_area(run: Run) -> None:
    edges = np.linspace(run.start_s, run.end_s, BINS + 1)
    area = mean_running(running_over_time(run), edges).sum() * (edges[1] - edges[0])
    seconds = (run.segments["end_s"] - run.segments["start_s"]).sum()
    assert area == pytest.approx(seconds, abs=1e-6)


def test_one_rollout_one_replica() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=2.0)
    add_segment(run, 0, 0, 1)
    run.steps.append(StepRecord(0, 0.0, end_s=2.0, step_s=2.0))
    file = io.BytesIO()
    draw_run(run, file)
    draw_comparison({"only": run}, file)
    assert file.getvalue().count(PNG) == 2


def test_importing_costs_no_matplotlib() -> None:
    code = (
        "import sys, rollcast.simulator.results.timeline, rollcast.simulator.results.perfetto;"
        "import rollcast.simulator.results.metrics;"
        "assert not {'matplotlib', 'pandas', 'scipy', 'simpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
