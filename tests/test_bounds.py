"""A bound on staleness is one: nothing older is trained on, nothing is lost, and runs go on."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast import load
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import AllDone, Batch, Launch, Staleness, StepPlan
from rollcast.simulator.core.policy import Policy
from rollcast.simulator.core.spans import DROPPED
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.selection import Due, due
from rollcast.simulator.policies import check_policy, parse_policy
from rollcast.simulator.results.metrics import run_summary
from rollcast.simulator.testing import Monitor, Trial, bound_holds, conserves, never_on_two_replicas
from rollcast.simulator.testing.listed import ListedWorkload
from rollcast.simulator.testing.strategies import Cycle, Scenario, clusters, run_scenario, scenarios
from rollcast.simulator.testing.trial import try_policy
from rollcast.simulator.testing.watched import Watched
from tests.laws import examples
from tests.running import run

checked = settings(
    max_examples=examples(80),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def trial(scenario: Scenario) -> Trial:
    """Of the scenario's plans, every call of the loop and every answer of the world checked."""
    block = scenario.engine.block_tokens if scenario.engine.prefix_caching else None
    # Who finds another's keys in the cache cannot be told apart where prompts begin alike.
    alike = scenario.workload.openings or scenario.workload.beginnings
    cap = scenario.workload.max_new_tokens
    seen = Watched(scenario.world()) if alike else Monitor(scenario.world(), cap, block)
    return Trial(Cycle(scenario.plans), run_scenario(scenario, seen), seen)


def segments_within(tried: Trial) -> None:
    """The bound of each step's plan, but for those that have none or AReaL's softer rule."""
    bounds = [decision["plan"]["staleness"] for decision in tried.decisions]
    if any(b["max_versions"] is not None and b["exceeded"] != "capacity" for b in bounds):
        bound_holds(tried)
    for record, bound in zip(tried.steps, bounds, strict=True):
        if bound["max_versions"] is not None and bound["exceeded"] != "capacity":
            assert max(record.staleness) <= math.ceil(bound["max_versions"])


@given(scenarios())
@checked
def test_whatever_the_plans_nothing_older_than_the_bound_is_trained_on(scenario: Scenario) -> None:
    tried = trial(scenario)
    conserves(tried)
    never_on_two_replicas(tried)
    segments_within(tried)
    assert len(tried.steps) == scenario.steps
    ledger = tried.run.ledger
    for name in ("generated_tokens", "trained_tokens", "masked_tokens", "dropped_tokens"):
        assert sum(getattr(step, name) for step in tried.steps) == getattr(ledger, name)


RUNNING_ON = (
    "fully_async(max_staleness={bound}, in_flight={flight}, exceeded={exceeded})",
    "fully_async(max_staleness={bound}, in_flight={flight}, exceeded={exceeded}, weights=keep)",
    "fully_async(max_staleness={bound}, in_flight={flight}, exceeded={exceeded})+dynamic_sampling",
    "fully_async(max_staleness={bound}, exceeded={exceeded}, sync_every={bound})",
    "fully_async(max_staleness={bound}, in_flight={flight}, exceeded={exceeded})"
    "+sagc(candidates=[2, 4], first=2, eta=2)",
)
ON_A_BOUND_THAT_IS_PLANNED = (
    "april(over_sampling=3)",
    "partial_rollout(in_flight={flight})",
    "april+one_step_off",
    "partial_rollout+one_step_off",
    "pipeline_rl(in_flight={flight}, queue=null)",
    "pipeline_rl",
    "one_step_off(steps={bound})",
    "streaming+april",
    "sorted_rl(mode=partial)",
    "token_budget(tokens=5)",
)


@st.composite
def bounded(draw: st.DrawFn) -> tuple[Scenario, Policy, StepPlan, int]:
    """Policies that keep rollouts over updates, under a bound of their own or of the plan's."""
    bound, flight = draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 5]))
    exceeded: Any = draw(st.sampled_from(["wait", "wait", "restart", "drop", "window"]))
    own = draw(st.booleans())
    text = draw(st.sampled_from(RUNNING_ON if own else ON_A_BOUND_THAT_IS_PLANNED))
    policy = parse_policy(text.format(bound=bound, flight=flight, exceeded=exceeded))
    batch = Batch(2, 4)
    plan = StepPlan(batch, staleness=Staleness() if own else Staleness(bound, exceeded))
    scenario = draw(clusters())
    shape = replace(scenario.shape, colocated=False, slots=8)
    return replace(scenario, shape=shape), policy, plan, draw(st.integers(3, 9))


