"""Releases of a stack: those that a run may be of, and those that have something."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Releases that a run may be of: from ``since`` on, before ``until``; None: not known."""

    since: str | None = None
    until: str | None = None

    def __str__(self) -> str:
        since = f" {self.since} or later" if self.since else ""
        return since + (f"{',' if since else ''} before {self.until}" if self.until else "")


ANY = Span()


@dataclass(frozen=True, slots=True)
class Bounds:
    """since, until: the first release that has something, and the first that has it no more; None
    where it is not known, or holds still."""

    since: str | None = None
    until: str | None = None

    def holds(self, release: str | None) -> bool:
        """Whether a release has it; without a release, whether the latest does."""
        if release is None:
            return self.until is None
        before = self.since is not None and ordered(release) < ordered(self.since)
        after = self.until is not None and ordered(release) >= ordered(self.until)
        return not before and not after

    def within(self, span: Span) -> bool:
        """Whether a release in a span has it."""
        before = None not in (self.since, span.until) and later(self.since, span.until)
        after = None not in (self.until, span.since) and later(span.since, self.until)
        return not before and not after


def narrowed(one: Span, other: Span) -> Span:
    """The releases in both; of the first where there are none."""
    since = max(filter(None, (one.since, other.since)), key=ordered, default=None)
    until = min(filter(None, (one.until, other.until)), key=ordered, default=None)
    if since is not None and until is not None and later(since, until):
        return one
    return Span(since, until)


def ordered(release: str) -> tuple[int, ...]:
    """By which releases are sorted: the numbers of one, without what is no number."""
    return tuple(int(part) for part in release.split(".") if part.isdigit())


def later(one: str | None, other: str | None) -> bool:
    """Whether a release is another, or comes after it."""
    return ordered(one or "") >= ordered(other or "")
