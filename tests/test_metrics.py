"""The metrics of a run, against slow computations that share no code with them."""

import builtins
import json
import math
from collections import defaultdict
from statistics import mean
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast import load
from rollcast.simulator.core.rollout import Rollout, Segment, VersionTokens
from rollcast.simulator.core.spans import TRAINED, PhaseSpan, Run, StepRecord
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.results.metrics import censored_mean, summarise, underfilled_fraction
from rollcast.simulator.results.over_time import CAUSES, gpu_lanes, underfilled_intervals
from rollcast.simulator.results.text import interval
from rollcast.simulator.studies.simulate import simulate
from rollcast.simulator.testing.tables import TableCost, TableWorkload


def add_segment(
    run: Run,
    submitted_s: float,
    start_s: float,
    end_s: float,
    replica: int = 0,
    *,
    rollout: Rollout | None = None,
    step: int = 0,
    tokens: int = 1,
    finished: bool = True,
    prompt_tokens: int = 0,
) -> Rollout:
    """A segment by hand; the same rollout again is resumed."""
    rollout = rollout or Rollout(len(run.segments), 0)
    rollout.submitted_s = submitted_s
    segment = Segment(
        rollout.group,
        rollout.index,
        rollout.attempt,
        replica,
        prompt_tokens,
        (VersionTokens(step, tokens),),
        "stop" if finished else "aborted",
        start_s,
        end_s,
        reward=1.0 if finished else None,
    )
    run.segments.add(step, step, rollout, segment, rollout.add(segment))
    return rollout


@st.composite
def hand_made_runs(draw: st.DrawFn) -> Run:
    """A run on a grid of whole seconds from 3 to 23, without the laws that a real one obeys."""
    shape = ClusterShape(
        replicas=draw(st.integers(1, 3)),
        gpus_per_replica=draw(st.integers(1, 3)),
        trainer_gpus=draw(st.integers(1, 8)),
        colocated=draw(st.booleans()),
    )
    run = Run("hand-made", shape, start_s=3.0, end_s=23.0)
    instants = st.integers(3, 23)
    for _ in range(draw(st.integers(0, 8))):
        submitted, start, end = sorted(draw(st.tuples(instants, instants, instants)))
        add_segment(run, submitted, start, end, draw(st.integers(0, shape.replicas - 1)))
    kinds = ("train", "forward", "sync", "switch")
    for _ in range(draw(st.integers(0, 4))):
        start, end = sorted(draw(st.tuples(instants, instants)))
        kind = draw(st.sampled_from(kinds))
        track = "trainer" if kind in ("train", "forward") else "sync"
        run.phases.append(PhaseSpan(0, kind, track, start, end))
    cuts = sorted(draw(st.lists(instants, min_size=4, max_size=4)))
    for step, (start, end) in enumerate((cuts[:2], cuts[2:])):
        run.phases.append(PhaseSpan(step, "rollout", "rollout", start, end))
    return run


def real_run(policy: str = "", **shape: object) -> Run:
    """A small run of the simulated cluster, with preemption and resumed rollouts."""
    from rollcast.simulator.cluster.replica import EngineSpec
    from rollcast.simulator.cluster.simulated import SimulatedCluster
    from rollcast.simulator.core.plan import Batch, StepPlan
    from rollcast.simulator.core.policy import chain
    from rollcast.simulator.policies import parse_policy
    from tests.running import run

    workload = TableWorkload((8, 20), (1, 3, 5, 8, 13, 40, 64), (0.0, 1.0, 0.5), 64)
    cost = TableCost(
        per_rollout_s=0.125, phases=(("forward", 1, 0.5), ("backward", 2, 0)), sync_s=3
    )
    cluster = ClusterShape(**{"replicas": 2, "gpus_per_replica": 2, "trainer_gpus": 3, **shape})  # type: ignore[arg-type]
    world = SimulatedCluster(cluster, EngineSpec(4, 16, 128), cost, workload)
    return run(world, parse_policy(policy) if policy else chain(), StepPlan(Batch(4, 3)), 4)