@given(bounded())
@checked
def test_policies_keep_their_bound_and_go_on(case: tuple[Scenario, Policy, StepPlan, int]) -> None:
    scenario, policy, plan, steps = case
    seen = Watched(scenario.world())
    tried = Trial(policy, run(seen, policy, plan, steps), seen)
    assert len(tried.steps) == steps
    assert all(record.trained_groups >= 1 for record in tried.steps)
    conserves(tried)
    never_on_two_replicas(tried)
    segments_within(tried)
    planned = [decision["plan"] for decision in tried.decisions]
    alike = len({plan["batch"]["groups"] for plan in planned}) == 1
    if alike and planned[0]["staleness"]["exceeded"] == "wait":  # what is waited for is never late
        assert not any("too_old" in decision for decision in tried.decisions)


MIXED = ListedWorkload(((2, 2), (90, 3), (4, 2), (2, 31), (3, 3), (2, 60)), ((1.0, 0.0),))


def on(policy: str, steps: int = 14, **options: Any) -> Trial:
    return try_policy(
        policy,
        MIXED.lengths,
        batch_groups=2,
        group_size=2,
        steps=steps,
        replicas=2,
        train_s=options.pop("train_s", 3.0),
        **options,
    )


def oldest(tried: Trial) -> int:
    return max(max(record.staleness) for record in tried.steps)


@pytest.mark.parametrize("exceeded", ["wait", "restart", "drop", "window", "capacity"])
def test_what_would_be_too_old_is_waited_for_or_given_up(exceeded: str) -> None:
    tried = on(f"fully_async(max_staleness=2, in_flight=2, exceeded={exceeded})")
    conserves(tried)
    given_up = [group for decision in tried.decisions for group in decision.get("too_old", ())]
    segments = tried.rollouts
    if exceeded == "capacity":  # AReaL's rule: some of it is older all the same
        assert oldest(tried) > 2
        with pytest.raises(AssertionError, match="versions old; the bound is 2"):
            bound_holds(tried, max_versions=2)
    else:
        assert oldest(tried) == 2
        bound_holds(tried)
    warnings = run_summary(tried.run, "", "", 0)["warnings"]
    warned = [text for text in warnings if "exceeded the staleness bound of 2" in text]
    if exceeded in ("wait", "capacity"):
        assert not given_up
        assert not warned
        assert tried.run.ledger.dropped_tokens == 0
        return
    assert given_up
    [said] = warned
    assert said.startswith(f"{len(given_up)} groups (")
    assert ("were dropped" in said) == (exceeded in ("drop", "window"))
    assert "raise max_staleness" in said
    for group in given_up:
        first = (segments["group"] == group) & (segments["attempt"] == 0)
        assert set(segments["outcome"][first].tolist()) == {DROPPED}
        again = (segments["group"] == group) & (segments["attempt"] > 0)
        assert again.any() == (exceeded == "restart")


def test_a_window_limits_no_start_and_what_is_dropped_in_flight_goes_as_weights_come() -> None:
    window, drop = (
        on(
            f"fully_async(max_staleness=1, in_flight=4, exceeded={exceeded}, weights=keep)",
            train_s=0.5,
        )
        for exceeded in ("window", "drop")
    )
    started = [sum(record.launched_groups for record in tried.steps) for tried in (window, drop)]
    assert started[0] > 1.5 * started[1]
    for tried in (window, drop):
        synced = {phase.end_s for phase in tried.run.phases if phase.kind == "sync"}
        rows = tried.rollouts
        given_up = [group for decision in tried.decisions for group in decision.get("too_old", ())]
        halted = np.isin(rows["group"], given_up) & (rows["finished"] == 0)
        assert halted.any()
        assert set(rows["end_s"][halted].tolist()) <= synced


@pytest.mark.parametrize("weights", ["keep", "recompute"])
def test_new_weights_keep_the_kv_cache_or_not(weights: str) -> None:
    tried = on(f"fully_async(max_staleness=2, in_flight=2, weights={weights})")
    conserves(tried)
    assert max(tried.rollouts["versions"]) > 1
    assert (tried.run.ledger.reprefilled_tokens == 0) == (weights == "keep")


