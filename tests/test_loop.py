"""Laws of the loop, whatever the plans: nothing is lost, and every decision means what it says."""

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import (
    AllDone,
    Batch,
    EnoughGroups,
    Filter,
    Launch,
    Layout,
    Oracle,
    Progress,
    Staleness,
    StepPlan,
    Stop,
)
from rollcast.simulator.core.policy import chain
from rollcast.simulator.core.rollout import Key, Segment
from rollcast.simulator.core.spans import DROPPED, Run
from rollcast.simulator.core.world import (
    ClusterShape,
    Ended,
    Event,
    TrainBatch,
    Trained,
    TrainGroup,
    World,
)
from rollcast.simulator.errors import RunError
from rollcast.simulator.loop import Loop
from rollcast.simulator.loop.recorded import Entry, RecordedWorld, UnderWay, read_entry
from rollcast.simulator.policies import parse_policy
from rollcast.simulator.testing.strategies import Cycle, Scenario, run_scenario, scenarios
from rollcast.simulator.testing.tables import TableCost, TableWorkload
from rollcast.simulator.testing.watched import Watched
from tests.laws import examples
from tests.running import run

checked = settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Noted(Watched):
    """Keeps the whole batches that the trainer got."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.batches: list[TrainBatch] = []
        self.parts: list[TrainGroup] = []

    def train(self, batch: TrainBatch, layout: Layout) -> None:
        self.parts += batch.groups
        if batch.final:
            self.batches.append(replace(batch, groups=tuple(self.parts)))
            self.parts = []
        super().train(batch, layout)


def watched(scenario: Scenario) -> tuple[Run, Noted]:
    world = Noted(scenario.world())
    return run_scenario(scenario, world), world


@given(scenarios())
@checked
def test_time_passes_in_order(scenario: Scenario) -> None:
    result, _ = watched(scenario)
    assert [step.step for step in result.steps] == list(range(scenario.steps))
    end_s = 0.0
    for step in result.steps:
        assert step.rollout_start_s <= step.rollout_end_s
        if all(plan.sync_every == 1 for plan in scenario.plans):  # a sync waits for the replicas
            assert step.rollout_end_s <= step.end_s
        assert step.step_s == step.end_s - end_s
        end_s = step.end_s
    assert result.makespan_s == end_s
    segments = result.segments
    assert np.all(segments["submitted_s"] <= segments["start_s"])
    assert np.all(segments["start_s"] <= segments["end_s"])


@given(scenarios())
@checked
def test_what_is_trained_is_what_the_plan_chose(scenario: Scenario) -> None:
    result, world = watched(scenario)
    taught: set[tuple[int, int]] = set()
    for decision, batch, record in zip(result.decisions, world.batches, result.steps, strict=True):
        plan = scenario.plans[record.step % len(scenario.plans)]
        groups = [group.group for group in batch.groups]
        assert [group for group, _ in decision["selected"]] == groups
        sizes = {each.batch.group_size for each in scenario.plans}
        if len(sizes) == 1:
            assert len(groups) >= plan.batch.groups
            if plan.surplus != "train":
                assert len(groups) <= plan.batch.groups
        elif not plan.select:  # the batch keeps its number of rollouts, up to one group more
            assert record.trained_rollouts >= plan.batch.rollouts
            if plan.surplus != "train":
                assert record.trained_rollouts < plan.batch.rollouts + max(sizes)
        assert 0 < len(groups) == record.trained_groups
        for group in batch.groups:
            kept = [rollout.index for rollout in group.rollouts]
            assert kept == sorted(set(kept))
            if plan.select:
                assert len(kept) <= plan.select[0].keep
            for rollout in group.rollouts:
                assert rollout.finished
                assert rollout.key not in taught
                taught.add(rollout.key)
            if plan.advantages == "after_selection":
                assert group.baseline_rewards == tuple(r.reward for r in group.rollouts)
            else:
                assert len(group.baseline_rewards) >= len(kept)

        # Masking: the tokens that earlier versions made, if it is asked for.
        old = sum(
            part.tokens
            for group in batch.groups
            for rollout in group.rollouts
            for part in rollout.tokens_by_version
            if part.version < (batch.mask_before_version or 0)
        )
        assert (batch.mask_before_version is not None) == plan.staleness.mask_off_policy
        assert record.masked_tokens == (old if plan.staleness.mask_off_policy else 0)


def rows(result: Run, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(result.segments[name].tolist() for name in names), strict=True))


@given(scenarios())
@checked
def test_unfinished_work_is_treated_as_planned(scenario: Scenario) -> None:
    result, _ = watched(scenario)
    kinds = {plan.unfinished for plan in scenario.plans}
    segments = rows(result, "step", "group", "index", "attempt", "resumed", "outcome", "finished")
    stopped: dict[
        tuple[int, int, int], int
    ] = {}  # (group, index, attempt) -> step it was aborted in
    for step, group, index, attempt, resumed, outcome, finished in segments:
        key = (group, index, attempt)
        plan = scenario.plans[step % len(scenario.plans)]
        if resumed:  # kept rollouts within the step: it goes on after the weight sync
            assert stopped[key] < step + (plan.keeps_running or plan.budget_tokens is not None)
        if not finished:
            stopped[key] = step
            left = {g for g, _ in result.decisions[step]["unfinished"]}
            if plan.unfinished != "resume" and group in left:
                assert outcome == DROPPED
    if "resume" not in kinds:
        assert not any(result.segments["resumed"])
    if kinds == {"discard"}:
        assert not any(result.segments["attempt"]) or any(
            p.surplus == "restart" for p in scenario.plans
        )


@given(scenarios())
@checked
def test_rejected_and_surplus_groups_end_as_planned(scenario: Scenario) -> None:
    result, world = watched(scenario)
    outcomes: dict[int, set[int]] = defaultdict(set)  # of a group's tokens
    for group, outcome, tokens in rows(result, "group", "outcome", "new_tokens"):
        if tokens:
            outcomes[group].add(outcome)
    for decision, batch in zip(result.decisions, world.batches, strict=True):
        plan = scenario.plans[decision["step"] % len(scenario.plans)]
        for group in decision["rejected"]:
            assert outcomes[group] == {DROPPED}
        if plan.surplus == "drop":
            for group in decision["surplus"]:
                assert outcomes[group] == {DROPPED}
        if plan.surplus == "train":
            assert decision["surplus"] == []
        if all(p.filter is not None for p in scenario.plans):
            for group in batch.groups:
                if plan.advantages == "before_selection":
                    assert len(set(group.baseline_rewards)) > 1


@given(scenarios(), st.data())
@checked
def test_a_run_that_follows_its_record_goes_on_as_if_it_had_not_been_stopped(
    scenario: Scenario, data: st.DataObject
) -> None:
    assume(not any(plan.launch.run_ahead for plan in scenario.plans))
    # an oracle is no record: it asks the world, which stands at another place than the loop
    assume(not any(isinstance(plan.dispatch.predictor, Oracle) for plan in scenario.plans))
    whole, _ = watched(scenario)
    stop = data.draw(st.integers(0, scenario.steps))
    world, plan = scenario.world(), scenario.plans[0]
    under_way: list[object] = []

    def loop(entries: list[Entry]) -> Loop:
        record = RecordedWorld(entries, world, world.shape, world.name, under_way.append)
        return Loop(record, Cycle(scenario.plans), plan, poll_s=scenario.poll_s)

    entries: list[Entry] = []
    first = loop(entries)
    first.run(stop)
    assume(first.at_rest)  # the world goes on from where it stands
    saved = [json.loads(json.dumps(entry.to_plain())) for entry in entries]
    result = loop([read_entry(entry, "record") for entry in saved]).run(scenario.steps)
    assert under_way == ([UnderWay((), None, False)] if 0 < stop < scenario.steps else [])
    assert json.dumps(result.decisions) == json.dumps(whole.decisions)
    assert list(result.spans()) == list(whole.spans())
    assert result.ledger == whole.ledger
    for column in result.segments.columns:
        np.testing.assert_array_equal(result.segments[column], whole.segments[column], column)


# The empty chain is synchronous RL

SHAPE = ClusterShape(replicas=2, gpus_per_replica=1, trainer_gpus=2, colocated=True)
ENGINE = EngineSpec(max_seqs=4, max_batched_tokens=64, kv_tokens=4096, block_tokens=4)
WORKLOAD = TableWorkload((8, 5), (3, 9, 4, 7, 12), (0.0, 1.0, 1.0), 12)
PLAN = StepPlan(Batch(3, 2))


def fresh(workload: TableWorkload = WORKLOAD, shape: ClusterShape = SHAPE) -> SimulatedCluster:
    return SimulatedCluster(shape, ENGINE, TableCost(per_rollout_s=0.25), workload)


def test_the_empty_chain_is_synchronous() -> None:
    result = run(fresh(), chain(), PLAN, 4)
    assert result.decisions == run(fresh(), Cycle((PLAN,)), PLAN, 4).decisions
    for step, decision in enumerate(result.decisions):
        assert decision["launched"] == [3 * step, 3 * step + 1, 3 * step + 2]
        assert sorted(decision["complete"]) == decision["launched"]
        assert decision["unfinished"] == []
        assert decision["surplus"] == []
    for record in result.steps:
        assert set(record.staleness) == {0}
        assert record.trained_rollouts == 6
        assert record.resumed_tokens == record.dropped_tokens == 0
    assert result.ledger.carried_tokens == 0


# Each decision, once


@dataclass(frozen=True)
class Refuse:
    """A filter that keeps nothing."""

    def __call__(self, rewards: Sequence[float]) -> bool:
        return False


@pytest.mark.parametrize("when", ["short", "drained"])
@pytest.mark.parametrize("refill", ["none", "group", "rollout"])
def test_a_filter_that_accepts_nothing_ends_the_run_with_the_reason(when: Any, refill: Any) -> None:
    plan = replace(PLAN, filter=Filter(Refuse(), 1, when), launch=Launch(refill=refill))
    with pytest.raises(RunError, match=r"step 0 can never finish: the filter rejected"):
        run(fresh(), chain(), plan, 1)


# Worlds that misbehave


class Misbehaving(Noted):
    """A world with one fault."""

    def __init__(self, fault: str) -> None:
        super().__init__(fresh())
        self.fault = fault
        self.ended: list[Event] = []

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        stopped = super().abort(keys, for_good)
        return stopped[1:] if self.fault == "loses one at an abort" else stopped

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        if self.fault == "gives no reward":
            return [
                Ended(event.segment._replace(reward=None)) if isinstance(event, Ended) else event
                for event in events
            ]
        if self.fault == "loses a finish":
            return [event for event in events if not isinstance(event, Ended)]
        self.ended += [event for event in events if isinstance(event, Ended)]
        if self.fault == "finishes one during the update" and isinstance(events[0], Trained):
            return [self.ended[-1], *events]
        return events


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("loses one at an abort", "1 rollouts were lost at an abort"),
        ("gives no reward", "has no reward"),
        ("loses a finish", "no rollout, update or sync is under way"),
        ("finishes one during the update", "ended, but it is not in flight"),
    ],
)
def test_a_world_that_loses_something_ends_the_run(fault: str, said: str) -> None:
    plan = replace(
        PLAN,
        launch=Launch(over_sampling=2),
        stop=EnoughGroups(),
        unfinished="resume",
        staleness=Staleness(),
    )
    with pytest.raises(RunError, match=said):
        run(Misbehaving(fault), chain(), plan, 2)


# One rollout a group and two in flight for a batch of one: a long one is stopped and resumed.


def test_a_policy_may_stop_running_ahead() -> None:
    """The update that is under way is finished before on-policy rollouts begin."""
    from rollcast.simulator.core.policy import Policy
    from rollcast.simulator.scenario.file import read_scenario
    from rollcast.simulator.studies.simulate import from_raw

    class Every2nd(Policy):
        def plan(self, plan, state):  # type: ignore[no-untyped-def]
            return replace(plan, launch=replace(plan.launch, run_ahead=plan.step % 2))

    path = Path(__file__).parent.parent / "examples" / "one_step_off.yaml"
    scenario = from_raw(read_scenario(path))
    result = run(scenario.world(), Every2nd(), scenario.plan, 6)
    assert [record.step for record in result.steps] == list(range(6))
    for record in result.steps[::2]:
        assert set(record.staleness) == {0}
    assert result.ledger.balance == 0


# Rollouts that are kept running

APART = ClusterShape(replicas=2, gpus_per_replica=1, trainer_gpus=2, colocated=False)


def test_without_staleness_fully_async_is_synchronous() -> None:
    for shape in (SHAPE, APART):
        plain = run(fresh(shape=shape), chain(), PLAN, 4)
        found = run(fresh(shape=shape), parse_policy("fully_async(max_staleness=0)"), PLAN, 4)
        assert found.end_s == plain.end_s
        for ours, theirs in zip(found.decisions, plain.decisions, strict=True):
            assert ours["selected"] == sorted(theirs["selected"])  # the oldest first


def test_a_policy_may_stop_keeping_rollouts() -> None:
    """What was kept running is suspended, and resumed by whoever wants it."""
    policy = parse_policy("fully_async(max_staleness=2)")
    kept = policy.plan(PLAN, policy.init())
    away = replace(PLAN, stop=EnoughGroups(), unfinished="resume")
    for other in (PLAN, away, replace(away, launch=Launch(run_ahead=1))):
        result = run(fresh(shape=APART), Cycle((kept, other, kept, kept)), PLAN, 9)
        assert len(result.steps) == 9
        assert result.ledger.balance == 0


@pytest.mark.parametrize(
    ("stop", "launch", "sync_every"),
    [
        (EnoughGroups(), Launch(over_sampling=2.0, source="fresh"), 1),
        (AllDone(), Launch(over_sampling=3.0, rollouts=2.0, source="fresh", refill="rollout"), 1),
        (EnoughGroups(), Launch(over_sampling=1.5, source="fresh", refill="rollout"), 2),
    ],
)
def test_a_bound_that_waits_resumes_what_was_put_away_though_fresh_groups_are_asked_for(
    stop: Stop, launch: Launch, sync_every: int
) -> None:
    """Else it waited for ever for what nobody resumed, or launched fresh groups for ever."""
    plan = StepPlan(
        Batch(2, 2),
        launch=launch,
        stop=stop,
        interrupt="never" if launch.refill != "none" else "at_stop",
        unfinished="resume",
        staleness=Staleness(max_versions=2, exceeded="wait"),
        sync_every=sync_every,
    )
    before = replace(plan, launch=Launch(over_sampling=3.0), stop=EnoughGroups())
    workload = TableWorkload((4, 17, 9), (24, 1, 9, 3), (0.0, 1.0), 24)
    world = SimulatedCluster(ClusterShape(1, 1, 1, True), ENGINE, TableCost(1.0), workload)
    result = run(world, Cycle((before, plan)), plan, 6)
    assert len(result.steps) == 6
    assert result.ledger.balance == 0
    assert {record.trained_groups for record in result.steps} == {2}


def test_a_step_that_never_stops_says_so() -> None:
    """Its stop rule waits for an empty cluster, and its refill keeps the cluster full."""

    @dataclass(frozen=True)
    class Never:
        def __call__(self, progress: Progress) -> bool:
            return False

    plan = StepPlan(
        Batch(2, 2),
        launch=Launch(refill="group"),
        stop=Never(),
        staleness=Staleness(max_versions=10**6, exceeded="wait"),
    )
    with pytest.raises(RunError, match=r"step 0 never stops: \d+ groups are complete"):
        run(fresh(shape=APART), Cycle((plan,)), plan, 2)
