"""All laws over a set of small and nasty clusters and workloads.

PYTEST_DONT_REWRITE: the sentences are whole as they are.
"""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from rollcast.simulator.cluster.replica import EngineSpec
from rollcast.simulator.cluster.simulated import SimulatedCluster
from rollcast.simulator.core.plan import Batch, StepPlan, describe
from rollcast.simulator.core.policy import Policy, StepOutcome, chain
from rollcast.simulator.core.world import ClusterShape
from rollcast.simulator.costs import LinearCost
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.policies import check_policy
from rollcast.simulator.policies.decisions import changed, claim
from rollcast.simulator.scenario.scenario import overlapping
from rollcast.simulator.testing.laws import (
    bound_holds,
    conserves,
    never_on_two_replicas,
    promises,
    same_decisions,
)
from rollcast.simulator.testing.listed import InTurns, ListedWorkload
from rollcast.simulator.testing.monitor import Monitor
from rollcast.simulator.testing.trial import Trial, as_policy, try_on
from rollcast.simulator.workload.base import Workload
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec

PLAIN = LinearCost(1.0, 0.0, 0.0, 0.0, train_per_token_s=0.0, train_fixed_s=4.0, sync_s=1.0)
"""Iterations of a second, whatever is in them: everything happens at whole seconds, and much of it
at the same one."""
ODD = LinearCost(
    3e-3,
    6e-5,
    2e-7,
    3e-5,
    train_per_token_s=1e-5,
    train_fixed_s=0.01,
    sync_s=0.02,
    switch_to_train_s=0.005,
    switch_to_rollout_s=0.003,
)
"""A price on every count."""
ROOMY = EngineSpec(8, 64, 4096, 16)
MIXED = ((40, 3, 17, 29, 1), (8, 22, 35), (11, 6, 40, 1, 1, 2, 13))
REWARDS = ((1.0, 0.0), (1.0,), (0.0, 0.0, 1.0))
"""Those of every third prompt are all the same: a filter has something to reject."""


@dataclass(frozen=True)
class Case:
    """A small cluster and what it works on."""

    name: str
    workload: Workload
    engine: EngineSpec = ROOMY
    cost: CostModel = ODD
    replicas: int = 1
    routing: str = "least_loaded"
    environment: EnvironmentSpec = UNLIMITED

    def world(self, apart: bool) -> SimulatedCluster:
        """A fresh world; ``apart`` gives the trainer a GPU of its own."""
        shape = ClusterShape(
            self.replicas, 1, 1, colocated=not apart, slots=self.replicas * self.engine.max_seqs
        )
        return SimulatedCluster(
            shape, self.engine, self.cost, self.workload, self.routing, self.environment
        )


CASES = (
    Case(
        "everything ends at the same instants",
        ListedWorkload(((4,),), REWARDS, (4,)),
        cost=PLAIN,
        replicas=2,
        routing="round_robin",
    ),
    Case("one long response in a group", ListedWorkload(((40, 2, 3, 2, 5),), REWARDS)),
    Case(
        "hardly room for one rollout",
        ListedWorkload(MIXED, REWARDS, (8, 3)),
        EngineSpec(5, 24, 52, 4),
        PLAIN,
    ),
    Case(
        "prompts of several chunks",
        ListedWorkload(MIXED, REWARDS, (70, 5, 33)),
        EngineSpec(4, 16, 400, 16),
        replicas=2,
        routing="group_affinity",
    ),
    Case(
        "three replicas and a trainer slower than they",
        ListedWorkload(MIXED, REWARDS),
        cost=LinearCost(1.0, 0.0, 0.0, 0.0, 0.0, train_fixed_s=333.0, sync_s=0.5),
        replicas=3,
    ),
    Case(
        "updates and syncs that take no time",
        ListedWorkload(MIXED, REWARDS),
        cost=LinearCost(1.0, 0.0, 0.0, 0.0, 0.0),
        replicas=3,
    ),
    Case(
        "one rollout at a time",
        ListedWorkload(((6, 1, 3), (2,)), REWARDS),
        EngineSpec(1, 8, 64, 4, prefix_caching=False),
    ),
    Case("more replicas than rollouts", ListedWorkload(MIXED, REWARDS), cost=PLAIN, replicas=40),
    Case("every response is cut at the cap", ListedWorkload(((9,),), REWARDS, (8, 70), cap=7)),
    Case("responses of one token", ListedWorkload(((1,),), REWARDS)),
    Case(
        "turns, and few environments that a rollout keeps while it is suspended",
        InTurns(ListedWorkload(MIXED, REWARDS), 4, 3, 2.5, judged_s=1.5),
        replicas=2,
        routing="session_affinity",
        environment=EnvironmentSpec(slots=3, reward_slots=2),
    ),
    Case(
        "turns, hardly room, and environments held by a rollout and closed with it",
        InTurns(ListedWorkload(MIXED, REWARDS, (8, 3)), 5),
        EngineSpec(5, 24, 76, 4),
        PLAIN,
        environment=EnvironmentSpec(slots=6, held="rollout", on_suspend="close"),
    ),
)
"""Two replicas or one, ample pools and full ones, prices that tie and prices that do not."""


