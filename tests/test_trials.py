"""The limit on a whole rollout with its turns, and what of a run is nothing but timeouts."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, Dispatch, Placement, StepPlan
from rollcast.simulator.core.rollout import CALL_ENDS, ENDINGS, Key, Rollout, Segment
from rollcast.simulator.core.spans import Run
from rollcast.simulator.core.world import ClusterShape, Ended, Event, World
from rollcast.simulator.errors import RunError
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.results.metrics import run_summary
from rollcast.simulator.results.timeouts import timeout_summary, timeout_warnings
from rollcast.simulator.runs.drive import Parts, drive
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.testing.listed import InTurns, ListedWorkload
from rollcast.simulator.testing.strategies import Scenario, run_scenario, scenarios, with_turns
from rollcast.simulator.testing.tables import TableCost, TableTurns, TableWorkload
from rollcast.simulator.testing.watched import Watched
from rollcast.simulator.workload.recorded import RecordedWorkload
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec
from tests.laws import examples
from tests.test_turns import FREE, ROOMY, table

TRIAL = ENDINGS.index("trial_timeout")


class Stopwatch(Watched):
    """Measures how long each rollout has been in flight, and aborts by rollouts' names."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.flown_s: dict[tuple[int, int, int], float] = {}
        self.aborted_at: dict[tuple[int, int, int], float] = {}
        self.began_at: dict[tuple[int, int, int], float] = {}  # its last flight
        self.ended_at: dict[tuple[int, int, int], float] = {}
        self._since: dict[Key, tuple[float, tuple[int, int, int]]] = {}

    def submit(self, rollouts: Sequence[Rollout], placement: Placement = "router") -> None:
        for rollout in rollouts:
            self._since[rollout.key] = self.now_s, (*rollout.key, rollout.attempt)
        super().submit(rollouts, placement)

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        now_s = self.now_s
        segments = super().abort(keys, for_good)
        for segment in segments:
            since_s, name = self._since.pop(segment.key)
            flown_s = self.flown_s.get(name, 0.0)
            self.aborted_at[name] = flown_s + now_s - since_s
            self.began_at[name] = flown_s
            self.flown_s[name] = flown_s + max(segment.end_s - since_s, 0.0)
        return segments

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        for event in events:
            if isinstance(event, Ended) and event.segment.ending != "turn":
                since_s, name = self._since.pop(event.segment.key)
                flown_s = self.flown_s.get(name, 0.0) + event.segment.end_s - since_s
                self.flown_s[name] = self.ended_at[name] = flown_s
        return events


def late(run: Run) -> list[dict[str, Any]]:
    """The segments with which a rollout reached the limit."""
    rows = np.flatnonzero(run.segments["ending"] == TRIAL)
    return [{name: run.segments[name][row] for name in run.segments.columns} for row in rows]


@settings(max_examples=examples(80), deadline=None)
@given(with_turns(scenarios()), st.sampled_from([0.2, 0.75, 2.0, 7.0]))
def test_no_rollout_flies_for_longer_than_a_trial_may(scenario: Scenario, limit_s: float) -> None:
    """Every rollout that is over at the limit had flown for just so long, over all its flights, or
    reached it in the iteration in which it was suspended and is over once it is resumed; none that
    ended by itself had flown for longer; and each token is accounted for."""
    plans = tuple(replace(plan, failed="keep", filter=None) for plan in scenario.plans)
    limited = replace(scenario, plans=plans, trial_timeout_s=limit_s)
    watch = Stopwatch(limited.world())
    run = run_scenario(limited, watch)
    assert run.ledger.balance == 0
    for row in late(run):
        name = (int(row["group"]), int(row["index"]), int(row["attempt"]))
        least_s = max(limit_s, watch.began_at[name])
        assert watch.aborted_at[name] == pytest.approx(least_s, abs=1e-6)
        assert (row["finished"], row["reward"]) == (1, 0.0)
    for flown_s in watch.ended_at.values():
        assert flown_s <= limit_s + 1e-6
    unlimited = run_scenario(replace(limited, trial_timeout_s=None), limited.world())
    assert not late(unlimited)


