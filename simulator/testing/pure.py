"""Whether a policy is made of pure functions and decides no more than it declares.

PYTEST_DONT_REWRITE: the sentences are whole as they are.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from rollcast.simulator.plan import StepPlan, describe
from rollcast.simulator.policies.decisions import changed, claim
from rollcast.simulator.policy import Policy, StepOutcome


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
