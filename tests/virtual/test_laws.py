"""Each law finds the control plane that breaks it, and lets the whole one pass."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator import virtual
from rollcast.simulator.report.timeline import states, timelines
from rollcast.simulator.results.intervals import total_s
from rollcast.simulator.results.lanes import timeline_of
from rollcast.simulator.results.metrics import summarise
from rollcast.simulator.results.over_time import gpu_lanes
from rollcast.simulator.results.perfetto import write_trace
from rollcast.simulator.results.timeline import draw_run
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies import sampling_error, short_runs
from rollcast.simulator.studies.simulate import load, simulate
from rollcast.simulator.studies.uncertainty import add_intervals, uncertainty
from rollcast.simulator.virtual import laws
from rollcast.simulator.virtual.control import run_control
from rollcast.simulator.virtual.faults import Fault
from rollcast.simulator.virtual.journal import Entry, Journal, golden
from rollcast.simulator.virtual.prompts import Reply
from rollcast.simulator.virtual.trial import Tried, keep, try_control
from tests.conftest import Cli
from tests.laws import examples
from tests.refusals import ran, refused
from tests.virtual import planes
from tests.virtual.planes import plane

EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = (
    "steps=30",
    "workload.batch_groups=4",
    "workload.group_size=2",
    "cluster.replicas=2",
    "cluster.trainer_gpus=2",
)
UNITS = 4 * 2


def scenario(*more: str) -> Scenario:
    return load(EXAMPLES / "fully_async.yaml", *SETTINGS, *more)


def tried(broken: str = "", **options: Any) -> Tried:
    options.setdefault("replies", lambda number, place, turn: Reply(200 + 37 * (number % 7), 1.0))
    return try_control(plane(broken), scenario(), virtual_s=1e5, **options)


LAWS: dict[str, Callable[[Tried], None]] = {
    "conserved": lambda run: laws.conserved(run.journal, patience_steps=10),
    "admission": lambda run: laws.admission_bounded(run.journal, 1, UNITS),
    "waiting": lambda run: laws.waiting_bounded(run.journal, 2 * UNITS),
    "age": lambda run: laws.age_bounded(run.journal, 2),
    "order": lambda run: laws.in_order(run.journal),
    "fair": lambda run: laws.fair(run.journal, 5),
    "trains": lambda run: laws.trains(run.journal, 500.0, steps=30, until_s=run.end_s),
    "starved": lambda run: laws.never_starved(run.run, 50.0),
    "throughput": lambda run: laws.throughput(run.run, tried().run, 0.8),
}
BROKEN = {
    "loses one": {"conserved": "2 of .* units are lost", "fair": "has waited"},
    "doubles one": {"conserved": "was trained at .* and again trained"},
    "ages one": {"age": "2 units were older than 2 versions", "fair": "waited", "order": "after"},
    "youngest first": {"order": "which was dispatched later"},
    "opens the gate": {"admission": "the bound is", "waiting": "units waited"},
    "sleeps": {"trains": "nothing was trained on from", "starved": "had no request for"},
    "starves one": {"starved": "replica 1 had no request for"},
    "one at a time": {"throughput": "tokens/s of the reference"},
}


def test_a_whole_control_plane_keeps_every_law() -> None:
    run = tried()
    assert len(run.run.steps) == 30
    for name in LAWS.keys() - {"order"}:
        LAWS[name](run)
    laws.recovers(run.journal, 100.0, run.end_s)


@pytest.mark.parametrize("broken", BROKEN)
def test_each_break_is_found(broken: str) -> None:
    run = tried(broken)
    for law, said in BROKEN[broken].items():
        with pytest.raises(AssertionError, match=said):
            LAWS[law](run)


MUTATIONS: dict[str, tuple[Callable[[list[Entry], int, int], list[Entry]], str, str]] = {
    "lose one": (lambda entries, at, end: entries[:at] + entries[at + 1 :], "conserved", "lost"),
    "double one": (
        lambda entries, at, end: [*entries[:end], entries[at], *entries[end:]],
        "conserved",
        "again trained",
    ),
    "age one": (
        lambda entries, at, end: [
            *entries[:at],
            replace(entries[at], more=(("step", entries[at].get("step")), ("version", -3))),
            *entries[at + 1 :],
        ],
        "age",
        "1 units were older than 2 versions",
    ),
    "starve one": (
        lambda entries, at, end: [*entries[:at], *entries[at + 1 :], entries[at]],
        "fair",
        "waited",
    ),
}


@given(st.sampled_from(sorted(MUTATIONS)), st.floats(0, 0.6), st.floats(0, 1))
def test_whichever_unit_is_lost_doubled_aged_or_starved_a_law_finds_it(
    mutation: str, which: float, later: float
) -> None:
    """In the first three fifths of a run: who is lost at its end may still be in flight."""
    journal = Journal(lambda: 0)
    entries = list(_whole().journal.entries)
    trained = [place for place, entry in enumerate(entries) if entry.what == "trained"]
    at = trained[int(which * len(trained))]
    end = at + 1 + int(later * (len(entries) - at - 1))
    mutate, law, said = MUTATIONS[mutation]
    journal.entries = mutate(entries, at, end)
    run = replace(_whole(), fleet=SimpleNamespace(journal=journal))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=said):
        LAWS[law](run)


@cache
def _whole() -> Tried:
    return tried()


def test_one_that_stops_is_a_deadlock() -> None:
    with pytest.raises(virtual.DeadlockError, match=r"planes\.py:\d+ in main: await arrived"):
        tried("stops")


def test_after_a_fault_training_goes_on_or_is_missed() -> None:
    faults = [Fault(20.0, "dies", 1, until_s=60.0), Fault(100.0, "errors", 0)]
    run = tried(faults=faults)
    LAWS["conserved"](run)
    laws.recovers(run.journal, 300.0, run.end_s)
    with pytest.raises(AssertionError, match="nothing was trained on within 1 s of the fault at"):
        laws.recovers(run.journal, 1.0, run.end_s)
    with pytest.raises(AssertionError, match="units are lost"):
        LAWS["conserved"](tried("forgets who is left after an error", error_share=0.02))


def test_of_a_journal_by_hand() -> None:
    tick = iter(range(0, 1 << 90, 1 << 80))
    journal = Journal(lambda: next(tick))
    journal.dispatched("a", 0)
    journal.dispatched("b", 0)
    journal.trained("a", 1)
    with pytest.raises(AssertionError, match=r"1 of 2 units are lost.*: b"):
        laws.conserved(journal, held=[])
    laws.conserved(journal, held=["b"])
    journal.evicted("b", "old")
    laws.conserved(journal, held=[])
    journal.failed("c")
    with pytest.raises(AssertionError, match="c was failed at 4 s, but never dispatched"):
        laws.conserved(journal)
    assert journal.text("trained") == "     2.000 trained a step=1\n"


def test_golden_timelines(tmp_path: Path) -> None:
    path = tmp_path / "plane.txt"
    golden(tried().journal, path, "train", "sync")
    assert path.read_text().splitlines()[0].endswith("train 0 rollouts=8")
    golden(tried().journal, path, "train", "sync")
    with pytest.raises(AssertionError, match=r"(?s)the timeline is another one.*\+ .*train"):
        golden(tried("sleeps").journal, path, "train", "sync")


def test_a_failing_run_leaves_its_picture_and_its_trace(tmp_path: Path) -> None:
    files = keep(tried().fleet, tmp_path / "failed")
    assert [path.name for path in files] == ["journal.txt", "trace.json.gz", "timeline.png"]
    assert all(path.stat().st_size > 100 for path in files)


@settings(max_examples=examples(24))
@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=9),
    st.lists(
        st.builds(
            Fault,
            st.floats(1.0, 200.0).map(round),
            st.sampled_from(["dies", "errors"]),
            st.integers(0, 1),
            st.just(1000.0),
        ),
        max_size=2,
    ),
    st.integers(0, 5),
)
def test_the_whole_one_keeps_the_laws_whatever_lengths_and_faults(
    lengths: list[int], faults: list[Fault], seed: int
) -> None:
    run = try_control(
        plane(),
        scenario("steps=6"),
        replies=lambda number, place, turn: Reply(lengths[(number + place) % len(lengths)]),
        faults=faults,
        seed=seed,
        virtual_s=1e6,
    )
    laws.conserved(run.journal)
    laws.admission_bounded(run.journal, 1, UNITS, slack=UNITS)


def test_a_seed_is_one_run() -> None:
    assert tried().journal.text() == tried().journal.text()
    assert tried(seed=3).journal.text() == tried(seed=3).journal.text()


def test_a_control_plane_stands_in_the_table_of_policies(cli: Cli, tmp_path: Path) -> None:
    options = ["--set", "workload.batch_groups=4", "--set", "steps=3", "--policy", "sync"]
    options += ["--set", "learning={prior: true, accuracy: 0.3, target: 0.5}"]
    base = [EXAMPLES / "april.yaml", *options, "--json", "--out", tmp_path / "out", "--no-plot"]
    out = ran(cli("compare", *base, "--control", "tests.virtual.planes:rollout"))
    import json

    rows = {row["policy"]: row for row in json.loads(out)}
    expected = simulate(
        load(EXAMPLES / "april.yaml", "workload.batch_groups=4", "steps=3", "policy=sync")
    )
    mine = rows["tests.virtual.planes:rollout"]
    assert mine["step_s"] == rows["sync"]["step_s"] == expected.summary["step_s"]
    assert mine["speedup_low"] < mine["speedup"] < mine["speedup_high"]
    assert mine["learning"]["hours"] == pytest.approx(rows["sync"]["learning"]["hours"])
    assert mine["learning"]["speedup"] == pytest.approx(1.0)
    assert (tmp_path / "out").exists()


def test_intervals_of_a_control_plane_come_from_its_one_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = load(EXAMPLES / "april.yaml", "workload.batch_groups=4", "steps=12", "policy=sync")
    policy = uncertainty(simulate(checked))
    for module in (short_runs, sampling_error):
        monkeypatch.setattr(module, "drive", None)  # no run is made
    result = run_control(checked, planes.rollout, "mine")
    mine = add_intervals(result)
    assert result.summary["intervals_from"] == "its own work"
    assert any("its code was not run again" in text for text in result.summary["warnings"])
    for figure, (low, high) in mine.intervals.items():
        assert low <= result.summary[figure] <= high
    for figure in ("step_s", "rollout_s", "train_s"):  # of the same steps, by other means
        spread, other = (one.draws[figure] for one in (mine, policy))
        assert 0.5 < np.std(np.log(spread)) / np.std(np.log(other)) < 2, figure
    assert {"lengths", "seeds"} <= set(mine.shares)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--control", "nothing"], "give module:function"),
        (["--control", "no_such_module:main"], "cannot import no_such_module"),
        (["--control", "tests.virtual.planes:missing"], "has no function missing"),
        (["--control", "tests.virtual.planes:plane"], "takes 0 parameters"),
        (["--control", "tests.virtual.planes:lazy"], "returned no groups in step 0"),
        (["--control", "tests.virtual.planes:breaks"], 'in breaks: raise OSError("no disk")'),
        (["--control", "tests.virtual.planes:forgets"], "is its await forgotten?); at "),
        (["--control", "tests.virtual.planes:plain"], "is no async function"),
        (["--control", "tests.virtual.planes:seven"], "returned 7 in step 0"),
        (["--control", "tests.virtual.planes:stuck"], "in stuck: await asyncio.Event().wait()"),
        (["--control", "tests.virtual.planes:lazy", "--draws", "10"], "leave it out"),
    ],
)
def test_bad_control_planes_are_told(cli: Cli, options: list[str], said: str) -> None:
    error = refused(cli("compare", EXAMPLES / "april.yaml", "--set", "steps=1", *options))
    assert said in error


def test_a_replica_that_died_is_down_in_the_picture_and_in_the_trace(tmp_path: Path) -> None:
    run = tried(faults=[Fault(20.0, "dies", 1, until_s=60.0), Fault(65.0, "dies", 0)]).run
    assert [(span.replica, span.start_s, span.end_s) for span in run.downs] == [
        (1, 20.0, 60.0),
        (0, 65.0, np.inf),
    ]
    for lane in gpu_lanes(run):
        spent = sum(total_s(when) for when in (*lane.busy.values(), *lane.idle.values()))
        down_s = {0: run.end_s - 65.0, 1: 40.0}.get(lane.replica, 0.0)
        assert spent == pytest.approx(run.makespan_s - down_s, abs=0.05)  # to the iteration's end
    shown = timeline_of(run, "run", summarise(run), bins=64, steps=30)
    for lane, share in zip(shown.lanes, (1 - 65.0 / run.end_s, 40.0 / run.end_s), strict=True):
        assert np.mean(lane.down) == pytest.approx(share)
        assert np.all(lane.rollout + lane.train + lane.sync + lane.down <= 1.01)
        assert states(lane).count("down") == pytest.approx(64 * share, abs=2)
    assert "replica down" in timelines([shown])
    write_trace(run, tmp_path / "trace.json")
    slices = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    downs = [(e["ts"], e["dur"]) for e in slices if e["name"] == "down"]
    assert sorted(downs)[0] == (20e6, 40e6)
    assert len(downs) == 2
    draw_run(run, tmp_path / "run.png", steps=30)
