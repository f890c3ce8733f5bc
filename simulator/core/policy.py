"""What a scheduling policy is, and how policies compose.

A policy rewrites the next step's plan: pure functions over an explicit state, like optax's gradient
transformations. Random choices come from a seed and a counter in the state, so that the same
observations give the same decisions in every world.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.values import Options
from rollcast.simulator.values.words import require


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """A complete group, one entry per winner in order of index. new_tokens: response lengths.
    accepted: whether the filter kept it. truncated: rollouts that ended at the cap. prompt: may
    come again."""

    group: int
    size: int
    new_tokens: tuple[int, ...]
    rewards: tuple[float, ...]
    accepted: bool
    truncated: int
    prompt: int = -1


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """The result of a step's rollouts, in counts and rewards, never seconds.

    complete: groups completed in this step, in order. buffered_groups: unfinished ones kept.
    carried_groups: complete ones beyond the batch, kept for the next step.
    """

    plan: StepPlan
    complete: tuple[GroupOutcome, ...]
    buffered_groups: int
    carried_groups: int


class Policy(Options):
    """A scheduling policy. The base does nothing; override what you need.

    Parameters of a policy that is a frozen dataclass are checked against their annotations
    (`simulator.values`); errors name ``policy.<name>.<parameter>``. All memory is in the state:
    ``init`` makes it, ``observe`` returns the next one; nothing changes it.

    NAME: of a policy in `simulator.policies`; ALIASES: its other names.
    """

    NAME: ClassVar[str] = ""
    ALIASES: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        cls.FIELD = f"policy.{vars(cls).get('NAME') or words}"

    @property
    def decides(self) -> frozenset[str] | None:
        """The plan's decisions that it makes, such as ``{"stop", "launch.over_sampling"}`` or a
        whole part, ``{"batch"}``; None: found by comparing plans. A class attribute will do."""
        return None

    @property
    def builds_on(self) -> frozenset[str]:
        """Decisions whose earlier value it builds on: own ones it adjusts, others' it needs."""
        return frozenset()

    @property
    def behind(self) -> object:
        """The object that makes the state: the policy itself, unless it wraps another."""
        return self

    def init(self) -> Any:
        """The state before the first step."""
        return None

    def plan(self, plan: StepPlan, state: Any) -> StepPlan:
        """The plan of the next step, rewritten."""
        return plan

    def observe(self, state: Any, outcome: StepOutcome) -> Any:
        """The state after a step."""
        return state

    def group_sizes(self, sizes: frozenset[int]) -> frozenset[int]:
        """Every group size that may follow from plans whose group size is one of ``sizes``."""
        return sizes

    def describe_state(self, state: Any) -> dict[str, Any]:
        """The state's figures worth logging each step, as plain data."""
        return {}


@dataclass(frozen=True)
class Chain(Policy):
    """Policies applied left to right; see `chain`."""

    policies: tuple[Policy, ...]

    def init(self) -> tuple[Any, ...]:
        """One state per policy."""
        return tuple(policy.init() for policy in self.policies)

    def plan(self, plan: StepPlan, state: Sequence[Any]) -> StepPlan:
        """Each policy rewrites what the one before it planned."""
        for policy, member_state in zip(self.policies, state, strict=True):
            plan = policy.plan(plan, member_state)
        return plan

    def observe(self, state: Sequence[Any], outcome: StepOutcome) -> tuple[Any, ...]:
        """Every policy sees the same outcome."""
        pairs = zip(self.policies, state, strict=True)
        return tuple(policy.observe(member_state, outcome) for policy, member_state in pairs)

    def group_sizes(self, sizes: frozenset[int]) -> frozenset[int]:
        """The sizes that the last member to choose may choose."""
        for policy in self.policies:
            sizes = policy.group_sizes(sizes)
        return sizes

    def describe_state(self, state: Sequence[Any]) -> dict[str, Any]:
        """The members' figures in one mapping."""
        merged: dict[str, Any] = {}
        for policy, member_state in zip(self.policies, state, strict=True):
            merged.update(policy.describe_state(member_state))
        return merged


def chain(*policies: Policy) -> Chain:
    """Policies applied left to right; chains flatten, and ``chain()`` is synchronous RL."""
    flat: list[Policy] = []
    for policy in policies:
        require(Policy, policy, "policy", "a policy, such as APRIL(); parse_policy reads text")
        flat.extend(policy.policies if isinstance(policy, Chain) else (policy,))
    return Chain(tuple(flat))
