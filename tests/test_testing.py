"""The laws of `simulator.testing` complain, each in its sentence, of what is broken on purpose."""

import importlib
import re
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import EnoughGroups, Filter, StepPlan
from rollcast.simulator.core.policy import Policy, StepOutcome
from rollcast.simulator.core.rollout import Key, Segment, VersionTokens
from rollcast.simulator.core.world import ClusterShape, Ended, Event, World
from rollcast.simulator.errors import RunError, ScenarioError
from rollcast.simulator.policies import APRIL, POLICIES
from rollcast.simulator.testing import (
    ListedWorkload,
    Monitor,
    Trial,
    Watched,
    bound_holds,
    check_policy_conforms,
    conserves,
    never_on_two_replicas,
    same_again,
    same_decisions,
    try_on,
    try_policy,
)
from rollcast.simulator.testing import strategies as drawn
from rollcast.simulator.testing.conform import CASES, PLAIN, Case
from tests.laws import SEARCHING, examples

LENGTHS = [[3, 9, 4], [5, 5, 12], [1, 2, 30]]


def tried(policy: str | Policy = "april", **options: Any) -> Trial:
    return try_policy(policy, LENGTHS, **{"group_size": 3} | options)


# Trying


def test_by_hand() -> None:
    """An iteration a token, an update of 4 and a sync of 1: two groups, the longest 9 and 12, then
    30 and 9."""
    trial = try_policy("sync", LENGTHS, group_size=3, steps=2)
    assert [step.rollout_s for step in trial.steps] == [12, 30]
    assert trial.makespan_s == 12 + 5 + 30 + 5
    assert sorted(trial.rollouts["new_tokens"]) == sorted([3, 9, 4, 5, 5, 12, 1, 2, 30, 3, 9, 4])
    assert trial.decisions[1]["selected"] == [[3, [0, 1, 2]], [2, [0, 1, 2]]]
    assert [step.mean_reward for step in trial.steps] == [2 / 3, 2 / 3]
    assert trial.summary["trained_tokens"] == trial.rollouts["new_tokens"].sum()
    assert not trial.rollouts["truncated"].any()


@pytest.mark.parametrize("policy", [APRIL, APRIL(), "april"])
def test_a_policy_is_a_class_an_object_or_a_spelling(policy: Any) -> None:
    same_decisions(tried(policy), tried("april(over_sampling=2)"))
    with pytest.raises(TypeError, match="an object, a class or a spelling, not 3"):
        tried(3)  # type: ignore[arg-type]


def test_lengths_may_be_drawn() -> None:
    family = {"family": "lognormal", "median_tokens": 300, "between_sd": 0.5, "within_sd": 0.7}
    one, other = (try_policy("april", family, steps=2, seed=seed) for seed in (0, 1))
    conserves(one)
    assert 100 < np.median(one.rollouts["total_tokens"]) < 900
    with pytest.raises(AssertionError, match=r"^step 0 decided differently"):
        same_decisions(one, other)
    constant = {"family": "constant", "value": 0.25}
    assert try_policy("sync", family, rewards=constant, steps=1).steps[0].mean_reward == 0.25
    assert len(try_policy("sync", {"preset": "deepseek-r1-distill-qwen-7b"}, steps=1).rollouts) == 8


