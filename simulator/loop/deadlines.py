"""Which groups a batch must take now so that none left over grows too old: earliest deadline
first."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Due(NamedTuple):
    """What a batch must take. taken: positions of ready groups. missing: groups needed that are not
    ready. until: the latest deadline a missing one may have."""

    taken: list[int]
    missing: int
    until: float


def due(ready: Sequence[float], unready: Sequence[float], step: int, batch: int, slots: int) -> Due:
    """What the batch of ``step`` must take, at most ``slots`` groups.

    ready, unready: per group the last step whose batch may hold it, infinite for any; the ready
    ones in the order wanted. batch: groups that each later step takes.

    Of groups with deadlines up to d, the steps between can take ``batch * (d - step)``; the others
    are due now. If that holds for every d, later steps take all of them in time (Jackson's rule of
    earliest deadlines, Management Science Research Project 43, 1955).
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
