"""The plan of one step: frozen data with one place for each decision that a policy can take.

Policies rewrite it (`simulator.policy`), the loop carries it out (`simulator.loop`). Everything in
it is a count, a share or a rule over counts and rewards, so that a plan means the same in every
world and can be logged and compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, Protocol

from simulator.errors import ScenarioError

Unfinished = Literal["discard", "resume", "restart", "keep"]
Surplus = Literal["carry", "train", "drop", "restart"]
Layout = Literal["dense", "shared_prefix"]
Advantages = Literal["after_selection", "before_selection"]


@dataclass(frozen=True, slots=True)
class Batch:
    """How many groups a step trains on, and how many rollouts each has."""

    groups: int
    group_size: int

    @property
    def rollouts(self) -> int:
        """Rollouts per step, B x G."""
        return self.groups * self.group_size

    def with_group_size(self, group_size: int) -> Batch:
        """The same rollouts per step in groups of another size. Raises ScenarioError where B x G is
        not a multiple of the size."""
        if self.rollouts % group_size:
            raise ScenarioError(
                "workload.group_size",
                f"{self.rollouts} rollouts per step cannot be dealt into groups of {group_size}; "
                "make batch_groups x group_size a multiple of every candidate size",
            )
        return Batch(self.rollouts // group_size, group_size)


@dataclass(frozen=True, slots=True)
class Launch:
    """What is put in flight.

    over_sampling: groups launched at the start of a step, as a multiple of the batch (one wave).
    rollouts: rollouts launched per group, as a multiple of the group size; the first to finish win.
    source: where a wave's groups come from: the buffer of unfinished groups first (oldest first),
        then fresh prompts; or only one of the two.
    refill: what keeps the number in flight constant: nothing, a new group for each complete group,
        or a new group as soon as finished rollouts have freed enough slots.
    run_ahead: updates that rollouts may be behind the trainer when they start: 0 is on-policy, 1
        trains batch k while batch k + 1 is generated. Where unfinished rollouts are to be kept,
        groups start as long as all that started can be trained on within so many updates.
    """

    over_sampling: float = 1.0
    rollouts: float = 1.0
    source: Literal["buffer_first", "fresh", "buffer"] = "buffer_first"
    refill: Literal["none", "group", "rollout"] = "none"
    run_ahead: int = 0

    def groups_in_wave(self, batch: Batch) -> int:
        """Groups in a wave, rounded up."""
        return math.ceil(batch.groups * self.over_sampling - 1e-9)

    def rollouts_per_group(self, group_size: int) -> int:
        """Rollouts launched for a fresh group, rounded up."""
        return math.ceil(group_size * self.rollouts - 1e-9)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a stop rule may look at: complete groups that count, groups needed, rollouts in flight,
    seconds since the step's rollouts began."""

    accepted_groups: int
    needed_groups: int
    in_flight_rollouts: int
    elapsed_s: float


class Stop(Protocol):
    """When the rollout phase ends. ``limit_s`` is when to look again even if nothing happened."""

    @property
    def limit_s(self) -> float | None:
        """Seconds after the phase's start at which the rule must be asked, if any."""
        ...

    def __call__(self, progress: Progress) -> bool:
        """Whether to end the phase now."""
        ...


@dataclass(frozen=True, slots=True)
class AllDone:
    """Stop when every rollout in flight has finished."""

    limit_s: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """Whether nothing is in flight."""
        return progress.in_flight_rollouts == 0


