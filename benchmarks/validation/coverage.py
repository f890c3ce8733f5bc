"""Whether nine of ten held-out figures lie inside their 90 % intervals, as they should."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.validation.verdict import Case, Source

LEAST, MOST = 0.85, 0.95  # of the cases inside, where an interval of 90 % is honest
_WIDTH = 2 * 1.645  # of a normal's middle 90 %, in standard deviations
OTHERS = frozenset({"peers"})  # forecasts of other simulators are no measurements


@dataclass(frozen=True, slots=True)
class Coverage:
    """Held-out cases of one kind that have an interval.

    name: of the kind. cases: how many. inside: how many were measured inside theirs. spread: the
    mean standard deviation of the log that the intervals stand for.
    """

    name: str
    cases: int
    inside: int
    spread: float

    @property
    def share(self) -> float:
        """Of the cases, inside."""
        return self.inside / self.cases


def held(cases: Iterable[Case]) -> list[Case]:
    """The held-out cases with an interval."""
    return [c for c in cases if c.role == "held out" and c.low is not None and c.high is not None]


def of_cases(name: str, cases: Iterable[Case]) -> Coverage | None:
    """Their coverage; None where there are none."""
    judged = [(case, case.low or 0.0, case.high or math.inf) for case in held(cases)]
    if not judged:
        return None
    inside = sum(low <= case.measured <= high for case, low, high in judged)
    spread = sum(math.log(high / low) for _, low, high in judged) / _WIDTH / len(judged)
    return Coverage(name, len(judged), inside, spread)


def by_source(sources: Sequence[Source]) -> list[Coverage]:
    """Of each source that has intervals, and of all together at the end."""
    judged = [source for source in sources if source.key not in OTHERS]
    rows = [of_cases(source.short_title, source.cases) for source in judged]
    everything = of_cases("all", (case for source in judged for case in source.cases))
    return [row for row in (*rows, everything) if row is not None]