def limited_run(
    workload: Any,
    limit_s: float | None,
    failed: Any = "keep",
    environment: EnvironmentSpec = UNLIMITED,
    policy: str = "sync",
    steps: int = 1,
    cost: TableCost = FREE,
    batch: Batch = Batch(4, 4),  # noqa: B008 - frozen
) -> Run:
    shape = ClusterShape(1, 1, 1, colocated=True)
    world = SimulatedCluster(shape, ROOMY, cost, workload, "session_affinity", environment)
    job = Parts(parse_policy(policy), StepPlan(batch, failed=failed), 0.0, limit_s)
    return drive(job, world, steps)


def test_a_rollout_that_waits_for_its_next_flight_is_not_ended_by_the_limit_of_its_last() -> None:
    """One of 15 flies at a time, for a token. The last groups are over when the batch is."""
    turns = TableTurns(counts=(1, 4))
    workload = TableWorkload((2,), (16,), (0.0,), max_new_tokens=40, turns=turns)
    budget: dict[str, Any] = {"budget_tokens": 1, "interrupt": "at_stop", "unfinished": "resume"}
    dispatch = Dispatch(window=0.25)
    plan = StepPlan(Batch(3, 3), failed="keep", dispatch=dispatch, take="completion", **budget)
    cost = replace(FREE, iteration_s=0.1, per_prefill_context_token_s=0.001)
    engine = EngineSpec(3, 3, kv_tokens=163, block_tokens=1)
    shape = ClusterShape(1, 1, 1, colocated=False)
    world = SimulatedCluster(shape, engine, cost, workload, "round_robin")
    run = drive(Parts(parse_policy("sync"), plan, 0.0, 10.0), world, 1)
    rows = zip(*(run.segments[name] for name in ("group", "index", "finished")), strict=True)
    over = {(group, index) for group, index, finished in rows if finished}
    assert over >= {(group, index) for group in (1, 2, 3, 4) for index in range(3)}
    assert run.ledger.balance == 0


def test_a_run_with_environments_takes_no_longer_than_its_limit() -> None:
    """Answers of 30, 100 and 7 s: what is left at 60 s ends there, its call closed."""
    workload = table(counts=(1, 5, 9), seconds=(30.0, 100.0, 7.0), observations=(3,))
    whole, found = limited_run(workload, None), limited_run(workload, 60.0)
    assert whole.makespan_s > 100
    assert found.makespan_s == pytest.approx(60.0, abs=1e-3)
    rows = late(found)
    assert 0 < len(rows) < 16
    assert {row["reward"] for row in rows} == {0.0}
    assert found.steps[0].trained_rollouts == 16
    ends = {CALL_ENDS[number] for number in found.calls["ended"].tolist()}
    assert ends == {"answered", "closed"}


def test_a_trial_ends_in_the_model_too_and_keeps_what_it_sampled() -> None:
    """Iterations of a second: at 5 s a rollout of 9 tokens has 5 of them."""
    cost = TableCost(1.0, phases=(("train", 0.0, 0.0),))
    workload = InTurns(ListedWorkload(((9, 3),)), 20)
    found = limited_run(workload, 5.0, cost=cost, batch=Batch(1, 2))
    [row] = late(found)
    assert (row["index"], row["total_tokens"], row["reward"]) == (0, 5, 0.0)
    assert found.ledger.trained_tokens == 5 + 3


def test_another_rollout_starts_where_one_ran_into_the_limit() -> None:
    """A second try of the same rollout takes other answers here; one that never fits ends the
    run in words."""
    workload = table(counts=(1, 4), seconds=(1.0, 9.0, 2.0), observations=(3,))
    found = limited_run(workload, 12.0, failed="restart", batch=Batch(2, 2))
    assert found.ledger.balance == 0
    if late(found):
        assert {row["outcome"] for row in late(found)} == {2}  # dropped
    assert found.steps[0].trained_rollouts == 4
    never = table(counts=(2,), seconds=(50.0,), observations=(3,))
    with pytest.raises(RunError, match="trial_timeout_s"):
        limited_run(never, 1.0, failed="restart")


def test_time_between_two_steps_is_no_part_of_a_trial() -> None:
    """APRIL suspends what is unfinished; the update of 500 s between does not count."""
    slow = TableCost(1e-6, phases=(("train", 500.0, 0.0),))
    workload = table(counts=(2, 6), seconds=(10.0,), observations=(3,))
    limits = {"cost": slow, "policy": "april(over_sampling=2)", "steps": 3}
    found = limited_run(workload, 200.0, **limits)
    assert found.segments["resumed"].any() or len(np.unique(found.calls["step"])) > 1
    assert not late(found)
    assert late(limited_run(workload, 25.0, **limits))


