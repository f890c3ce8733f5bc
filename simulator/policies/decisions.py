"""Which decisions of a plan each policy of a chain makes, and the errors and warnings for overlaps.

A policy declares them (`simulator.core.policy.Policy.decides`); otherwise they are found by
comparing plans, and then only a warning follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, get_type_hints

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.core.policy import Chain, Policy
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import join, nearest, short


def _paths() -> tuple[str, ...]:
    hints = get_type_hints(StepPlan)
    paths: list[str] = []
    for decision in fields(StepPlan):
        hint = hints[decision.name]
        if isinstance(hint, type) and is_dataclass(hint):
            paths += [f"{decision.name}.{inner.name}" for inner in fields(hint)]
        elif decision.name != "step":
            paths.append(decision.name)
    return tuple(paths)


DECISIONS = _paths()
"""Every decision of a plan: ``stop``, ``launch.over_sampling``, ..."""

EXCLUSIVE: Mapping[str, str] = MappingProxyType(
    {
        "batch.group_size": "the group size",
        "launch.over_sampling": "how much is launched",
        "launch.run_ahead": "how far rollouts run ahead of the trainer",
        "filter": "which groups are rejected",
    }
)
"""Decisions, in words, that two policies of a chain may not both make, unless the later one builds
on the earlier one's."""


def changed(before: StepPlan, after: StepPlan) -> frozenset[str]:
    """The decisions in which two plans differ."""
    return frozenset(path for path in DECISIONS if value(before, path) != value(after, path))


def value(plan: StepPlan, path: str) -> Any:
    """What a plan decides."""
    return attrgetter(path)(plan)


@dataclass(frozen=True, slots=True)
class Claim:
    """A policy's part in a plan: decisions that it makes, and those that it builds on."""

    name: str
    decides: frozenset[str]
    builds_on: frozenset[str]

    @property
    def overwrites(self) -> frozenset[str]:
        """What it decides whatever was decided before."""
        return self.decides - self.builds_on


@dataclass(frozen=True, slots=True)
class Made:
    """A policy's effect on the first step's plan. learns: whether it has a state."""

    claim: Claim
    before: StepPlan
    after: StepPlan
    learns: bool


def claim(policy: Policy, name: str, known: frozenset[str] = frozenset()) -> Claim:
    """What a policy declares, with what it was ``found`` to change.

    Raises ScenarioError (``policy.NAME``) where it declares what is no decision of a plan.
    """
    declared = _expanded(getattr(policy, "decides", None) or (), name, "decides")
    return Claim(
        name,
        declared | known,
        _expanded(getattr(policy, "builds_on", None) or (), name, "builds_on"),
    )


def made(policy: Chain, plan: StepPlan, names: Sequence[str]) -> list[Made]:
    """Each member's part in the first step's plan. names: of the members."""
    changes = []
    for member, name in zip(policy.policies, names, strict=True):
        state = member.init()
        after = member.plan(plan, state)
        mine = claim(member, name, changed(plan, after))
        changes.append(Made(mine, plan, after, state is not None))
        plan = after
    return changes


def check_together(claims: Sequence[Claim]) -> None:
    """Raises ScenarioError (``policy.NAME``) for a policy that overwrites what another rests upon,
    or leaves it without effect."""
    for place, later in enumerate(claims):
        for earlier in claims[:place]:
            _check_pair(earlier, later)
    for place, earlier in enumerate(claims):
        rest = claims[place + 1 :]
        taken = frozenset().union(*(later.overwrites for later in rest))
        if earlier.decides and earlier.decides <= taken:
            others = [later.name for later in rest if later.overwrites & earlier.decides]
            if earlier.name in others:
                raise _twice(earlier)
            raise _wrong(
                earlier,
                f"has no effect: {' and '.join(dict.fromkeys(others))} after it decides "
                f"{_listed(earlier.decides)}; leave one out",
            )


def _check_pair(earlier: Claim, later: Claim) -> None:
    both = [
        words for path, words in EXCLUSIVE.items() if path in earlier.decides & later.overwrites
    ]
    if both and earlier.name == later.name:
        raise _twice(later)
    if both:
        remedy = "keep one of them"
        if ":" in later.name:
            remedy += ", or declare in builds_on what it goes on from"
        raise _wrong(
            later, f"contradicts {earlier.name}: each decides {' and '.join(both)}; {remedy}"
        )
    if needed := (earlier.builds_on - earlier.decides) & later.decides:
        raise _wrong(
            earlier, f"must come after {later.name}: it goes by {_listed(needed)}, decided there"
        )


def overrides(chain: Sequence[Made]) -> list[str]:
    """A sentence for each pair of policies of which the later overwrites the earlier's decision."""
    reported: dict[tuple[str, str], list[str]] = {}
    authors: dict[str, str] = {}
    for member in chain:
        claimed, really = member.claim, changed(member.before, member.after)
        for path in (path for path in DECISIONS if path in claimed.overwrites and path in authors):
            pair = claimed.name, authors[path]
            if path in really:
                was, now = (_shown(value(p, path)) for p in (member.before, member.after))
                reported.setdefault(pair, []).append(f"{path} ({now} in place of {was})")
            elif member.learns:
                reported.setdefault(pair, []).append(path)
        authors.update(dict.fromkeys((claimed.decides & really) | claimed.overwrites, claimed.name))
    return [
        f"in the policy, {later} overrides what {earlier} decided: {', '.join(paths)}"
        for (later, earlier), paths in reported.items()
    ]


def _expanded(paths: Iterable[str], name: str, attribute: str) -> frozenset[str]:
    """Decisions named one by one, or a whole part of a plan such as ``batch``."""
    field = join(join("policy", name), attribute)
    wanted = "a set of a plan's decisions, such as {'stop', 'launch.over_sampling'}"
    if isinstance(paths, str) or not isinstance(paths, Iterable):
        raise ScenarioError(field, f"must be {wanted}, got {short(paths)}")
    names: set[str] = set()
    for path in paths:
        below = [
            decision
            for decision in DECISIONS
            if decision == path or decision.startswith(f"{path}.")
        ]
        if not below:
            hint = nearest(str(path), DECISIONS)
            raise ScenarioError(field, f"{path!r} is no decision of a plan; {hint}")
        names.update(below)
    return frozenset(names)


def _wrong(policy: Claim, message: str) -> ScenarioError:
    return ScenarioError(join("policy", policy.name), message)


def _twice(policy: Claim) -> ScenarioError:
    return _wrong(policy, "is listed twice; keep one of them")


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(path for path in DECISIONS if path in frozenset(paths))


def _shown(decision: Any) -> str:
    return type(decision).__name__ if is_dataclass(decision) else short(decision)
