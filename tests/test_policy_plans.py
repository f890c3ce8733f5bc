"""What each policy decides, and that composed policies leave each other's decisions alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollcast.simulator.core.plan import (
    AllDone,
    Batch,
    EnoughGroups,
    Filter,
    GroupProbe,
    History,
    Launch,
    Oracle,
    Prompts,
    StepPlan,
    describe,
)
from rollcast.simulator.core.policy import Chain, GroupOutcome, Policy, StepOutcome, chain
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.loop.selection import (
    MaxReward,
    MaxVariance,
    Percentile,
    RandomSubset,
    ZeroVariance,
)
from rollcast.simulator.policies import (
    APRIL,
    PODS,
    SAGC,
    ColocateAsync,
    Difficulty,
    DynamicSampling,
    FullyAsync,
    LongestFirst,
    OneStepOff,
    PartialRollout,
    PipelineRL,
    PrefixReuse,
    RhymeRL,
    Seer,
    SortedRL,
    Streaming,
    TailBatching,
    TokenBudget,
    check_policy,
    parse_policy,
)
from rollcast.simulator.policies.decisions import changed, value
from tests.refusals import refuses

BASE = StepPlan(Batch(8, 8), step=3)
EVERY: tuple[Policy, ...] = (
    APRIL(),
    SAGC(),
    PODS(keep=4),
    PODS(keep=3, rule="random", advantages="before_selection"),
    PrefixReuse(),
    DynamicSampling(),
    DynamicSampling(refill_when="drained", refill_groups=2),
    TailBatching(),
    OneStepOff(),
    PartialRollout(),
    FullyAsync(),
    FullyAsync(max_staleness=1.5, sync_every=2),
    PipelineRL(),
    Seer(),
    LongestFirst(),
    RhymeRL(),
    SortedRL(),
    TokenBudget(),
    Difficulty(),
    Streaming(),
    ColocateAsync(),
)
LAUNCHERS = (
    APRIL,
    TailBatching,
    PartialRollout,
    FullyAsync,
    PipelineRL,
    SortedRL,
    TokenBudget,
    ColocateAsync,
)
AHEAD = (OneStepOff, FullyAsync, PipelineRL)
ORDERS = (Seer, LongestFirst, RhymeRL)
policy_lists = st.lists(st.sampled_from(EVERY), max_size=4)


def planned(policy: Policy, base: StepPlan = BASE) -> StepPlan:
    return policy.plan(base, policy.init())


def outcome(plan: StepPlan, buffered: int = 0) -> StepOutcome:
    size = plan.batch.group_size
    groups = tuple(
        GroupOutcome(n, size, (100,) * (size - 1) + (100 + 50 * (n % 2),), (0.0,) * size, True, 0)
        for n in range(plan.batch.groups)
    )
    return StepOutcome(plan, groups, buffered, 0)


RESUMES = {"stop": EnoughGroups(), "unfinished": "resume"}
CONTINUOUS = RESUMES | {"launch.refill": "rollout", "take": "oldest"}
DECIDED: dict[str, dict[str, Any]] = {
    "sync": {},
    "april(over_sampling=1.5)": {"launch.over_sampling": 1.5, **RESUMES},
    "april(surplus=drop, mask_off_policy=true)": {
        "launch.over_sampling": 2.0,
        "surplus": "drop",
        "staleness.mask_off_policy": True,
        **RESUMES,
    },
    "pods(keep=4)": {"select": (MaxVariance(4),)},
    "pods(keep=4, rule=max_reward)": {"select": (MaxReward(4),)},
    "pods(keep=4, rule=percentile)": {"select": (Percentile(4),)},
    "pods(keep=4, rule=random, seed=7)": {"select": (RandomSubset(4, 7, step=3),)},
    "pods(keep=4, advantages=before_selection)": {
        "select": (MaxVariance(4),),
        "advantages": "before_selection",
    },
    "pods(keep=6)+pods(keep=2)": {"select": (MaxVariance(6), MaxVariance(2))},
    "prefix_reuse": {"layout": "shared_prefix"},
    "one_step_off(steps=3)": {"launch.run_ahead": 3},
    "dynamic_sampling": {"filter": Filter(ZeroVariance()), "stop": EnoughGroups()},
    "dynamic_sampling(refill_groups=3, refill_when=drained)": {
        "filter": Filter(ZeroVariance(), 3, "drained"),
        "surplus": "drop",
    },
    "dynamic_sampling(surplus=train)": {
        "filter": Filter(ZeroVariance()),
        "stop": EnoughGroups(),
        "surplus": "train",
    },
    "partial_rollout(in_flight=1.5)": {
        "launch.over_sampling": 1.5,
        "launch.refill": "rollout",
        **RESUMES,
    },
    "fully_async(max_staleness=2, in_flight=1.5)": {
        "launch.over_sampling": 1.5,
        "launch.run_ahead": 2,
        "interrupt": "for_weights",
        "staleness.max_versions": 2,
        "staleness.exceeded": "wait",
        **CONTINUOUS,
    },
    "fully_async(max_staleness=2, exceeded=window, refill=group, weights=keep)": {
        "launch.run_ahead": 2,
        "interrupt": "never",
        "staleness.max_versions": 2,
        "staleness.exceeded": "window",
        **CONTINUOUS,
        "launch.refill": "group",
    },
    "pipeline_rl(in_flight=0.5, queue=2)": {
        "launch.over_sampling": 0.5,
        "launch.run_ahead": 1,
        "launch.queue": 2.0,
        "interrupt": "never",
        **CONTINUOUS,
    },
    "longest_first": {
        "dispatch.order": "longest_first",
        "dispatch.predictor": Oracle(),
        "dispatch.placement": "balanced",
    },
    "seer(window=0.5)": {
        "dispatch.order": "longest_first",
        "dispatch.predictor": GroupProbe(),
        "dispatch.window": 0.5,
    },
    "rhyme_rl": {},  # no prompt has come yet
    "sorted_rl(load=3)": {
        "launch.over_sampling": 3.0,
        "stop": EnoughGroups(),
        "unfinished": "restart",
        "surplus": "restart",
        "take": "shortest",
    },
    "token_budget(tokens=500)": {
        "launch.over_sampling": 2.0,
        "unfinished": "resume",
        "budget_tokens": 500,
        "take": "oldest",
    },
    "streaming(groups=2)": {"stream_groups": 2},
    "colocate_async(warmup=0.5, max_staleness=2, exceeded=wait)": {
        "launch.over_sampling": 1.5,
        "take": "oldest",
        "staleness.max_versions": 2,
        "staleness.exceeded": "wait",
        **RESUMES,
    },
    "tail_batching": {
        "launch.over_sampling": 1.25,
        "launch.rollouts": 1.25,
        "launch.source": "fresh",
        "stop": EnoughGroups(),
        "unfinished": "restart",
        "surplus": "restart",
    },
}


@pytest.mark.parametrize("spelt", DECIDED)
def test_a_policy_decides_this_and_nothing_else(spelt: str) -> None:
    plan = planned(parse_policy(spelt))
    assert {path: value(plan, path) for path in changed(BASE, plan)} == DECIDED[spelt]


def test_fully_async_bounds_by_fractions_and_by_rare_syncs() -> None:
    assert planned(FullyAsync()).keeps_running
    assert not planned(FullyAsync(max_staleness=0)).keeps_running
    half = planned(FullyAsync(max_staleness=0.5))
    assert (half.launch.run_ahead, half.staleness.max_versions) == (1, 0.5)
    assert half.may_start(version=3) == 12  # a batch and a half of 8
    rare = planned(FullyAsync(max_staleness=5, sync_every=4))  # verl's s = 0.5 at 4 updates a sync
    assert replace(rare, step=4).may_start(version=4) == 1.5 * 4 * 8
    rejected(lambda: FullyAsync(max_staleness=2, sync_every=4), "policy.fully_async.max_staleness")
    with pytest.raises(ScenarioError, match="on-policy"):
        check_policy(chain(Streaming(), OneStepOff()), BASE)


def test_april_scales_with_the_batch_that_a_later_policy_sets() -> None:
    plan = planned(chain(APRIL(2.0), SAGC(first=4)))
    assert (plan.batch, plan.launch.groups_in_wave(plan.batch)) == (Batch(16, 4), 32)


def test_pods_cannot_keep_more_than_the_group_has() -> None:
    for policy in (PODS(9), chain(PODS(4), PODS(5))):
        with refuses("policy.pods.keep"):
            planned(policy).check()


@dataclass(frozen=True)
class KeepFirst:
    """A selector of somebody's."""

    keep: int

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        return list(range(self.keep))