def test_flights_of_several_steps_add_up_to_a_trial() -> None:
    """One turn a step: each flight of a rollout is shorter than the limit, all together are not."""
    workload = table(counts=(6,), seconds=(10.0,), observations=(3,))
    shape = ClusterShape(1, 1, 1, colocated=True)
    watch = Stopwatch(SimulatedCluster(shape, ROOMY, FREE, workload, "session_affinity"))
    policy = parse_policy("token_budget(tokens=1000, turns=1, over_sampling=1)")
    run = drive(Parts(policy, StepPlan(Batch(2, 2)), 0.0, 25.0), watch, 3)
    rows = late(run)
    assert rows
    for row in rows:
        name = (int(row["group"]), int(row["index"]), int(row["attempt"]))
        assert watch.submitted[name] > 1
        assert watch.aborted_at[name] == pytest.approx(25.0, abs=1e-6)


def test_a_queue_before_the_first_token_is_part_of_a_trial() -> None:
    """One slot, boots of 10 s: the second rollout waits for 10 s, is suspended, and boots next."""
    found = limited_run(
        table(counts=(1,), boots=(10.0,), observations=(3,)),
        15.0,
        environment=EnvironmentSpec(1, "rollout", "keep", None),
        policy="april(over_sampling=2)",
        steps=2,
        batch=Batch(1, 1),
    )
    [row] = late(found)
    assert row["group"] == 1
    assert found.makespan_s == pytest.approx(15.0, abs=1e-3)


@pytest.mark.parametrize("spec", [UNLIMITED, EnvironmentSpec(3, "rollout", "keep", None)])
@pytest.mark.parametrize("policy", ["sync", "april(over_sampling=2)"])
def test_a_run_with_a_limit_is_replayed(spec: EnvironmentSpec, policy: str) -> None:
    """From its tables, under the same limit: the same course."""
    workload = table(counts=(5, 2, 9), seconds=(3.0, 10.0, 7.0), observations=(3,))
    found = limited_run(workload, 21.0, environment=spec, policy=policy, steps=3)
    assert late(found)
    recorded = RecordedWorkload(found.segments, 12, calls=found.calls, environments=spec)
    again = limited_run(recorded, 21.0, environment=spec, policy=policy, steps=3)
    assert again.decisions == found.decisions
    assert again.makespan_s == pytest.approx(found.makespan_s, rel=1e-6)
    for column in ("group", "index", "attempt", "turn", "ending", "new_tokens"):
        assert again.segments[column].tolist() == found.segments[column].tolist(), column


# What is nothing but timeouts


def test_time_that_is_nothing_but_timeouts() -> None:
    """Of 4 x 4 rollouts with answers of 2 s, some hang until 100 s: 94 to 98 % of the time."""
    endings = ("stop", "stop", "stop", "timeout")
    workload = table(counts=(3,), seconds=(2.0,), endings=endings)
    quick = limited_run(workload, None)
    assert timeout_summary(quick)["timeouts"]["share"] < 0.3
    calm = limited_run(table(counts=(3,), seconds=(2.0,)), None)
    assert timeout_summary(calm) == {}
    assert timeout_warnings({}) == []
    hanging = limited_run(_Hanging(workload, 100.0), None)
    figures = timeout_summary(hanging)["timeouts"]
    assert hanging.makespan_s == pytest.approx(104.0, rel=1e-3)
    assert figures["share"] == pytest.approx(98 / 104, rel=1e-3)
    assert figures["largest_step_share"] == pytest.approx(98 / 104, rel=1e-3)
    assert figures["calls"] == figures["carrying"] == 4
    assert figures["trials"] == 0
    [said] = timeout_warnings(timeout_summary(hanging))
    assert "94 % of the run's time and 94 % of one step is nothing but 4 timeouts" in said
    assert "4 at environment.timeout_s" in said
    summary = run_summary(hanging, "s", "sync", 0)
    assert summary["timeouts"] == figures
    assert said in summary["warnings"]


class _Hanging:
    """Another workload whose timeouts take so long."""

    def __init__(self, base: Any, seconds: float) -> None:
        self._base, self._seconds = base, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def draw(self, *arguments: Any, **more: Any) -> Any:
        drawn = self._base.draw(*arguments, **more)
        made = []
        for trajectory in drawn.trajectories:
            if trajectory.ending == "timeout":
                *first, last = trajectory.turns
                last = last._replace(environment_s=self._seconds)
                trajectory = replace(trajectory, turns=(*first, last))
            made.append(trajectory)
        return replace(drawn, trajectories=made)


