"""A key of a stack: what it says in ours, when it counts, and in which releases it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollcast.simulator.stacks.releases import ANY, Bounds, Span

NOT_SAID = object()  # of a default, which may well be null


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Bounds):
    """A key of a stack's, and the releases that have it. inverted: whether true there is false
    here. values: theirs by ours. where: what must hold in a run for it to count. also: theirs by
    their key, that a value of ours needs beside it. beside: what must hold in a run for it to be
    written with another of the same meaning, as another role has it. added: whether the stack's own
    configuration lacks it. part: a pattern whose first group alone of their value is meant; such a
    key is not written. fork: whether a fork of the stack alone has it: it is written only where a
    launch has it. spelt: how it is written, where that is not as the stack's other settings; empty
    where another setting says it. default: what the stack takes."""

    key: str
    inverted: bool = False
    values: Mapping[Any, Any] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict)
    beside: Mapping[str, Any] = field(default_factory=dict)
    added: bool = False
    part: str | None = None
    fork: bool = False
    spelt: str | None = None
    default: Any = NOT_SAID

    @property
    def has_default(self) -> bool:
        """Whether it is known what the stack takes."""
        return self.default is not NOT_SAID

    def current(self, release: str | None, span: Span) -> bool:
        """Whether the run's release has it, which the keys that it has tell where nothing else
        does."""
        if release is not None or span == ANY:
            return self.holds(release)
        return self.within(span)

    def counts(self, known: Mapping[str, Any]) -> bool | None:
        """Whether it counts in a run of which this is known, by our key; None: not known."""
        decided: bool | None = True
        for ours, wanted in self.where.items():
            if ours not in known:
                decided = None
            elif known[ours] not in (wanted if isinstance(wanted, list) else [wanted]):
                return False
        return decided

    def written_beside(self, known: Mapping[str, Any]) -> bool:
        """Whether another role of a run of which this is known has it, too."""
        wanted = self.beside.items()
        return bool(wanted) and all(known.get(ours) == value for ours, value in wanted)

    def says(self, theirs: Any) -> bool:
        """Whether a value of theirs says anything of ours: where a part of it does, if it has
        that."""
        return self.part is None or re.search(self.part, str(theirs)) is not None

    def ours(self, theirs: Any) -> Any:
        """Our value for one of theirs: itself, unless the table has another."""
        if self.part is not None and (match := re.search(self.part, str(theirs))):
            theirs = match[1]
        if self.inverted and isinstance(theirs, bool):
            return not theirs
        for ours, spelt in self.values.items():
            if any(same(theirs, one) for one in (spelt if isinstance(spelt, list) else [spelt])):
                return ours
        return theirs

    def takes(self, ours: Any) -> bool:
        """Whether it can say a value of ours."""
        return not self.values or any(same(ours, one) for one in self.values)

    def theirs(self, ours: Any) -> Any:
        """Their value for one of ours. Raises KeyError where the table has others alone."""
        if self.values:
            spelt = self.values[ours]
            return spelt[0] if isinstance(spelt, list) else spelt
        return not ours if self.inverted else ours


def same(given: Any, listed: Any) -> bool:
    """Whether two of a stack's values are one, however they are spelt."""
    one, other = str(as_yaml(given)).lower(), str(as_yaml(listed)).lower()
    return one == other or {one, other} <= {"null", "none"}


def as_yaml(value: Any) -> Any:
    """A value as YAML and most command lines spell it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value
