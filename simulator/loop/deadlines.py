"""Which groups a batch has to take now, so that none of those left over grows too old to be trained
on: earliest deadlines first, as far as they bind."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Due(NamedTuple):
    """What a batch has to take.

    taken: positions of ready groups. missing: how many more, of groups that are not ready yet.
    until: the latest deadline that one of the missing may have.
    """

    taken: list[int]
    missing: int
    until: float


def due(ready: Sequence[float], unready: Sequence[float], step: int, batch: int, slots: int) -> Due:
    """What the batch of ``step`` has to take, at most ``slots`` groups.

    ready, unready: the last step whose batch may hold each group, infinite where any may; the ready
    ones in the order in which they are wanted. batch: groups that each later step takes.

    Of the groups that are too old after step d, ``batch * (d - step)`` can be left to the steps
    between; the others are due now. That suffices: where it holds of every d, the later steps can
    take all of them in time (Jackson's rule of earliest deadlines, Management Science Research
    Project 43, 1955).
    """
    by_deadline = Counter(last for last in ready if last != math.inf)
    by_deadline.update(last for last in unready if last != math.inf)
    taken: list[int] = []
    chosen: set[int] = set()
    outstanding = missing = 0
    until = -math.inf
    for last in sorted(by_deadline):
        outstanding += by_deadline[last]
        must = min(outstanding - batch * max(last - step, 0), slots)
        wanted = int(must) - len(taken) - missing
        if wanted <= 0:
            continue
        early = (i for i, deadline in enumerate(ready) if deadline <= last and i not in chosen)
        chosen_now = [i for i, _ in zip(early, range(wanted), strict=False)]
        taken += chosen_now
        chosen.update(chosen_now)
        if len(chosen_now) < wanted:
            missing += wanted - len(chosen_now)
            until = last
    return Due(taken, missing, until)