@dataclass(frozen=True, slots=True)
class EnoughGroups:
    """Stop as soon as the batch's groups are complete (APRIL, arXiv 2509.18521)."""

    limit_s: float | None = None

    def __call__(self, progress: Progress) -> bool:
        """Whether enough groups count."""
        return progress.accepted_groups >= progress.needed_groups


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Stop when the batch is complete or, with at least one complete group, after ``limit_s``."""

    limit_s: float | None

    def __call__(self, progress: Progress) -> bool:
        """Whether the time is up or the batch complete."""
        if progress.accepted_groups >= progress.needed_groups:
            return True
        late = self.limit_s is not None and progress.elapsed_s >= self.limit_s
        return late and progress.accepted_groups > 0


@dataclass(frozen=True, slots=True)
class Filter:
    """Complete groups to reject, and what is launched in their place.

    rule: says of a group's rewards whether to keep it.
    refill_groups: groups launched when the batch can no longer be filled by what is in flight; None
        is a whole wave.
    refill_when: ``short``, as soon as that is so (slime); ``drained``, once nothing is in flight
        (verl).
    """

    rule: Callable[[Sequence[float]], bool]
    refill_groups: int | None = None
    refill_when: Literal["short", "drained"] = "short"


class Selector(Protocol):
    """Chooses which of a complete group's rollouts to train on."""

    @property
    def keep(self) -> int:
        """How many it keeps."""
        ...

    def __call__(self, rewards: Sequence[float], group: int) -> list[int]:
        """The positions kept of these rewards of group number ``group``, rising. Raises
        ScenarioError where ``keep`` exceeds the group."""
        ...


@dataclass(frozen=True, slots=True)
class Staleness:
    """How old unfinished work may grow, in versions of the weights.

    max_versions: a buffered or interrupted group whose oldest token is older than this is not
        resumed; None is no bound.
    exceeded: such a group's prompt restarts from nothing, or is dropped.
    mask_off_policy: tokens of earlier versions are masked in the loss; their rewards still count.
    """

    max_versions: int | None = None
    exceeded: Literal["restart", "drop"] = "restart"
    mask_off_policy: bool = False


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Every decision of one step; the defaults are synchronous RL.

    unfinished: what becomes of rollouts in flight when the phase ends: their tokens are dropped;
        they resume from them in a later step; their prompts restart from nothing; or they are kept
        running, through the update and, interrupted by it, the weight sync (on-policy there is
        nothing to run through, and they resume). surplus: of complete groups beyond the batch.
    """

    batch: Batch
    step: int = 0
    launch: Launch = Launch()
    stop: Stop = AllDone()
    unfinished: Unfinished = "discard"
    surplus: Surplus = "carry"
    filter: Filter | None = None
    select: tuple[Selector, ...] = ()
    advantages: Advantages = "after_selection"
    layout: Layout = "dense"
    staleness: Staleness = Staleness()

    @property
    def keeps_running(self) -> bool:
        """Whether rollouts run on while their predecessors are trained on."""
        return self.unfinished == "keep" and self.launch.run_ahead > 0

    def check(self) -> None:
        """Raises ScenarioError for a plan that contradicts itself."""
        if self.batch.groups < 1 or self.batch.group_size < 1:
            raise ScenarioError("workload.batch_groups", "a step needs at least one group of one")
        kept = self.launch.rollouts_per_group(self.batch.group_size)
        if kept < self.batch.group_size or self.launch.over_sampling < 1:
            raise ScenarioError("policy", "a plan must launch at least what the batch needs")
        size = self.batch.group_size
        for selector in self.select:
            if selector.keep > size:
                raise ScenarioError(
                    "policy.pods.keep",
                    f"keeps {selector.keep} rollouts of a group of {size}; "
                    f"it must be at most the group size, {size}",
                )
            size = selector.keep


def describe(value: Any) -> Any:
    """A plan, or any part of one, as plain data that two worlds' decision logs can be compared by:
    dataclasses as mappings that name their class, everything else as it is."""
    if is_dataclass(value) and not isinstance(value, type):
        fields = {name: describe(getattr(value, name)) for name in value.__dataclass_fields__}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, list | tuple):
        return [describe(item) for item in value]
    return value


__all__ = [
    "Advantages",
    "AllDone",
    "Batch",
    "EnoughGroups",
    "Filter",
    "Launch",
    "Layout",
    "Progress",
    "Selector",
    "Staleness",
    "StepPlan",
    "Stop",
    "Surplus",
    "TimeLimit",
    "Unfinished",
    "describe",
]
