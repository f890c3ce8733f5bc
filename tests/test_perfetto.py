"""Traces: valid, complete, and without overlaps on a thread."""

import gzip
import io
import json
import time
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from rollcast.simulator.core.spans import PhaseSpan, Run
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.results.over_time import context_over_time
from rollcast.simulator.results.perfetto import write_trace
from tests.test_metrics import REAL, add_segment, hand_made_runs


def trace(run: Run) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    file = io.StringIO()
    write_trace(run, file)
    return json.loads(file.getvalue(), parse_constant=refuse)["traceEvents"]


def names(events: list[dict[str, Any]]) -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}


def slices_of(events: list[dict[str, Any]], process: str) -> list[dict[str, Any]]:
    pids = names(events)
    return [e for e in events if e["ph"] == "X" and pids[e["pid"]] == process]


def assert_lawful(run: Run) -> None:
    events = trace(run)
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            threads[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert set(threads) <= named
    for replica in range(run.shape.replicas):
        assert_replica(run, events, replica)
    assert_flows(run, events)


def assert_replica(run: Run, events: list[dict[str, Any]], replica: int) -> None:
    """Every segment is there, on no more threads than needed, and the counter counts them."""
    segments = run.segments
    here = np.flatnonzero(segments["replica"] == replica)
    slices = slices_of(events, f"replica {replica}")
    expected = Counter(
        (
            f"g{segments['group'][row]}/{segments['index'][row]}",
            round(segments["start_s"][row] * 1e6, 3),
            int(segments["new_tokens"][row]),
            bool(segments["finished"][row]),
        )
        for row in here
    )
    found = Counter(
        (e["name"], round(e["ts"], 3), e["args"]["tokens"], e["args"]["finished"]) for e in slices
    )
    assert found == expected
    pid = next(pid for pid, name in names(events).items() if name == f"replica {replica}")
    counter = [
        (e["ts"], e["args"]["rollouts"])
        for e in events
        if (e["name"], e["pid"]) == ("running rollouts", pid)
    ]
    assert [ts for ts, _ in counter] == sorted({ts for ts, _ in counter})
    assert counter[-1][1] == 0
    for (ts, count), (after, _) in pairwise(counter):
        t = (ts + after) / 2
        assert sum(e["ts"] < t < e["ts"] + e["dur"] for e in slices) == count
    points = any(e["dur"] == 0 for e in slices)
    assert len({e["tid"] for e in slices}) <= max(count for _, count in counter) + points


def assert_flows(run: Run, events: list[dict[str, Any]]) -> None:
    """Each computed segment of an attempt at a rollout has an arrow to the next, and none else
    has."""
    flows: dict[int, dict[str, dict[str, Any]]] = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]]
            flows[event["id"]][event["ph"]] = event
    slices = [e for e in events if e["ph"] == "X" and e["dur"] > 0]

    def at(event: dict[str, Any]) -> dict[str, Any]:
        [found] = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (event["pid"], event["tid"])
            and e["ts"] <= event["ts"] + 1e-4 < e["ts"] + e["dur"]
        ]
        return found

    linked = Counter(
        (first["name"], first["args"]["attempt"], first["ts"], then["name"], then["ts"])
        for first, then in ((at(flow["s"]), at(flow["f"])) for flow in flows.values())
    )
    chains = defaultdict(list)
    for e in slices:
        if e["cat"] == "rollout" and "attempt" in e["args"]:
            chains[e["name"], e["args"]["attempt"]].append(e["ts"])
    assert linked == Counter(
        (name, attempt, a, name, b)
        for (name, attempt), starts in chains.items()
        for a, b in pairwise(sorted(starts))
    )


@pytest.mark.parametrize("name", REAL)
def test_trace_of_a_simulated_run(name: str) -> None:
    assert_lawful(REAL[name])


@given(hand_made_runs())
def test_trace_of_any_run(run: Run) -> None:
    assert_lawful(run)


def test_phases_and_steps_are_there() -> None:
    run = REAL["one_step_off"]
    events = trace(run)
    trainer = [(e["name"], e["args"]["step"]) for e in slices_of(events, "trainer")]
    assert trainer == [(p.kind, p.step) for p in run.phases if p.track == "trainer"]
    syncs = slices_of(events, "sync")
    assert [e["dur"] for e in syncs] == pytest.approx([3e6] * 4)
    steps = [e["name"] for e in slices_of(events, "steps")]
    assert sorted(steps) == ["rollout"] * 4 + [f"step {i}" for i in range(4)]
    marks = {e["name"]: e["ts"] for e in events if e["ph"] == "i"}
    assert list(marks.values()) == pytest.approx([r.end_s * 1e6 for r in run.steps])
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    pids = names(events)
    by_position = [pids[pid] for pid in sorted(order, key=order.__getitem__)]
    assert by_position == ["steps", "replica 0", "replica 1", "trainer", "sync"]


