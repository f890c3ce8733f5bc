"""What policies declare that they decide is what they decide, and what is said of overlaps."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.core.plan import (
    AllDone,
    Batch,
    EnoughGroups,
    Filter,
    GroupProbe,
    Launch,
    Oracle,
    Progress,
    StepPlan,
)
from rollcast.simulator.core.policy import GroupOutcome, Policy, StepOutcome, chain
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.selection import MaxReward, ZeroVariance
from rollcast.simulator.policies import (
    APRIL,
    PODS,
    POLICIES,
    SAGC,
    DynamicSampling,
    TokenBudget,
    build_policy,
    check_policy,
    name_of,
    parse_policy,
)
from rollcast.simulator.policies.decisions import DECISIONS, EXCLUSIVE, Claim, changed, claim, value
from tests.laws import examples
from tests.refusals import refuses


@dataclass(frozen=True)
class Half:
    """A rule of when to stop that no policy here knows."""

    def __call__(self, progress: Progress) -> bool:
        return 2 * progress.accepted_groups >= progress.needed_groups


BASE = StepPlan(Batch(16, 8))
VALUES: dict[str, tuple[Any, ...]] = {
    "batch.groups": (16, 32),
    "batch.group_size": (4, 8, 16),
    "launch.over_sampling": (1.0, 1.5, 7.0),
    "launch.rollouts": (1.0, 3.0),
    "launch.source": ("buffer_first", "fresh", "buffer"),
    "launch.refill": ("none", "group", "rollout"),
    "launch.run_ahead": (0, 1, 3),
    "launch.queue": (None, 1.5),
    "dispatch.order": ("fifo", "longest_first", "shortest_first"),
    "dispatch.predictor": (None, Oracle(), GroupProbe()),
    "dispatch.placement": ("router", "balanced"),
    "dispatch.window": (None, 2.0),
    "prompts.dataset": (None, 70),
    "prompts.chosen": ((), (3, 1)),
    "prompts.skip": (frozenset(), frozenset({2})),
    "stop": (AllDone(), EnoughGroups(), Half()),
    "interrupt": ("at_stop", "for_weights", "never"),
    "unfinished": ("discard", "resume", "restart"),
    "budget_tokens": (None, 500),
    "budget_turns": (None, 4),
    "failed": ("keep", "restart"),
    "surplus": ("carry", "train", "drop", "restart"),
    "take": ("completion", "oldest", "shortest"),
    "filter": (None, Filter(ZeroVariance()), Filter(ZeroVariance(), 3)),
    "select": ((), (MaxReward(3),)),
    "advantages": ("after_selection", "before_selection"),
    "layout": ("dense", "shared_prefix"),
    "staleness.max_versions": (None, 0, 2),
    "staleness.exceeded": ("restart", "drop", "wait"),
    "staleness.mask_off_policy": (False, True),
    "sync_every": (1, 3),
    "stream_groups": (None, 2),
}
REQUIRED: dict[str, dict[str, Any]] = {"pods": {"keep": 2}}
EXAMPLES: tuple[Policy, ...] = (
    *(build_policy(name, REQUIRED.get(name)) for name in POLICIES),
    APRIL(surplus="drop", mask_off_policy=True),
    SAGC(first=16),
    PODS(3, advantages="before_selection"),
    DynamicSampling(3, "drained"),
    DynamicSampling(surplus="train"),
    TokenBudget(mask_off_policy=True),
)
QUEUED = (0, 24)
every_policy = pytest.mark.parametrize("policy", EXAMPLES, ids=lambda policy: name_of(policy))


def put(plan: StepPlan, path: str, decision: Any) -> StepPlan:
    part, dot, inner = path.partition(".")
    if not dot:
        return replace(plan, **{part: decision})
    return replace(plan, **{part: replace(getattr(plan, part), **{inner: decision})})


@st.composite
def plans(draw: st.DrawFn) -> StepPlan:
    plan = replace(BASE, step=draw(st.integers(0, 5)))
    for path, decisions in VALUES.items():
        plan = put(plan, path, draw(st.sampled_from(decisions)))
    return plan


def outcome(plan: StepPlan, queued: int) -> StepOutcome:
    """Prompts come again, one whose responses differ and one that is always solved."""
    size = plan.batch.group_size
    lengths = (100,) * (size - 1) + (900,)
    group = GroupOutcome(0, size, lengths, (0.0,) * (size - 1) + (1.0,), True, 0, prompt=0)
    solved = GroupOutcome(1, size, (100,) * size, (1.0,) * size, True, 0, prompt=1)
    again = replace(plan, prompts=replace(plan.prompts, dataset=70))
    return StepOutcome(again, (group, solved), queued, 0)


def states(policy: Policy) -> Iterator[Any]:
    """The first state, and those after steps that left so many prompts in the queue."""
    state = policy.init()
    yield state
    for queued in QUEUED:
        state = policy.observe(state, outcome(policy.plan(BASE, state), queued))
        yield state


def declared(policy: Policy) -> Claim:
    return claim(policy, name_of(policy))


def test_every_decision_of_a_plan_has_values_here() -> None:
    assert set(VALUES) == set(DECISIONS)
    assert set(EXCLUSIVE) <= set(DECISIONS)


@every_policy
@settings(max_examples=examples(40))
@given(plan=plans())
def test_nothing_undeclared_is_decided(policy: Policy, plan: StepPlan) -> None:
    assert policy.decides is not None
    for state in states(policy):
        assert changed(plan, policy.plan(plan, state)) <= declared(policy).decides


@pytest.mark.parametrize("name", POLICIES)
def test_everything_declared_is_decided_for_some_plan(name: str) -> None:
    kind = POLICIES[name]
    mine = [policy for policy in EXAMPLES if type(policy) is kind]
    found: set[str] = set()
    for policy in mine:
        for plan in (put(BASE, path, v) for path, values in VALUES.items() for v in values):
            for state in states(policy):
                found |= changed(plan, policy.plan(plan, state))
    assert found == frozenset().union(*(declared(policy).decides for policy in mine))


@every_policy
@settings(max_examples=examples(40))
@given(plan=plans())
def test_what_is_overwritten_does_not_show(policy: Policy, plan: StepPlan) -> None:
    for path in declared(policy).overwrites:
        others = [put(plan, path, decision) for decision in VALUES[path]]
        for state in states(policy):
            assert len({value(policy.plan(other, state), path) for other in others}) == 1


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_built_on_matters(name: str) -> None:
    """For some plan and state, the decisions made hang on what is said to be built on."""
    mine = [policy for policy in EXAMPLES if type(policy) is POLICIES[name]]
    for path in frozenset().union(*(declared(policy).builds_on for policy in mine)):
        assert any(hangs_on(policy, path) for policy in mine), path


def hangs_on(policy: Policy, path: str) -> bool:
    decided = sorted(declared(policy).decides)
    return any(
        len({str([value(policy.plan(each, state), p) for p in decided]) for each in others}) > 1
        for state in states(policy)
        if (others := [put(BASE, path, decision) for decision in VALUES[path]])
    )


# What is said of chains


def said(text: str, plan: StepPlan = BASE) -> list[str]:
    return check_policy(parse_policy(text), plan)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("april+fully_async", "policy.fully_async", "contradicts april: each decides how much is"),
        ("fully_async+april", "policy.april", "contradicts fully_async"),
        ("one_step_off+fully_async", "policy.fully_async", "how far rollouts run ahead"),
        ("sagc+pods(keep=2)+sagc(first=4)", "policy.sagc", "is listed twice"),
        ("prefix_reuse+prefix_reuse", "policy.prefix_reuse", "is listed twice"),
        ("dapo_filter+dynamic_sampling", "policy.dynamic_sampling", "is listed twice"),
        ("tail_batching+sagc", "policy.tail_batching", "must come after sagc"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, field: str, words: str) -> None:
    with refuses(field, word=words):
        parse_policy(text)


@pytest.mark.parametrize(
    "text",
    [
        "sync",
        "april+sagc+pods(keep=4)+prefix_reuse+one_step_off+dynamic_sampling",
        "dynamic_sampling+april",
        "pods(keep=4)+pods(keep=2)",
        "sagc+tail_batching",
        "one_step_off+april+dynamic_sampling",
    ],
)
def test_policies_that_go_together_are_not_spoken_of(text: str) -> None:
    assert said(text) == []


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (
            "april+dynamic_sampling(refill_when=drained)",
            "in the policy, dynamic_sampling overrides what april decided: surplus ('drop' in "
            "place of 'carry')",
        ),
        (
            "pods(keep=4, advantages=before_selection)+pods(keep=2)",
            "in the policy, pods overrides what pods decided: advantages ('after_selection' in "
            "place of 'before_selection')",
        ),
        (  # in its short rounds the same, in its long ones another
            "dynamic_sampling+tail_batching",
            "in the policy, tail_batching overrides what dynamic_sampling decided: stop",
        ),
    ],
)
def test_an_overridden_decision_is_said(text: str, warning: str) -> None:
    assert said(text) == [warning]


class Restarts(Policy):
    """Declares nothing."""

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        return replace(plan, unfinished="restart", launch=Launch(over_sampling=3.0))


@dataclass(frozen=True)
class Declares(Policy):
    names: frozenset[str]

    @property
    def decides(self) -> frozenset[str]:
        return self.names


def test_decisions_that_are_not_declared_are_found() -> None:
    [warning] = check_policy(chain(APRIL(), Restarts()), BASE)
    assert "Restarts overrides what april decided" in warning
    assert "launch.over_sampling (3.0 in place of 2.0)" in warning
    assert "unfinished ('restart' in place of 'resume')" in warning
    assert "surplus" not in warning


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (frozenset({"stopp"}), "'stopp' is no decision of a plan; did you mean stop?"),
        ("stop", "must be a set of a plan's decisions"),
        (7, "must be a set of a plan's decisions"),
    ],
)
def test_a_declaration_that_names_no_decision_is_refused(names: Any, words: str) -> None:
    policy = object.__new__(Declares)
    object.__setattr__(policy, "names", names)
    with refuses("policy.Declares.decides", word=words):
        check_policy(chain(policy), BASE)


def test_a_policy_that_is_left_without_effect_is_refused() -> None:
    mine = Declares(frozenset({"layout", "surplus"}))
    with pytest.raises(ScenarioError, match="has no effect: Declares after it decides layout"):
        check_policy(chain(build_policy("prefix_reuse"), mine), BASE)
    whole = claim(Declares(frozenset({"batch", "select"})), "own")
    assert whole.decides == {"batch.groups", "batch.group_size", "select"}
