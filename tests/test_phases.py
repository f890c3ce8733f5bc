"""The phases of a step: what belongs to each, that they add up, and what bounds a step."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast import load
from rollcast.calibration.logs import columns
from rollcast.simulator.core.rollout import CALL_KINDS, Call
from rollcast.simulator.core.spans import PhaseSpan, Run, StepRecord
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.policies import POLICIES
from rollcast.simulator.results.metrics import by_phase, summarise
from rollcast.simulator.results.over_time import UNDERFILLED_BELOW
from rollcast.simulator.results.phases import (
    GRADES,
    OF_COLUMN,
    PHASES,
    SIDES,
    STEP_PHASES,
    bound_cell,
    bound_text,
    bounds,
    in_sum,
    phase_of,
)
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.testing import try_policy
from rollcast.simulator.testing.listed import InTurns, ListedWorkload
from rollcast.simulator.testing.tables import TableCost
from tests.conftest import Cli
from tests.refusals import ran
from tests.scenarios import TINY
from tests.test_metrics import REAL, add_segment, hand_made_runs
from tests.test_turns import simulate as in_turns

KINDS = ("log_prob", "reference", "train", "forward", "optimizer", "sync", "switch", "rest")


def of(summary: dict[str, Any], *names: str) -> list[float]:
    return [summary["phases"][name]["s"] for name in names]


# What belongs to a phase


def test_every_kind_and_every_column_belongs_to_one_phase() -> None:
    assert list(STEP_PHASES) == list(PHASES)
    for name, phase in STEP_PHASES.items():
        assert {phase_of(kind) for kind in phase.kinds} <= {name}
        assert {OF_COLUMN[column] for column in phase.columns} <= {name}
        assert phase.side is None or phase.side in SIDES
    assert [phase_of(kind) for kind in GRADES] == list(GRADES)
    assert phase_of("of a user's own cost model") == "update"
    assert set(OF_COLUMN) <= set(columns.STEPS.names)
    assert set(columns.PHASES) | {"rest_s"} == set(OF_COLUMN)


def test_the_docs_list_the_phases() -> None:
    rows = [f"| `{name}` | {phase.meaning} |" for name, phase in STEP_PHASES.items()]
    assert "\n".join(rows) in (Path(__file__).parent.parent / "docs/intervals.md").read_text()


# That they add up


@pytest.mark.parametrize("overlapped", [False, True])
def test_what_adds_up_to_a_step(overlapped: bool) -> None:
    left_out = set(PHASES) - set(in_sum(overlapped))
    assert left_out == {"tail", "generation" if overlapped else "wait"}


@st.composite
def stepped_runs(draw: st.DrawFn) -> Run:
    """A run by hand on whole seconds, with steps, more kinds of phases, and judges."""
    run = draw(hand_made_runs())
    instants = st.integers(3, 23)
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted(draw(st.tuples(instants, instants)))
        run.phases.append(PhaseSpan(0, draw(st.sampled_from(KINDS)), "trainer", start, end))
    rollout = add_segment(run, 3.0, 3.0, 3.0)
    for _ in range(draw(st.integers(0, 3))):
        start, end = sorted(draw(st.tuples(instants, instants)))
        kind = draw(st.sampled_from(CALL_KINDS))
        run.calls.add(0, rollout, Call(kind, 0, start, start, end, "answered"))
    ends = sorted(draw(st.lists(instants, min_size=0, max_size=3)))
    run.steps = [StepRecord(n, 0.0, end_s=end) for n, end in enumerate([*ends, 23])]
    return run


def naive(run: Run) -> tuple[list[dict[str, float]], bool]:
    """Seconds of each step by phase, one second at a time; whether rollouts overlap."""
    calls = list(zip(run.calls["kind"], run.calls["asked_s"], run.calls["end_s"], strict=True))
    segments = list(zip(run.segments["submitted_s"], run.segments["end_s"], strict=True))
    seconds = [dict.fromkeys(PHASES, 0.0) for _ in run.steps]
    rolled = overlap = 0
    for second in range(3, 23):
        t = second + 0.5
        step = next(record.step for record in run.steps if t < record.end_s)
        now = {phase_of(p.kind) for p in run.phases if p.start_s < t < p.end_s}
        worked = [name for name in PHASES if name in now - {"generation"}]
        kinds = {CALL_KINDS[kind] for kind, a, b in calls if a < t < b}
        sampling = any(a < t < b for a, b in segments) or "environment" in kinds
        judged = "generation" in now and not worked and "reward" in kinds and not sampling
        rolled += "generation" in now
        if worked:
            seconds[step][worked[0]] += 1
            overlap += "generation" in now
        elif judged:
            seconds[step]["reward"] += 1
        elif "generation" in now:
            seconds[step]["wait"] += 1
        else:
            seconds[step]["other"] += 1
        if "generation" in now and not judged:
            seconds[step]["generation"] += 1
    return seconds, overlap > 0.01 * rolled


@given(stepped_runs())
def test_phases_second_by_second(run: Run) -> None:
    found = by_phase(run)
    expected, overlapped = naive(run)
    assert found.overlapped == overlapped
    for name in PHASES:
        if name == "tail" or (name == "wait" and not overlapped):
            continue
        assert found.seconds[name] == pytest.approx([step[name] for step in expected]), name
    assert (found.seconds["tail"] <= found.seconds["generation"] + 1e-9).all()


def check_sums(run: Run) -> None:
    found = by_phase(run)
    total = sum(found.seconds[name] for name in in_sum(found.overlapped))
    assert total == pytest.approx([record.step_s for record in run.steps], rel=1e-9, abs=1e-9)
    assert all((seconds >= 0).all() for seconds in found.seconds.values())
    if not found.overlapped:
        assert not found.seconds["wait"].any()
        rollouts_s = [record.rollout_s for record in run.steps]
        made_s = found.seconds["generation"] + found.seconds["reward"]
        assert (made_s <= np.array(rollouts_s) + 1e-9).all()
        assert made_s.sum() == pytest.approx(sum(rollouts_s), rel=0.01)
    for name, of_record in (("sync", "sync_s"), ("switch", "switch_s")):
        spent = [getattr(record, of_record) for record in run.steps]
        assert found.seconds[name] == pytest.approx(spent)


@pytest.mark.parametrize("name", REAL)
def test_phases_of_real_runs_add_up(name: str) -> None:
    check_sums(REAL[name])


@pytest.mark.parametrize("policy", ["sync", *POLICIES])
def test_phases_add_up_under_every_policy(policy: str) -> None:
    lengths = [[3, 9, 4, 30], [5, 5, 12, 7], [2, 2, 2, 41]]
    spelt = {"pods": "pods(keep=2)", "sagc": "sagc(candidates=[2, 4], first=2)"}.get(policy, policy)
    check_sums(try_policy(spelt, lengths, steps=6, replicas=2, max_seqs=4).run)


@pytest.mark.parametrize("example", ["april", "agent", "one_step_off", "pods"])
def test_phases_of_examples(example: str) -> None:
    settings = ("steps=3", "workload.batch_groups=4")
    if example == "agent":
        settings = (*settings, "cluster.replicas=2", "workload.max_new_tokens=2000")
    result = simulate(load(f"examples/{example}.yaml", *settings))
    check_sums(result.run)
    summary = result.summary
    start, stop = summary["steady_steps"]
    total = sum(of(summary, *in_sum(summary["overlapped"])))
    assert total == pytest.approx(summary["step_s"])
    for name in PHASES:
        mean = by_phase(result.run).seconds[name][start:stop].mean()
        assert summary["phases"][name]["s"] == pytest.approx(mean)
        assert summary["phases"][name]["share"] == pytest.approx(mean / summary["step_s"])


def test_judges_after_the_last_rollout_are_of_rewards() -> None:
    """Two slots judge four rollouts, 20 s each: the last one ends 40 s after the last rollout."""
    settings = (
        *("workload.batch_groups=1", "workload.group_size=4", "steps=2", "cluster.replicas=1"),
        *("workload.max_new_tokens=64", "cluster.trainer_gpus=1", "reward={seconds: 20, slots: 2}"),
        "workload.lengths={family: lognormal, median_tokens: 999, between_sd: 0, within_sd: 0}",
    )
    result = simulate(load("examples/pods.yaml", "policy=sync", *settings))
    check_sums(result.run)
    assert of(result.summary, "reward") == pytest.approx([40])
    assert result.summary["bound_by"] == "reward"


def test_the_tail_is_that_of_the_replicas() -> None:
    """Of two replicas, one runs alone to the end, the other runs one of eight for 6 s of 10."""
    run = Run("hand-made", ClusterShape(2, 1, 2, True), start_s=0.0, end_s=14.0)
    add_segment(run, 0.0, 0.0, 10.0, replica=0)
    for end in (4.0,) * 7 + (10.0,):
        add_segment(run, 0.0, 0.0, end, replica=1)
    run.phases += [
        PhaseSpan(0, "rollout", "rollout", 0.0, 10.0),
        PhaseSpan(0, "train", "trainer", 10.0, 14.0),
    ]
    run.steps.append(StepRecord(0, 0.0, end_s=14.0, step_s=14.0))
    assert UNDERFILLED_BELOW == 0.25
    summary = summarise(run)
    assert of(summary, "generation", "tail", "update", "other") == pytest.approx([10, 3, 4, 0])
    assert summary["bound_by"] == "generation"


def test_what_remains_of_a_step_is_other() -> None:
    """A second before the rollouts, two after the update, and the rest that the trainer names."""
    run = Run("hand-made", ClusterShape(1, 1, 1, True), start_s=0.0, end_s=14.0)
    add_segment(run, 1.0, 1.0, 5.0)
    run.phases += [
        PhaseSpan(0, "rollout", "rollout", 1.0, 5.0),
        PhaseSpan(0, "forward", "trainer", 5.0, 9.0),
        PhaseSpan(0, "rest", "trainer", 9.0, 12.0),
    ]
    run.steps.append(StepRecord(0, 0.0, end_s=14.0, step_s=14.0))
    found = of(summarise(run), "generation", "update", "other")
    assert found == pytest.approx([4, 4, 6])


def test_for_how_long_replicas_wait() -> None:
    """One step off, where a replica takes 10 s and the trainer 30; then for environments."""
    trial = try_policy(
        "one_step_off", [[10]], batch_groups=1, group_size=1, train_s=30.0, sync_s=1.0, steps=9
    )
    summary = trial.summary
    assert summary["step_s"] == pytest.approx(31.0)
    assert of(summary, "generation", "wait", "update", "sync") == pytest.approx([10, 0, 30, 1])
    assert summary["replicas_wait_s"] == {"trainer": pytest.approx(20.0), "environment": 0.0}
    assert summary["bound_by"] == "trainer"
    workload = InTurns(ListedWorkload(((8,),)), 4, environment_s=50.0)
    cost = TableCost(1.0, phases=(("train", 8.0, 0.0),))
    away = summarise(in_turns(workload, cost=cost, steps=2))
    assert away["replicas_wait_s"] == {"trainer": 0.0, "environment": pytest.approx(50.0)}
    assert of(away, "generation")[0] > 50
    assert away["bound_by"] == "environment"


def test_the_last_iteration_of_what_is_interrupted_is_no_overlap() -> None:
    """Training begins 0.05 s before the last rollout of 10 s stops: they still take turns."""
    run = Run("hand-made", ClusterShape(1, 1, 1, False), start_s=0.0, end_s=14.0)
    add_segment(run, 0.0, 0.0, 10.05)
    run.phases += [
        PhaseSpan(0, "rollout", "rollout", 0.0, 10.05),
        PhaseSpan(0, "train", "trainer", 10.0, 14.0),
    ]
    run.steps.append(StepRecord(0, 0.0, end_s=14.0, step_s=14.0))
    assert not by_phase(run).overlapped
    assert of(summarise(run), "generation", "update", "wait") == pytest.approx([10, 4, 0])
    run.phases[1] = PhaseSpan(0, "train", "trainer", 9.0, 14.0)
    assert by_phase(run).overlapped
    assert of(summarise(run), "generation", "update", "wait") == pytest.approx([10.05, 5, 9])


def test_a_run_without_steps_has_no_phases() -> None:
    summary = summarise(Run("hand-made", ClusterShape(1, 1, 1, True)))
    assert summary["phases"] == {}
    assert summary["bound_by"] is None


# What bounds a step


@pytest.mark.parametrize(
    ("seconds", "away_s", "said"),
    [
        ({"generation": 9, "update": 4, "log_prob": 4}, 0, "generation"),
        ({"generation": 7, "update": 4, "log_prob": 4}, 0, "trainer"),
        ({"generation": 7, "tail": 99, "optimiser": 8}, 0, "trainer"),
        ({"generation": 7, "sync": 4, "switch": 4, "update": 7.5}, 0, "sync"),
        ({"generation": 7, "reward": 8}, 0, "reward"),
        ({"generation": 7, "other": 8}, 0, "other"),
        ({"generation": 9, "update": 4}, 5, "environment"),
        ({"generation": 9, "update": 6}, 5, "trainer"),
    ],
)
def test_the_longest_side_bounds_a_step_in_turns(seconds: Any, away_s: float, said: str) -> None:
    assert bounds(seconds, away_s=away_s) == said


@pytest.mark.parametrize(
    ("wait", "held_s", "said"),
    [(30, 0, "generation"), (30, 40, "trainer"), (5, 0, "trainer"), (30, None, "generation")],
)
def test_who_waits_for_whom_where_rollouts_overlap(wait: float, held_s: Any, said: str) -> None:
    seconds: Any = {"generation": 100, "wait": wait, "update": 99 - wait, "sync": 1}
    assert bounds(seconds, overlapped=True, held_s=held_s) == said


def test_many_at_once() -> None:
    seconds: Any = {"generation": np.array([9.0, 1.0]), "update": np.array([5.0, 5.0])}
    assert bounds(seconds).tolist() == ["generation", "trainer"]


@pytest.mark.parametrize("policy", ["sync", "one_step_off", "fully_async", "pipeline_rl"])
def test_what_bounds_a_step_is_what_it_follows(policy: str) -> None:
    """A cost scaled far up bounds the step, and then a step follows it, and not the other."""
    path, settings = "examples/one_step_off.yaml", ("steps=12", "workload.batch_groups=4")

    def ran(decode: float, update: float) -> dict[str, Any]:
        scaled = (f"cost.scale.decode={decode}", f"cost.scale.update={update}")
        return simulate(load(path, f"policy={policy}", *settings, *scaled)).summary

    for side, costs in (("generation", (1.0, 0.2)), ("trainer", (1.0, 40.0))):
        base = ran(*costs)
        assert base["bound_by"] == side
        follows = [
            np.log(ran(*(c * f for c, f in zip(costs, factors, strict=True)))["step_s"])
            - np.log(base["step_s"])
            for factors in ((1.1, 1.0), (1.0, 1.1))
        ]
        assert ("generation", "trainer")[int(np.argmax(follows))] == side


def test_weight_syncs_that_take_longest_bound_a_step() -> None:
    trial = try_policy("sync", [[5, 9]], batch_groups=1, group_size=2, train_s=4.0, sync_s=50.0)
    assert trial.summary["bound_by"] == "sync"


# What is told of them


@pytest.mark.parametrize(
    ("side", "shares", "tail_s", "text", "cell"),
    [
        (None, None, 0.0, "", None),
        ("sync", None, 6.0, "A step is bound by syncs and switches.", "sync"),
        (
            *("trainer", {"trainer": 0.93, "generation": 0.04, "reward": 0.03}, 0.0),
            *("A step is bound by the trainer in 93 % of draws.", "trainer\n93 %"),
        ),
        (
            *("generation", {"trainer": 0.6, "generation": 0.4}, 6.0),
            "A step is bound by the trainer in 60 % of draws, "
            "by generation, mostly its tail, in 40 %.",
            "generation\n40 %",
        ),
        (
            *("generation", {"generation": 1.0}, 4.0),
            *("A step is bound by generation in all draws.", "generation\n100 %"),
        ),
    ],
)
def test_what_bounds_a_step_in_words(
    side: str | None, shares: dict[str, float] | None, tail_s: float, text: str, cell: str | None
) -> None:
    phases = {"generation": {"s": 10.0}, "tail": {"s": tail_s}}
    values: dict[str, Any] = {"phases": phases, "bound_by": side, "bound_by_share": shares}
    assert bound_text(values) == text
    assert bound_cell(values) == cell


def test_every_output_tells_the_phases_of_summary_json(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison's files, its page and the terminal; a phase without time is left out."""
    monkeypatch.setenv("COLUMNS", "100")
    scenario, out = tmp_path / "tiny.yaml", tmp_path / "out"
    scenario.write_text(TINY)
    printed = ran(cli("compare", scenario, "--policy", "april", "--out", out, "--no-plot"))
    assert max(map(len, printed.splitlines())) <= 100
    rows = json.loads((out / "comparison.json").read_text())
    with (out / "comparison.csv").open() as file:
        flat = list(csv.DictReader(file))
    page = (out / "report.html").read_text()
    for row, cells in zip(rows, flat, strict=True):
        summary = json.loads((out / row["policy"] / "summary.json").read_text())
        assert bound_text(summary) in page or row["policy"] != "april"
        for key in ("phases", "overlapped", "bound_by", "bound_by_share"):
            assert row[key] == summary[key]
        assert list(row["phases"]) == list(PHASES)
        for name, phase in row["phases"].items():
            assert phase["low_s"] <= phase["s"] <= phase["high_s"]
            for end in ("s", "low_s", "high_s"):
                assert float(cells[f"phases_{name}_{end}"]) == phase[end]
            shown = f"{phase['s']:.3g}"
            ends = f"{phase['low_s']:.2g}-{phase['high_s']:.2g}"
            for told in (printed, page):
                assert (shown in told and ends in told) or phase["share"] < 5e-4
    assert "optimiser" not in printed.split("seconds of a step by phase")[1]
    printed = ran(cli("simulate", scenario, "--draws", 12))
    lines = [line for line in printed.splitlines() if "% of the step, " in line]
    assert [line.split()[1] for line in lines] == ["generation", "tail", "update", "sync"]
    assert sum(float(line.split("│")[3].split()[0]) for line in lines if "tail" not in line) == (
        pytest.approx(100, abs=0.2)
    )
    assert all("90 % interval" in line for line in lines)
    assert "A step is bound by generation in" in printed