def test_a_selector_from_elsewhere_is_blamed_by_its_name() -> None:
    with refuses("policy", "KeepFirst keeps 9 rollouts of a group of 8"):
        replace(BASE, select=(KeepFirst(9),)).check()


def rejected(call: Callable[[], object], field: str) -> None:
    with refuses(field):
        call()


def test_rhyme_rl_remembers_how_long_a_prompts_responses_were() -> None:
    policy = RhymeRL()
    again = replace(BASE, prompts=Prompts(dataset=3))
    first = GroupOutcome(5, 2, (100, 300), (0.0, 1.0), True, 0, prompt=2)
    later = GroupOutcome(8, 2, (10, 20), (0.0, 1.0), False, 0, prompt=2)
    other = GroupOutcome(6, 2, (50, 50), (0.0, 1.0), True, 0, prompt=0)
    state = policy.observe(policy.init(), StepOutcome(again, (first, other), 0, 0))
    assert policy.plan(again, state).dispatch.predictor == History({2: 200.0, 0: 50.0}, 125.0)
    state = policy.observe(state, StepOutcome(again, (later,), 0, 0))
    assert policy.plan(again, state).dispatch.predictor == History({2: 15.0, 0: 50.0}, 32.5)
    assert policy.describe_state(state) == {"known_prompts": 2}
    # in the log stands a digest, which tells the two apart
    logs = [describe(History({2: tokens})) for tokens in (200.0, 15.0)]
    assert logs[0] != logs[1]
    assert {log["prompts"] for log in logs} == {1}
    # prompts that never come again are forgotten
    assert policy.observe(policy.init(), StepOutcome(BASE, (first,), 0, 0)) == {}