def check_policy_conforms(
    policy: str | Policy | type[Policy],
    *,
    batch_groups: int = 4,
    group_size: int = 4,
    steps: int = 4,
    cases: Sequence[Case] = CASES,
) -> None:
    """Runs a policy through each case, with the trainer on the rollouts' GPU and on its own (only
    there, where the policy needs it), and checks:

    - `Monitor`: every call of the loop and every answer of the world
    - `conserves`, `never_on_two_replicas`, and `bound_holds` where its plans promise a bound
    - steps train on whole batches; group sizes are among those it names; its figures are plain data
    - it is pure (`simulator.testing.conform`) and decides nothing undeclared
    - the same run takes the same decisions

    Raises AssertionError naming the case. Raises ScenarioError where the policy cannot plan for
    batches of ``batch_groups`` groups of ``group_size``.
    """
    tried = as_policy(policy)
    plan = StepPlan(Batch(batch_groups, group_size))
    check_policy(tried, plan)
    places = (True,) if overlapping(tried, plan) else (False, True)
    twice = chain(*map(Twice, tried.policies))
    sizes = tried.group_sizes(frozenset({group_size}))
    for case in cases:
        for apart in places:
            try:
                trial = _run(case, apart, twice, plan.batch, steps)
                _laws(trial, sizes)
                again = _run(case, apart, tried, plan.batch, steps)
                same_decisions(trial, again)
            except (AssertionError, RollcastError) as error:
                where = "on a GPU of its own" if apart else "on the rollouts' GPU"
                raise AssertionError(f"{case.name}, with the trainer {where}: {error}") from error


def _run(case: Case, apart: bool, policy: Policy, batch: Batch, steps: int) -> Trial:
    workload = case.workload
    block = case.engine.block_tokens if case.engine.prefix_caching else None
    monitor = Monitor(case.world(apart), workload.max_new_tokens, block)
    trial = try_on(
        monitor, policy, batch_groups=batch.groups, group_size=batch.group_size, steps=steps
    )
    assert monitor.idle, "the run ended while something was under way"
    return trial


def _laws(trial: Trial, sizes: frozenset[int]) -> None:
    conserves(trial)
    never_on_two_replicas(trial)
    if any(promises(decision["plan"]) < math.inf for decision in trial.decisions):
        bound_holds(trial)
    for record, decision in zip(trial.steps, trial.decisions, strict=True):
        batch = decision["plan"]["batch"]
        assert record.taken_rollouts >= batch["groups"] * batch["group_size"], (
            f"step {record.step} trained on {record.trained_groups} groups; its batch has "
            f"{batch['groups']}"
        )
        assert batch["group_size"] in sizes, (
            f"step {record.step} has groups of {batch['group_size']}, but group_sizes names only "
            f"{sorted(sizes)}"
        )
        try:
            json.dumps(record.policy)
        except (TypeError, ValueError) as error:
            raise AssertionError(f"describe_state gives more than plain data: {error}") from None


class Twice(Policy):
    """Asks a policy everything twice. Raises AssertionError for two answers, a changed state, or an
    undeclared decision (`Policy.decides`)."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def init(self) -> Any:
        """The state before the first step."""
        state = self.policy.init()
        assert alike(state, self.policy.init()), "init, asked twice, makes two different states"
        return state

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """The policy's plan."""
        before = deepcopy(state)
        first, again = self.policy.plan(plan, state), self.policy.plan(plan, state)
        assert describe(first) == describe(again), (
            f"plan, asked twice for step {plan.step} with the same state, makes two different plans"
        )
        assert alike(before, state), f"plan changed the state that it was given in step {plan.step}"
        if self.policy.decides is not None:
            name = type(self.policy).__name__
            more = changed(plan, first) - claim(self.policy, name).decides
            assert not more, (
                f"{name} decides {', '.join(sorted(more))} in step {plan.step}, which its "
                "attribute decides does not name"
            )
        return first

    def observe(self, state: Any, outcome: StepOutcome) -> Any:
        """The policy's next state."""
        before, step = deepcopy(state), outcome.plan.step
        first = deepcopy(self.policy.observe(state, outcome))
        assert alike(before, state), (
            f"observe changed the state that it was given in step {step}; it returns the next one"
        )
        again = self.policy.observe(state, outcome)
        assert alike(first, again), (
            f"observe, asked twice for step {step} with the same state, gives two different states"
        )
        return first

    def group_sizes(self, sizes: frozenset[int]) -> frozenset[int]:
        """The policy's."""
        return self.policy.group_sizes(sizes)

    def describe_state(self, state: Any) -> dict[str, Any]:
        """The policy's figures."""
        return self.policy.describe_state(state)


def alike(one: Any, other: Any) -> bool:
    """Whether two states say the same, part by part, whatever they are made of."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return np.array_equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(alike, one, other))
    if is_dataclass(one):
        names = [field.name for field in fields(one)]
        return all(alike(getattr(one, name), getattr(other, name)) for name in names)
    if not _by_identity(type(one)):
        return bool(one == other)
    if hasattr(one, "__dict__"):
        return alike(vars(one), vars(other))
    return one is other or pickle.dumps(one) == pickle.dumps(other)


def _by_identity(kind: type) -> bool:
    """Whether things of this class are equal only to themselves."""
    return (
        next(vars(base)["__eq__"] for base in kind.__mro__ if "__eq__" in vars(base))
        is (vars(object)["__eq__"])
    )