def test_the_cluster_is_given_simply() -> None:
    alone = tried("sync")
    assert tried("sync", train_s=40.0).makespan_s == alone.makespan_s + 5 * 36
    assert tried("sync", iteration_s=2.0, train_s=8.0, sync_s=2.0).makespan_s == (
        2 * alone.makespan_s
    )
    assert tried("sync", max_seqs=1).makespan_s > alone.makespan_s
    assert tried("sync", kv_tokens=48).makespan_s > alone.makespan_s
    assert set(tried("sync", replicas=3).rollouts["replica"].tolist()) == {0, 1, 2}
    assert not tried("one_step_off").run.shape.colocated
    assert tried("sync", cost=PLAIN).makespan_s == alone.makespan_s


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": []}, "lengths: must have at least one group"),
        ({"lengths": [[3], []]}, "lengths: must have at least one group, and each at least one"),
        ({"lengths": [3, 4]}, "lengths: must be a list for each group, such as"),
        ({"lengths": [[0]]}, "lengths: a response has at least 1 token"),
        ({"lengths": [[1.5]]}, "lengths: must be whole tokens"),
        ({"rewards": {"family": "constant"}}, "rewards: listed lengths go with listed rewards"),
        ({"prompt_tokens": 0}, "prompt_tokens: a prompt has at least 1 token"),
        ({"max_new_tokens": 0}, "max_new_tokens: must be at least 1"),
        ({"policy": "one_step_off", "apart": False}, "apart: one_step_off overlaps training"),
        ({"replicas": 0}, "replicas: must be at least 1"),
        ({"steps": 0}, "steps: must be at least 1"),
        ({"lengths": {"family": "constant"}}, "workload.lengths.family"),
    ],
)
def test_what_contradicts_itself_is_said(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError, match=f"^{re.escape(said)}"):
        try_policy(**{"policy": "sync", "lengths": LENGTHS, **change})


# Laws, and worlds that break them


class Twins(Watched):
    """Runs the first rollout on both replicas at once."""

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        for event in events:
            if isinstance(event, Ended) and event.segment.key == (0, 0):
                self.segments.append(event.segment._replace(replica=1 - event.segment.replica))
        return events


class Forgetful(Watched):
    """Loses a token of each rollout that is stopped, after it is written down."""

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        return [shorter(segment) for segment in super().abort(keys, for_good)]


class Silent(Watched):
    """Never says what came of a stopped rollout, but in its last words."""

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        kept = len(self.segments)
        stopped = super().abort(keys, for_good)
        del self.segments[kept:]
        return stopped


def shorter(segment: Segment) -> Segment:
    if segment.new_tokens < 2:
        return segment
    first, *rest = segment.tokens_by_version
    return segment._replace(
        tokens_by_version=(VersionTokens(first.version, first.tokens - 1), *rest)
    )


def relay(breaks: type[Watched]) -> Callable[[World], Trial]:
    """A trial of which the broken world is the record."""
    return lambda world: try_on(breaks(world), "april", group_size=3)


@pytest.mark.parametrize(
    ("breaks", "law", "said"),
    [
        (Twins, never_on_two_replicas, r"^rollout 0\.0 ran twice at 0 s: on replica \d until 3 s"),
        (Twins, conserves, r"^rollout 0\.0 was submitted 1 times and ended 2 times"),
        (
            Forgetful,
            conserves,
            r"^only the \w+ has a segment of rollout \d+\.\d on replica \d with",
        ),
        (Silent, conserves, r"^rollout \d+\.\d was submitted 2 times and ended 1 times"),
    ],
)
def test_broken_worlds_are_found(
    breaks: type[Watched], law: Callable[[Trial], None], said: str
) -> None:
    shape = ClusterShape(2, 1, 1, colocated=True, slots=16)
    sound = SimulatedCluster(shape, EngineSpec(8, 64, 4096), PLAIN, ListedWorkload.of(LENGTHS))
    with pytest.raises(AssertionError, match=said):
        law(relay(breaks)(sound))


def test_books_that_are_wrong_are_found() -> None:
    for name in ("trained", "dropped", "carried", "generated"):
        trial = tried("april")
        ledger = trial.run.ledger
        key = f"{name}_tokens"
        setattr(ledger, key, getattr(ledger, key) + 1)
        with pytest.raises(AssertionError, match="tokens"):
            conserves(trial)
    trial = tried("april")
    trial.seen.trained.append(trial.seen.trained[0])
    with pytest.raises(AssertionError, match=r"the trainer got \d+ tokens, but the ledger has"):
        conserves(trial)
    trial.run.ledger.trained_tokens += trial.seen.trained[0].new_tokens
    with pytest.raises(AssertionError):
        conserves(trial)


