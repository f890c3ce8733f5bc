"""The group-size controller, against its equations written out over the whole history."""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollcast.simulator.core.plan import Batch, StepPlan
from rollcast.simulator.core.policy import GroupOutcome, StepOutcome
from rollcast.simulator.policies import SAGC
from rollcast.simulator.policies.sagc import PSEUDO_COUNT_FLOOR, SAGCState
from rollcast.simulator.testing import try_policy
from tests.laws import examples
from tests.refusals import refuses

BASE = StepPlan(Batch(8, 8))  # 64 rollouts, the published setting
EVEN, UNEVEN = 100, 1000


def group_of(lengths: Sequence[int], accepted: bool = True, number: int = 0) -> GroupOutcome:
    rewards = tuple(float(i % 2) for i in range(len(lengths)))
    return GroupOutcome(number, len(lengths), tuple(lengths), rewards, accepted, 0)


def outcome_of(policy: SAGC, state: SAGCState, groups: Sequence[GroupOutcome]) -> StepOutcome:
    return StepOutcome(policy.plan(BASE, state), tuple(groups), 0, 0)


def lengths_of(size: int, straggles: bool) -> list[int]:
    return [EVEN] * (size - 1) + [UNEVEN if straggles else EVEN]


def replay(policy: SAGC, history: Sequence[Sequence[Sequence[int]]]) -> list[tuple[float, int]]:
    """(lambda, size) after each step of a history of lengths, one dictionary entry per size: the
    equations of arXiv 2606.02218 taken literally."""
    price = policy.lambda0
    events = dict.fromkeys(policy.candidates, 1.0)
    others = dict.fromkeys(policy.candidates, 1.0)
    size = policy.first
    after = []
    for step, groups in enumerate(history):
        hits = misses = 0
        for lengths in groups:
            if len(lengths) == size:
                if max(lengths) > policy.tau * statistics.median(lengths):
                    hits += 1
                else:
                    misses += 1
        if hits + misses:
            price += policy.eta * (hits / (hits + misses) - policy.alpha)
            price = 0.0 if price < 0 else policy.lambda_max if price > policy.lambda_max else price
            events[size] = max(events[size] * policy.gamma + hits, PSEUDO_COUNT_FLOOR)
            others[size] = max(others[size] * policy.gamma + misses, PSEUDO_COUNT_FLOOR)
        generator = np.random.Generator(
            np.random.Philox(np.random.SeedSequence([policy.seed, step]))
        )
        here = policy.candidates.index(size)
        best = None
        for place, candidate in enumerate(policy.candidates):
            if abs(place - here) > 1:
                continue
            drawn = generator.beta(events[candidate], others[candidate])
            score = math.log(candidate) - price * (drawn - policy.alpha)
            if best is None or score > best[0]:
                best = (score, candidate)
        size = best[1]
        after.append((price, size))
    return after


policies = st.builds(
    SAGC,
    tau=st.floats(1, 3),
    alpha=st.floats(0, 1),
    eta=st.floats(0.01, 2),
    gamma=st.floats(0.1, 1),
    lambda0=st.floats(0, 5),
    lambda_max=st.floats(5, 20),
    first=st.sampled_from([4, 8, 16]),
    seed=st.integers(0, 2**64 - 1),
)
sizes = st.sampled_from([4, 8, 16])
some_lengths = sizes.flatmap(lambda n: st.lists(st.integers(0, 500), min_size=n, max_size=n))


@settings(max_examples=examples(60), deadline=None)
@given(policies, st.lists(st.lists(some_lengths, max_size=6), max_size=12))
def test_decisions_are_those_of_the_equations(policy: SAGC, history: list[list[list[int]]]) -> None:
    state = policy.init()
    decisions = []
    for groups in history:
        outcome = outcome_of(policy, state, [group_of(g) for g in groups])
        state = policy.observe(state, outcome)
        decisions.append((state.multiplier, policy.candidates[state.current]))
    expected = replay(policy, history)
    assert [size for _, size in decisions] == [size for _, size in expected]
    assert [price for price, _ in decisions] == pytest.approx([price for price, _ in expected])


def simulated(policy: SAGC, rates: dict[int, float], steps: int, seed: int) -> list[SAGCState]:
    """States over a run in which groups straggle at these rates."""
    generator = np.random.default_rng(seed)
    states = [policy.init()]
    for _ in range(steps):
        plan = policy.plan(BASE, states[-1])
        size = plan.batch.group_size
        groups = [
            group_of(lengths_of(size, bool(generator.random() < rates[size])))
            for _ in range(plan.batch.groups)
        ]
        states.append(policy.observe(states[-1], StepOutcome(plan, tuple(groups), 0, 0)))
    return states


def test_where_every_size_straggles_too_often_the_price_rises_and_groups_shrink() -> None:
    states = simulated(SAGC(eta=0.5), {4: 0.3, 8: 0.6, 16: 0.9}, 150, seed=1)
    prices = [state.multiplier for state in states]
    assert prices[40] > prices[10] > prices[0]
    assert max(prices) == 10.0  # the bound
    assert min(prices[-50:]) > 9.5  # left only after a step that happened to run well
    assert [state.current for state in states[-50:]].count(0) >= 45  # a draw may still stray


def test_rejected_groups_count_and_groups_of_another_size_do_not() -> None:
    policy = SAGC()
    state = policy.init()
    resumed = [group_of(lengths_of(16, True)) for _ in range(5)]
    own = [group_of(lengths_of(8, True), accepted=False), group_of(lengths_of(8, False))]
    after = policy.observe(state, outcome_of(policy, state, [*resumed, *own]))
    assert after.posteriors[1] == (0.99 + 1, 0.99 + 1)
    assert after.posteriors[2] == (1.0, 1.0)


def test_rollouts_per_step_stay_constant() -> None:
    policy = SAGC()
    for current, (groups, size) in enumerate([(16, 4), (8, 8), (4, 16)]):
        state = SAGCState(0.0, ((1.0, 1.0),) * 3, current)
        assert policy.plan(BASE, state).batch == Batch(groups, size)


def test_a_batch_keeps_its_rollouts_where_carried_groups_have_another_size() -> None:
    """April carries groups of the size before, of which as many are other numbers of rollouts."""
    trial = try_policy(
        "april(over_sampling=2)+sagc(candidates=[4, 8, 16], eta=2, seed=3)",
        {"family": "lognormal", "median_tokens": 300, "between_sd": 0.5, "within_sd": 0.7},
        batch_groups=8,
        group_size=8,
        steps=12,
    )
    steps = trial.run.steps
    assert len({record.group_size for record in steps}) == 3
    assert any(record.trained_groups * record.group_size != 64 for record in steps)
    assert all(64 <= record.trained_rollouts < 64 + 16 for record in steps)


def test_a_batch_that_a_size_does_not_divide_is_refused() -> None:
    policy = SAGC(candidates=(4, 6), first=6)
    with refuses("workload.group_size", "cannot be divided into groups of 6"):
        policy.plan(BASE, policy.init())


def test_what_is_logged() -> None:
    policy = SAGC(candidates=[16, 4], first=16)  # type: ignore[arg-type]
    assert policy.candidates == (4, 16)
    assert policy.group_sizes(frozenset({8})) == frozenset({4, 16})
    state = SAGCState(0.5, ((1.0, 3.0), (3.0, 1.0)), 1, 7)
    assert policy.describe_state(state) == {
        "sagc_lambda": 0.5,
        "sagc_group_size": 16,
        "sagc_rate_4": 0.25,
        "sagc_rate_16": 0.75,
    }