REAL = {
    "synchronous": real_run("", colocated=True),
    "april": real_run("april(over_sampling=2)", colocated=True),
    "april_masked": real_run("april(over_sampling=2, mask_off_policy=True)", colocated=False),
    "one_step_off": real_run("one_step_off()", colocated=False),
    "wide_trainer": real_run("", colocated=True, trainer_gpus=7),
}


def naive_idle(run: Run) -> dict[str, float]:
    """GPU-seconds idle by cause, one GPU and one second at a time. Times must be whole."""
    shape, segments = run.shape, run.segments
    rows = list(zip(segments["replica"], segments["submitted_s"], segments["end_s"], strict=True))
    own = shape.replicas * shape.gpus_per_replica
    idle = dict.fromkeys((cause for cause in CAUSES if cause != "environment"), 0.0)
    for second in range(int(run.start_s), int(run.end_s)):
        t = second + 0.5
        busy = {int(replica) for replica, a, b in rows if a < t < b}
        now = {p.kind for p in run.phases if p.start_s < t < p.end_s}
        syncs, trains = bool(now & {"sync", "switch"}), bool(now & {"train", "forward"})
        for gpu in range(shape.gpus):
            rolls = gpu < own and gpu // shape.gpus_per_replica in busy
            is_trainer = gpu < shape.trainer_gpus if shape.colocated else gpu >= own
            if rolls or syncs or (trains and is_trainer):
                continue
            if gpu < own:
                cause = "stragglers" if busy else "trainer" if trains else "other"
            else:
                cause = "rollouts" if busy else "other"
            idle[cause] += 1
    return idle


@given(hand_made_runs())
def test_idle_gpus_and_what_they_wait_for(run: Run) -> None:
    summary = summarise(run)
    held_s = run.shape.gpus * 20
    expected = {cause: seconds / held_s for cause, seconds in naive_idle(run).items()}
    assert summary["bubble_by_cause"] == pytest.approx(expected)
    assert summary["bubble_fraction"] == pytest.approx(sum(expected.values()))


@given(hand_made_runs())
def test_gpu_lanes_cover_every_instant_once(run: Run) -> None:
    lanes = gpu_lanes(run)
    assert sum(lane.gpus for lane in lanes) == run.shape.gpus
    for lane in lanes:
        covers = [*lane.busy.values(), *lane.idle.values()]
        for t in np.arange(3.25, 23, 0.5):
            assert sum(bool(((c[:, 0] < t) & (t < c[:, 1])).any()) for c in covers) == 1


@given(hand_made_runs())
def test_underfilled_share_second_by_second(run: Run) -> None:
    rows = list(zip(*(run.segments[c] for c in ("replica", "start_s", "end_s")), strict=True))
    few, every = 0, 0
    for phase in run.phases:
        if phase.kind != "rollout":
            continue
        for replica in range(run.shape.replicas):
            instants = np.arange(phase.start_s + 0.5, phase.end_s)
            counts = [sum(r == replica and a < t < b for r, a, b in rows) for t in instants]
            peak = max(counts, default=0)
            few += sum(count < peak / 4 or peak == 0 for count in counts)
            every += len(counts)
    assert underfilled_fraction(run, underfilled_intervals(run)) == pytest.approx(
        few / every if every else 0
    )


def test_one_replica_is_never_idle_but_has_a_tail() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), start_s=0.0, end_s=10.0)
    for end in (2.0, 2.0, 2.0, 2.0, 10.0):
        add_segment(run, 0.0, 0.0, end)
    run.phases.append(PhaseSpan(0, "rollout", "rollout", 0.0, 10.0))
    assert summarise(run)["bubble_fraction"] == 0
    assert summarise(run)["underfilled_fraction"] == pytest.approx(0.8)


# Length bias