def monitored(world: World, policy: str = "april") -> None:
    try_on(Monitor(world, 31, 16), policy, group_size=3)


class Short(Watched):
    """Ends each response a token early."""

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        return [Ended(shorter(e.segment)) if isinstance(e, Ended) else e for e in events]


class Late(Watched):
    """Says of each segment that it ended later than it did."""

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        return [
            Ended(e.segment._replace(end_s=e.segment.end_s + 1)) if isinstance(e, Ended) else e
            for e in events
        ]


class OfTomorrow(Watched):
    """Says that weights to come made the tokens."""

    def wait(self, until_s: float | None = None) -> list[Event]:
        events = super().wait(until_s)
        return [
            Ended(e.segment._replace(tokens_by_version=(VersionTokens(99, e.segment.new_tokens),)))
            if isinstance(e, Ended)
            else e
            for e in events
        ]


class Lossy(Watched):
    """Returns one segment too few at an abort."""

    def abort(self, keys: Collection[Key] | None = None, for_good: bool = False) -> list[Segment]:
        return super().abort(keys, for_good)[1:]


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (Short, r"finished with \d+ tokens, but was to have \d+"),
        (Late, "ends in the future"),
        (OfTomorrow, "has tokens of weights that the replicas never had"),
        (Lossy, r"an abort of \d+ rollouts returned \d+ segments"),
    ],
)
def test_the_monitor_finds_broken_worlds(breaks: type[Watched], said: str) -> None:
    shape = ClusterShape(2, 1, 1, colocated=True, slots=16)
    for kind in (Watched, breaks):
        sound = SimulatedCluster(shape, EngineSpec(8, 64, 4096), PLAIN, ListedWorkload.of(LENGTHS))
        if kind is Watched:
            monitored(kind(sound))
            continue
        with pytest.raises(AssertionError, match=said):
            monitored(kind(sound))


# Policies that break them


def test_a_bound_that_does_not_hold_is_found() -> None:
    trial = tried("april(over_sampling=3)", steps=8)
    bound_holds(trial, max_versions=8)
    with pytest.raises(
        AssertionError,
        match=r"^step \d trained on tokens of rollout \d\.\d that "
        r"were \d versions old; the bound is 1$",
    ):
        bound_holds(trial, max_versions=1)
    with pytest.raises(ScenarioError, match="promises no bound; say which should hold"):
        bound_holds(trial)
    bound_holds(tried("april(over_sampling=3, mask_off_policy=true)", steps=8), max_versions=0)
    bounded = tried("fully_async(max_staleness=1, in_flight=3)", steps=8)
    bound_holds(bounded)
    assert max(max(step.staleness) for step in bounded.steps) == 1
    for decision in bounded.decisions:
        decision["plan"]["staleness"]["max_versions"] = 0
    with pytest.raises(AssertionError, match="the bound is 0"):
        bound_holds(bounded)


@dataclass(frozen=True)
class Soon(Policy):
    """Starts more groups than it needs, and stops as soon as the batch is full."""

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        launch = replace(plan.launch, over_sampling=self.share(plan, state))
        return replace(plan, launch=launch, stop=EnoughGroups(), unfinished="resume")

    def share(self, plan: StepPlan, state: Any) -> float:
        return 1.5


@dataclass(frozen=True)
class Remembers(Soon):
    """Keeps how often it was asked outside its state."""

    asked: list[int] = field(default_factory=list)

    def share(self, plan: StepPlan, state: Any) -> float:
        self.asked.append(plan.step)
        return 1.0 + 0.1 * len(self.asked)


class Rolls(Soon):
    """Draws from a generator that is nowhere in its state."""

    random = Random(3)

    def share(self, plan: StepPlan, state: Any) -> float:
        return 1.0 + self.random.random()


class Overwrites(Soon):
    """Changes the state that it is given."""

    def init(self) -> list[int]:
        return [0]

    def observe(self, state: list[int], outcome: StepOutcome) -> list[int]:
        state[0] += 1
        return state


