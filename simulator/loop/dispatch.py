"""Which of the rollouts that wait in the driver are handed to the replicas first."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rollcast.simulator.errors import RunError
from rollcast.simulator.plan import Dispatch
from rollcast.simulator.rollout import Group, Rollout
from rollcast.simulator.world import World

_FEW = 16
"""Of many that are held, rollouts that are found faster than by sorting all."""


def first_of(
    held: Sequence[Rollout],
    dispatch: Dispatch,
    count: int,
    groups: Mapping[int, Group],
    world: World,
) -> Sequence[Rollout]:
    """The first ``count`` of ``held`` in the order of ``dispatch``, by its predictor; notes the
    lengths that it predicts. groups: by number. Raises RunError for an oracle where nobody knows.
    """
    predictor = dispatch.predictor
    if predictor is None:
        return held[:count]
    finished: dict[int, list[int]] = {}
    for rollout in held:
        tokens = finished.get(rollout.group)
        if tokens is None:
            winners = groups[rollout.group].winners
            tokens = finished[rollout.group] = [winner.new_tokens for winner in winners]
        rollout.expected_tokens = predictor(_Known(rollout, tokens, world))
    if dispatch.order == "fifo":
        return held[:count]
    longest = dispatch.order == "longest_first"

    def place(rollout: Rollout) -> tuple[float, int]:
        expected = rollout.expected_tokens
        if expected is None:
            return (-math.inf if longest else math.inf), rollout.index
        return (-expected if longest else expected), 0

    # either way equals stay in order of launch
    if count > _FEW:
        return sorted(held, key=place)[:count]
    return heapq.nsmallest(count, held, key=place)


class _Known(NamedTuple):
    """A rollout as predictors see it."""

    rollout: Rollout
    siblings_tokens: Sequence[int]
    world: World

    @property
    def prompt(self) -> int:
        return self.rollout.prompt

    @property
    def new_tokens(self) -> int:
        return self.rollout.new_tokens

    def oracle_tokens(self) -> int:
        tokens = self.world.oracle_tokens(self.rollout)
        if tokens is None:
            raise RunError(
                f"the {self.world.name} world does not know lengths beforehand: a policy that asks "
                "an oracle runs in simulation only"
            )
        return tokens