def naive_kaplan_meier(lengths: list[int], complete: list[bool]) -> float:
    """The survival curve token by token."""
    area, survival = 0.0, 1.0
    for token in range(max(lengths)):
        if token:
            at_risk = sum(length >= token for length in lengths)
            ended = sum(n == token and done for n, done in zip(lengths, complete, strict=True))
            survival *= 1 - ended / at_risk
        else:
            zeros = sum(n == 0 and done for n, done in zip(lengths, complete, strict=True))
            survival *= 1 - zeros / len(lengths)
        area += survival
    return area


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=12))
def test_censored_mean_is_the_area_under_kaplan_meier(sample: list[tuple[int, bool]]) -> None:
    lengths, complete = [n for n, _ in sample], [done for _, done in sample]
    assert censored_mean(lengths, complete) == pytest.approx(naive_kaplan_meier(lengths, complete))


def test_discarding_the_slow_shows_as_length_bias() -> None:
    """Rollouts of 1 to 10 tokens; those above 5 are cut there and thrown away."""
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=1.0)
    for length in range(1, 11):
        done = length <= 5
        rollout = add_segment(run, 0, 0, 1, tokens=min(length, 5), finished=done)
        if done:
            run.segments.settle(rollout, TRAINED, 0)
    # Survival falls from 1 by a tenth a token and is 0.5 at the cut.
    assert summarise(run)["length_bias"] == pytest.approx(3 / (1 + 0.9 + 0.8 + 0.7 + 0.6))


def test_resumed_rollouts_count_once_and_retries_do_not_move_the_reference() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True), end_s=1.0)
    resumed = add_segment(run, 0, 0, 1, tokens=3, finished=False, rollout=Rollout(7, 0))
    other = add_segment(run, 0, 0, 1, tokens=2, rollout=Rollout(7, 1))
    add_segment(run, 1, 1, 2, tokens=5, rollout=resumed, step=1)
    retried = add_segment(run, 0, 0, 1, tokens=90, rollout=Rollout(7, 1, attempt=1))
    for rollout in (resumed, other):
        run.segments.settle(rollout, TRAINED, 1)
    assert summarise(run)["length_bias"] == pytest.approx(1.0)
    assert retried.finished


# Whole runs


@pytest.mark.parametrize("name", REAL)
def test_summary_of_a_simulated_run(name: str) -> None:
    run = REAL[name]
    summary = summarise(run)
    segments = {column: run.segments[column] for column in run.segments.columns}
    assert summary["generated_tokens"] == segments["new_tokens"].sum()
    ends = ("trained_tokens", "masked_tokens", "dropped_tokens", "carried_tokens")
    assert summary["generated_tokens"] == sum(summary[end] for end in ends)
    assert summary["steps"] == 4
    start, stop = summary["steady_steps"]
    steady_s = summary["step_s"] * (stop - start)
    whole_s = summary["startup_s"] + steady_s + summary["drain_s"]
    assert whole_s == pytest.approx(summary["makespan_s"])
    assert summary["step_s_p50"] <= summary["step_s_p95"]
    assert summary["gpu_hours"] == pytest.approx(run.shape.gpus * run.makespan_s / 3600)
    assert 0 < summary["bubble_fraction"] < 1
    assert sum(summary["bubble_by_cause"].values()) == pytest.approx(summary["bubble_fraction"])
    assert summary["bubble_by_cause"]["other"] == pytest.approx(0, abs=1e-9)
    trained_s = sum(p.seconds for p in run.phases if p.track == "trainer")
    assert summary["train_s"] == pytest.approx(trained_s)
    rollout_s = sum(p.seconds for p in run.phases if p.kind == "rollout")
    expected = summary["generated_tokens"] / rollout_s
    assert summary["rollout_tokens_per_s"] == pytest.approx(expected)