class Drifts(Soon):
    """Draws in observe."""

    random = np.random.default_rng(1)

    def init(self) -> np.ndarray[Any, Any]:
        return np.zeros(2)

    def observe(self, state: Any, outcome: StepOutcome) -> Any:
        return state + self.random.random(2)


class Sizes(Soon):
    """Chooses a group size that it does not name."""

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        return replace(super().plan(plan, state), batch=plan.batch.with_group_size(8))


class Understates(Soon):
    """Declares one decision of three."""

    decides = frozenset({"launch"})


class Chatty(Soon):
    """Logs what no file can hold."""

    def describe_state(self, state: Any) -> dict[str, Any]:
        return {"state": object()}


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (Remembers, "plan, asked twice for step 0 with the same state, makes two different plans"),
        (Rolls(), "plan, asked twice for step 0 with the same state, makes two different plans"),
        (Overwrites, "observe changed the state that it was given in step 0"),
        (Drifts, "observe, asked twice for step 0 with the same state, gives two different states"),
        (Sizes, "step 0 has groups of 8, but group_sizes names only [4]"),
        (
            Understates,
            "Understates decides stop, unfinished in step 0, which its attribute decides does not",
        ),
        (Chatty, "describe_state gives more than plain data"),
    ],
)
def test_policies_that_are_not_what_they_must_be_are_found(policy: Any, said: str) -> None:
    case = "everything ends at the same instants, with the trainer on the rollouts' GPU: "
    with pytest.raises(AssertionError, match=f"^{re.escape(case + said)}"):
        check_policy_conforms(policy)
    check_policy_conforms(Soon, cases=CASES[:2])


def test_hidden_memory_is_found_in_one_line() -> None:
    with pytest.raises(
        AssertionError,
        match=(
            r"^the policy does not do the same again: step 0 decided differently, first in "
            r"plan\.launch\.over_sampling: 1\.3 and 2\.0; keep all memory in the state"
        ),
    ):
        same_again(Remembers, LENGTHS)


class Never(Policy):
    """Rejects everything."""

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        return replace(plan, filter=Filter(none))


def none(rewards: Any) -> bool:
    return False


def test_a_run_that_cannot_end_is_a_failure() -> None:
    with pytest.raises(RunError, match="can never finish"):
        try_policy(Never, LENGTHS)
    with pytest.raises(AssertionError, match="the filter rejected"):
        check_policy_conforms(Never)


# Ours keep them all

PARAMETERS = {"pods": "pods(keep=2)", "sagc": "sagc(candidates=[2, 4, 8], first=4)"}


NAMES = sorted({*POLICIES} - {"dapo_filter"})


@pytest.mark.parametrize("name", NAMES)
def test_policies_by_name_conform(name: str) -> None:
    """In the gate on a third of the cases: `tests.conformance` has all policies in other worlds."""
    cases = CASES if SEARCHING else CASES[NAMES.index(name) % 3 :: 3]
    check_policy_conforms(PARAMETERS.get(name, name), cases=cases)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(drawn.cases(), st.sampled_from(NAMES))
def test_policies_conform_wherever_hypothesis_leads(case: Case, name: str) -> None:
    check_policy_conforms(PARAMETERS.get(name, name), cases=[case])


def test_without_hypothesis_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    monkeypatch.delitem(sys.modules, "rollcast.simulator.testing.strategies")
    with pytest.raises(ImportError, match=r"need hypothesis: pip install 'rollcast\[testing\]'"):
        importlib.import_module("rollcast.simulator.testing.strategies")


def test_rollcast_has_the_same_names() -> None:
    import rollcast.testing.strategies

    for module in ("testing", "testing.strategies"):
        face = importlib.import_module(f"rollcast.{module}")
        own = importlib.import_module(f"rollcast.simulator.{module}")
        assert all(getattr(face, name) is getattr(own, name) for name in face.__all__)
    assert rollcast.testing.__all__ == rollcast.simulator.testing.__all__