def test_trials_at_their_limit_count_from_when_they_are_alone() -> None:
    workload = table(counts=(1, 1, 1, 9), seconds=(10.0,), observations=(3,))
    found = limited_run(workload, 60.0)
    figures = timeout_summary(found)["timeouts"]
    assert figures["calls"] == 0
    assert figures["trials"] == figures["carrying"] == len(late(found)) > 0
    assert figures["share"] == pytest.approx(1.0, abs=0.2)
    [said] = timeout_warnings(timeout_summary(found))
    assert "at environment.trial_timeout_s" in said


@settings(max_examples=examples(40), deadline=None)
@given(with_turns(scenarios()))
def test_the_share_of_timeouts_by_slow_counting(scenario: Scenario) -> None:
    """Instant by instant, in the middle between any two events."""
    run = run_scenario(scenario, scenario.world())
    found = timeout_summary(run)
    assume(found)
    calls = [*run.calls.rows()]
    columns = list(run.calls.columns)
    names = ("group", "index", "attempt")
    segments = [dict(zip(run.segments.columns, row, strict=True)) for row in run.segments.rows()]
    calls = [dict(zip(columns, row, strict=True)) for row in calls]
    given_up = {tuple(row[n] for n in names) for row in segments if row["ending"] == TRIAL}

    def hopeless(row: dict[str, Any], timed_out: bool) -> bool:
        return timed_out or tuple(row[n] for n in names) in given_up

    timeout = CALL_ENDS.index("timeout")
    under_way = [
        (row["start_s"], row["end_s"], hopeless(row, row["ended"] == timeout)) for row in calls
    ]
    under_way += [(row["start_s"], row["end_s"], hopeless(row, False)) for row in segments]
    under_way += [(p.start_s, p.end_s, False) for p in run.phases if p.kind != "rollout"]
    cuts = sorted({time for start, end, _ in under_way for time in (start, end)})
    alone = 0.0
    for left, right in pairwise(cuts):
        middle = (left + right) / 2
        here = [late_one for start, end, late_one in under_way if start < middle < end]
        alone += (right - left) * (bool(here) and all(here))
    share = alone / run.makespan_s if run.makespan_s else 0.0
    assert found["timeouts"]["share"] == pytest.approx(share, abs=1e-9)


# What users write

AGENT = yaml.safe_load("""
cluster: {placement: colocated, replicas: 1}
engine: {max_seqs: 64, kv_tokens: 400000}
workload:
  batch_groups: 4
  group_size: 4
  prompt_tokens: 100
  max_new_tokens: 256
  lengths: {mean_tokens: 60, sd: 0.5, runaway: 0.0}
  turns: {family: lognormal, median: 4, between_sd: 0.3, within_sd: 0.3, max_turns: 10,
    observation_tokens: 50}
cost: {linear: {iteration_s: 0.01, per_rollout_s: 1.0e-5, per_context_token_s: 1.0e-8,
  per_prefill_token_s: 1.0e-6, train_per_token_s: 1.0e-6}}
policy: sync
steps: 2
""")
HANGS = "{family: lognormal, median_s: 2, sd: 0.5, hang: 0.1}"


def agent(environment: str) -> RawScenario:
    return RawScenario({**AGENT, "environment": yaml.safe_load(environment)})


def test_a_scenario_says_how_long_a_trial_may_take() -> None:
    """Calls that hang need no limit of their own then, and the summary says what carries it."""
    scenario = from_raw(agent(f"{{turn_s: {HANGS}, trial_timeout_s: 120}}"))
    assert scenario.trial_timeout_s == 120.0
    result = simulate(scenario)
    summary = result.summary
    assert summary["turns"]["endings"]["trial_timeout"] == summary["timeouts"]["trials"] > 0
    assert summary["timeouts"]["calls"] == 0
    assert summary["step_s"] == pytest.approx(120, rel=0.05)
    assert any("timeouts carry the forecast" in text for text in summary["warnings"])
    short = simulate(from_raw(agent(f"{{turn_s: {HANGS}, timeout_s: 5, trial_timeout_s: 120}}")))
    assert short.summary["timeouts"]["calls"] > 0
    assert short.summary["step_s"] < 60