def test_complete_groups_that_are_too_old_are_not_trained_on() -> None:
    """They wait for the trainer, and a bound comes that they are beyond."""
    loose = replace(
        StepPlan(Batch(1, 1)), launch=Launch(over_sampling=4), stop=AllDone(), surplus="carry"
    )
    tight = replace(loose, launch=Launch(over_sampling=1), staleness=Staleness(0, "drop"))
    world = SimulatedCluster(*_world(((3,),)))
    seen = Watched(world)
    policy = Cycle((loose, tight, loose))
    tried = Trial(policy, run(seen, policy, loose, 3), seen)
    assert tried.decisions[1]["too_old"] == [1, 2, 3]
    assert [decision["selected"] for decision in tried.decisions[:2]] == [[[0, [0]]], [[4, [0]]]]
    assert tried.run.ledger.dropped_tokens == 9
    conserves(tried)


def _world(lengths: Any) -> tuple[Any, ...]:
    from rollcast.simulator.core.world import ClusterShape
    from rollcast.simulator.testing.conform import ODD, ROOMY

    return (
        ClusterShape(1, 1, 1, True),
        ROOMY,
        ODD,
        ListedWorkload(lengths, ((1.0,),)),
        "round_robin",
    )


# What contradicts a bound


@pytest.mark.parametrize("exceeded", ["restart", "drop", "wait", "capacity"])
def test_rare_syncs_and_running_ahead_beyond_a_bound_are_refused(exceeded: Any) -> None:
    bound = StepPlan(Batch(2, 2), staleness=Staleness(1, exceeded))
    replace(bound, sync_every=2).check()
    with pytest.raises(
        ScenarioError, match=r"up to 2 versions old, which exceeds the bound on staleness, 1"
    ):
        replace(bound, sync_every=3).check()
    check_policy(parse_policy("one_step_off"), bound)
    with pytest.raises(
        ScenarioError, match=r"up to 2 updates ahead .* exceeds the bound on staleness, 1"
    ):
        check_policy(parse_policy("one_step_off(steps=2)"), bound)
    with pytest.raises(ScenarioError, match="at least 0, not -1"):
        replace(bound, staleness=Staleness(-1, exceeded)).check()


# Deadlines


@given(
    st.lists(st.sampled_from([3, 4, 5, 6, math.inf]), max_size=9),
    st.lists(st.sampled_from([3, 4, 5, 6, math.inf]), max_size=9),
    st.integers(1, 4),
)
def test_what_is_due_is_the_least_that_keeps_every_deadline(
    ready: list[float], unready: list[float], batch: int
) -> None:
    found = due(ready, unready, 3, batch, batch)
    taken = [ready[i] for i in found.taken]
    assert len(set(found.taken)) == len(found.taken)
    everything = [*ready, *unready]
    fits = all(sum(e <= d for e in everything) <= batch * (d - 2) for d in (3, 4, 5, 6))
    # `missing` stands for the earliest of those that are not ready
    late = sorted(unready)[: found.missing]
    left = sorted(everything)
    for last in (*taken, *late):
        left.remove(last)
    kept = all(sum(e <= d for e in left) <= batch * (d - 3) for d in (3, 4, 5, 6))
    assert kept or not fits
    assert len(taken) + found.missing <= batch
    if not fits:
        return
    # none of them could be left out
    for position in found.taken:
        fewer = sorted([*left, ready[position]])
        assert not all(sum(e <= d for e in fewer) <= batch * (d - 3) for d in (3, 4, 5, 6)) or (
            len([*taken, *late]) > _least(everything, batch)
        )


def _least(everything: list[float], batch: int) -> int:
    return max(0, *(sum(e <= d for e in everything) - batch * (d - 3) for d in (3, 4, 5, 6)))


def test_those_that_are_wanted_first_are_taken_first_among_the_due() -> None:
    assert due([4, 3, 3, 4], [], 3, 1, 1) == Due([1], 0, -math.inf)
    assert due([3, 4, 4, 4], [], 3, 1, 3) == Due([0, 1, 2], 0, -math.inf)
    assert due([4, 4, math.inf], [], 3, 1, 2) == Due([0], 0, -math.inf)
    assert due([math.inf, 5], [4, 4], 3, 1, 2) == Due([], 1, 4)
    assert due([math.inf], [math.inf], 3, 1, 1) == Due([], 0, -math.inf)


def test_a_watched_world_is_read_no_sooner_than_its_driver_can() -> None:
    """slime reads responses through one client, here by far its slowest part."""
    slow = "cost.roofline.client_factor=50"
    short = (slow, "workload.lengths={mean_tokens: 60}", "workload.max_new_tokens=256", "steps=1")
    job = load("examples/april.yaml", "policy=[]", "cost.roofline.stack=slime", *short)
    alone, seen = job.world(), Watched(job.world())
    times = [run(world, job.policy, job.plan, 1).makespan_s for world in (alone, seen)]
    assert times[0] == times[1] > alone.read_s > times[0] / 2