def test_sorted_rl_loads_once_and_uses_it_up() -> None:
    policy = SortedRL(load=3)
    state, waves = policy.init(), []
    for left in (16, 8, 0, 16, 5):  # after the fifth a filter has left less than a batch
        plan = policy.plan(BASE, state)
        plan.check()
        waves.append((plan.launch.source, plan.launch.groups_in_wave(plan.batch)))
        state = policy.observe(state, outcome(plan, buffered=left))
        assert policy.describe_state(state) == {"loaded_groups": left}
    first, rest, last = ("buffer_first", 24), ("buffer", 16), ("buffer", 8)
    assert waves == [first, rest, last, first, rest]
    assert policy.plan(BASE, state).launch.groups_in_wave(BASE.batch) == 24
    partial = planned(SortedRL(mode="partial"))
    assert (partial.unfinished, partial.surplus) == ("resume", "carry")


def solved(prompt: int, *rewards: float) -> GroupOutcome:
    return GroupOutcome(0, len(rewards), (1,) * len(rewards), rewards, True, 0, prompt)


def test_difficulty_passes_over_what_is_always_or_never_solved() -> None:
    policy = Difficulty(easy=0.9, hard=0.2)
    again = replace(BASE, prompts=Prompts(dataset=5, skip=frozenset({4})))
    groups = (solved(0, 1, 1, 1, 1), solved(1, 0, 0, 0, 1), solved(2, 0, 1, 0, 0), solved(3, 0, 0))
    state = policy.observe(policy.init(), StepOutcome(again, groups, 0, 0))
    assert policy.plan(again, state).prompts.skip == {0, 3, 4}
    assert policy.describe_state(state) == {"easy_prompts": 1, "hard_prompts": 1}
    # once it comes again and is neither, it is back
    state = policy.observe(state, StepOutcome(again, (solved(3, 0, 1),), 0, 0))
    assert policy.plan(again, state).prompts.skip == {0, 4}
    # and when nothing is left, all are
    rest = tuple(solved(prompt, 1, 1) for prompt in (1, 2, 3, 4))
    assert policy.plan(BASE, policy.observe(state, StepOutcome(again, rest, 0, 0))) == BASE
    # endless prompts never come again
    assert policy.observe(policy.init(), StepOutcome(BASE, groups, 0, 0)) == policy.init()
    rejected(lambda: Difficulty(easy=0.5, hard=0.5), "policy.difficulty.hard")