@pytest.mark.parametrize("name", REAL)
def test_staleness_and_rewards_from_the_stays(name: str) -> None:
    """The summary takes staleness from the steps; the segments must tell the same."""
    run = REAL[name]
    summary = summarise(run)
    rows = list(
        zip(
            *(
                run.segments[c].tolist()
                for c in ("group", "index", "outcome", "trained_step", "version")
            ),
            *(run.segments[c].tolist() for c in ("new_tokens", "step", "finished", "reward")),
            strict=True,
        )
    )
    tokens: dict[str, int] = defaultdict(int)
    versions = defaultdict(set)
    carried, rewards = 0, []
    for group, index, outcome, trained_step, version, new, step, finished, reward in rows:
        if outcome != TRAINED:
            continue
        if new:
            tokens[str(trained_step - version)] += new
            versions[group, index].add(version)
        carried += new * (step < trained_step)
        if finished:
            rewards.append(reward)
    total = sum(tokens.values())
    assert summary["staleness"] == pytest.approx({age: n / total for age, n in tokens.items()})
    assert summary["staleness_mean"] == pytest.approx(
        sum(int(age) * n for age, n in tokens.items()) / total
    )
    assert summary["carried_token_share"] == pytest.approx(carried / total)
    counts = [len(of) for of in versions.values()]
    assert summary["versions_per_rollout_mean"] == pytest.approx(mean(counts))
    assert summary["versions_per_rollout_max"] == max(counts)
    assert summary["mean_reward"] == pytest.approx(mean(rewards))


def test_what_distinguishes_the_policies() -> None:
    summaries = {name: summarise(run) for name, run in REAL.items()}
    assert summaries["synchronous"]["length_bias"] == pytest.approx(1)
    assert summaries["synchronous"]["staleness"] == {"0": 1.0}
    assert summaries["synchronous"]["carried_token_share"] == 0
    assert summaries["april"]["carried_token_share"] > 0
    assert summaries["april"]["versions_per_rollout_max"] > 1
    assert summaries["april_masked"]["masked_tokens"] > 0
    assert summaries["one_step_off"]["bubble_by_cause"]["rollouts"] > 0
    assert summaries["one_step_off"]["staleness"]["1"] > 0
    assert summaries["wide_trainer"]["gpus"] == 7
    assert all(s["preemptions"] > 0 for s in summaries.values())


def test_straggler_rate_is_over_all_complete_groups() -> None:
    run = Run("hand-made", ClusterShape(1, 1, 1, True))
    for stragglers, complete in ((1, 4), (2, 2)):
        run.steps.append(StepRecord(0, 0.0, stragglers=stragglers, complete_groups=complete))
    assert summarise(run)["straggler_rate"] == 0.5


def test_a_run_without_steps_has_no_figures() -> None:
    summary = summarise(Run("hand-made", ClusterShape(2, 1, 2, True)))
    json.dumps(summary, allow_nan=False)
    assert summary["step_s"] is None
    assert summary["bubble_fraction"] == 0
    assert summary["mean_reward"] is None
    assert summary["staleness"] == {}


def test_figures_do_not_depend_on_how_python_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on, `sum` of floats compensates for rounding."""
    scenario = load("examples/dapo.yaml", "steps=4", "workload.max_new_tokens=2048")
    plain = simulate(scenario)
    kept = builtins.sum

    def exact(numbers: Any, /, start: Any = 0) -> Any:
        listed = list(numbers)
        floats = [start, *listed]
        if any(isinstance(number, float) for number in floats):
            return math.fsum(floats)
        return kept(listed, start)

    monkeypatch.setattr(builtins, "sum", exact)
    compensated = simulate(scenario)
    assert compensated.summary == plain.summary
    assert compensated.run.decisions == plain.run.decisions


def test_the_ends_of_an_interval_have_the_unit_of_its_higher_one() -> None:
    assert interval((31.2, 48.9)) == "31.2 to 48.9 s"
    assert interval((527.1, 4542.0)) == "8.8 to 75.7 min"
    assert interval((41.5, 700.0)) == "0.69 to 11.7 min"
    assert interval((3600.0, 18000.0)) == "1.00 to 5.00 h"