def test_args_tell_what_became_of_a_stay() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=9.0)
    rollout = add_segment(run, 1.0, 2.5, 4.0, tokens=7, finished=False)
    add_segment(run, 5.0, 5.0, 6.0, tokens=2, rollout=rollout, step=1)
    run.segments.settle(rollout, 1, 1)
    first, second = slices_of(trace(run), "replica 0")
    assert (first["ts"], first["dur"], first["args"]["queued_us"]) == (2.5e6, 1.5e6, 1.5e6)
    assert (first["args"]["reward"], second["args"]["reward"]) == (None, 1.0)
    assert (second["args"]["total_tokens"], second["args"]["versions"]) == (9, 2)
    assert {first["args"]["outcome"], second["args"]["outcome"]} == {"trained"}


def test_long_times_do_not_overlap_by_rounding() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True))
    ends = np.cumsum(np.full(2000, 1e6 / 3))
    for start, end in pairwise(ends):
        add_segment(run, start, start, end)
    run.phases += [PhaseSpan(0, "train", "trainer", a, b) for a, b in pairwise(ends)]
    spans = [(e["tid"], e["ts"], e["ts"] + e["dur"]) for e in slices_of(trace(run), "replica 0")]
    assert {tid for tid, _, _ in spans} == {0}
    assert {e["tid"] for e in slices_of(trace(run), "trainer")} == {0}


def test_a_resumed_rollout_is_followed_from_replica_to_replica() -> None:
    run = Run("hand-made", ClusterShape(2, 1, 1, True), end_s=9.0)
    rollout = add_segment(run, 1.0, 2.0, 4.0, tokens=7, finished=False)
    add_segment(run, 4.5, 5.0, 5.0, tokens=0, rollout=rollout, step=1)  # stopped before it began
    add_segment(run, 5.0, 6.0, 8.0, replica=1, tokens=2, rollout=rollout, step=2)
    add_segment(run, 5.0, 5.0, 6.0, tokens=2)  # another rollout
    leaves, enters = (e for e in trace(run) if e["ph"] in "sf")
    replicas = names(trace(run))
    assert (leaves["ph"], replicas[leaves["pid"]]) == ("s", "replica 0")
    assert (enters["ph"], enters["bp"], replicas[enters["pid"]]) == ("f", "e", "replica 1")
    assert leaves["id"] == enters["id"]
    assert 2e6 <= leaves["ts"] < 4e6
    assert enters["ts"] == 6e6


def test_context_tokens_grow_from_the_prompt_to_the_response() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=9.0)
    rollout = add_segment(run, 0.0, 1.0, 3.0, tokens=20, finished=False, prompt_tokens=50)
    add_segment(run, 3.0, 4.0, 8.0, tokens=40, rollout=rollout, prompt_tokens=50)
    times, tokens = context_over_time(run, 0)
    at = dict(zip(times.round(9).tolist(), tokens.tolist(), strict=True))
    assert {t: at[t] for t in (0.0, 1.0, 3.0, 4.0, 8.0)} == {0: 0, 1: 50, 3: 0, 4: 70, 8: 0}
    assert tokens[np.argmin(np.abs(times - 2.0))] == 60
    assert tokens[np.argmin(np.abs(times - 7.0))] == 100
    assert np.diff(times).max() <= 9.0 / 1000


def test_a_switch_is_not_a_weight_sync() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=9.0)
    for kind, track, at in (("switch", "sync", 1), ("train", "trainer", 2), ("sync", "sync", 3)):
        run.phases.append(PhaseSpan(0, kind, track, at, at + 1))
    events = trace(run)
    drawn = {kind: slices_of(events, kind) for kind in ("trainer", "sync", "switch")}
    shown = {kind: [(e["name"], e["cat"]) for e in found] for kind, found in drawn.items()}
    assert shown == {
        "trainer": [("train", "train")],
        "sync": [("sync", "sync")],
        "switch": [("switch", "switch")],
    }


def test_a_packed_trace_holds_the_same_and_has_the_same_bytes_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = REAL["april"]
    file = io.StringIO()
    write_trace(run, file)
    write_trace(run, tmp_path / "trace.json.gz")
    monkeypatch.setattr(time, "time", lambda: 2e9)
    write_trace(run, tmp_path / "again.json.gz")
    packed = (tmp_path / "trace.json.gz").read_bytes()
    assert gzip.decompress(packed).decode("utf-8") == file.getvalue()
    assert packed == (tmp_path / "again.json.gz").read_bytes()
    assert len(packed) < len(file.getvalue()) / 5


def test_a_run_without_anything() -> None:
    events = trace(Run("hand-made", ClusterShape(2, 1, 2, True)))
    assert not [e for e in events if e["ph"] == "X"]