def test_a_share_of_easy_prompts_is_spared() -> None:
    again = replace(BASE, prompts=Prompts(dataset=1000))
    groups = tuple(solved(prompt, 1, 1) for prompt in range(500))
    for share, least, most in ((0.0, 500, 500), (0.25, 340, 410), (1.0, 0, 0)):
        policy = Difficulty(easy_share=share, seed=3)
        state = policy.observe(policy.init(), StepOutcome(again, groups, 0, 0))
        assert least <= len(state.easy) <= most


def test_tail_batching_runs_a_long_round_once_a_batch_is_queued() -> None:
    policy = TailBatching()
    state, rounds = policy.init(), []
    for queued in (3, 7, 8, 0, 5):
        plan = policy.plan(BASE, state)
        plan.check()
        rounds.append(plan.launch.source)
        state = policy.observe(state, outcome(plan, buffered=queued))
        assert policy.describe_state(state) == {"queued_prompts": queued}
    assert rounds == ["fresh", "fresh", "fresh", "buffer", "fresh"]
    long = policy.plan(BASE, 8)
    assert long.launch == Launch(source="buffer")
    assert long.stop == AllDone()
    assert long.unfinished == long.surplus == "restart"


def test_tail_batching_ends_the_multiples_of_a_policy_before_it() -> None:
    assert chain(APRIL(3.0), TailBatching()).plan(BASE, (None, 8)).launch.over_sampling == 1.0


@pytest.mark.parametrize("first", EVERY, ids=lambda policy: type(policy).__name__)
def test_every_pair_makes_sound_plans_in_every_order(first: Policy) -> None:
    for second in EVERY:
        if second is first or {type(first), type(second)} == {PODS}:
            continue  # 4 of 3 is a contradiction
        policy = chain(first, second)
        refused = ""
        try:
            check_policy(policy, BASE)
        except ScenarioError as error:
            refused = str(error)
        assert bool(refused) == contradicts(first, second), (second, refused)
        state = policy.init()
        for buffered in () if refused else (0, 20, 0):
            plan = policy.plan(BASE, state)
            plan.check()
            state = policy.observe(state, outcome(plan, buffered))


def contradicts(first: Policy, second: Policy) -> bool:
    """The pairs that make no sense, listed by hand."""
    kinds = {type(first), type(second)}
    too_early = isinstance(first, TailBatching | SortedRL) and isinstance(second, SAGC)
    streamed = Streaming in kinds and bool(kinds & {*AHEAD})  # its plan says so itself
    twice = any(len(kinds & {*several}) > 1 for several in (LAUNCHERS, AHEAD, ORDERS))
    return twice or streamed or too_early or len(kinds) == 1


@given(policy_lists, policy_lists, policy_lists)
def test_chains_are_a_monoid(a: list[Policy], b: list[Policy], c: list[Policy]) -> None:
    left = chain(chain(chain(*a), chain(*b)), chain(*c))
    right = chain(chain(*a), chain(chain(*b), chain(*c)))
    assert left == right == chain(*a, *b, *c)
    assert chain(chain(), left) == chain(left, chain()) == left

    # and they behave alike where they are nested without flattening
    nested = Chain((Chain(tuple(a)), Chain(tuple(b)), Chain(tuple(c))))
    assert planned(nested) == planned(left)
    assert nested.group_sizes(frozenset({8})) == left.group_sizes(frozenset({8}))
    first = outcome(planned(left), 9)
    after_left = left.observe(left.init(), first)
    after_nested = nested.observe(nested.init(), first)
    assert nested.plan(BASE, after_nested) == left.plan(BASE, after_left)
    assert nested.describe_state(after_nested) == left.describe_state(after_left)


def test_the_empty_chain_is_synchronous() -> None:
    assert planned(chain()) == BASE
    assert chain().observe(chain().init(), outcome(BASE)) == ()


def test_a_size_that_may_be_chosen_later_is_checked_before_the_run() -> None:
    check_policy(chain(SAGC(), PODS(4)), BASE)
    with pytest.raises(ScenarioError, match="keeps 6 rollouts of a group of 4"):
        check_policy(chain(SAGC(), PODS(6)), BASE)
    with pytest.raises(ScenarioError, match="divided into groups of 16"):
        check_policy(SAGC(), StepPlan(Batch(3, 8)))
