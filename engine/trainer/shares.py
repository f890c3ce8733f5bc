"""Which rank computes which rollouts of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from rollcast.engine.trainer.batch import Example
from rollcast.engine.trainer.microbatch import dense_width, suffix_width


def shares(examples: Sequence[Example], ranks: int, *, shared_prefix: bool) -> list[list[Example]]:
    """Each rank's rollouts, in their order; one may have none.

    The longest first, to the rank with the fewest tokens so far: every rank that knows the batch
    comes to the same. With ``shared_prefix`` a group stays on one rank, for its prompt is computed
    there once.
    """
    if ranks == 1:
        return [[*examples]]
    units: dict[int, list[int]] = {}
    for place, example in enumerate(examples):
        units.setdefault(example.group if shared_prefix else place, []).append(place)
    costs = {
        unit: _tokens([examples[place] for place in places], shared_prefix)
        for unit, places in units.items()
    }
    taken: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for unit in sorted(units, key=lambda unit: -costs[unit]):
        rank = loads.index(min(loads))
        taken[rank] += units[unit]
        loads[rank] += costs[unit]
    return [[examples[place] for place in sorted(places)] for places in taken]


def _tokens(examples: Sequence[Example], shared_prefix: bool) -> int:
    """What is fed to the model for these, of one group where they share a prefix."""
    if not shared_prefix or len(examples) < 2:
        return sum(map(dense_width, examples))
    return len(examples[0].prompt) - 1 + sum(map(suffix_width, examples))
