"""The longest rollout of a group: how often it exceeds a length, and one put into a workload."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.workload.base import DerivedWorkload, Workload
from rollcast.simulator.workload.draws import GroupDraw
from rollcast.simulator.workload.lengths import LengthModel

FloatArray = NDArray[np.float64]

_POINTS = 200  # lengths, from where the tail begins to the cap
_NODES = np.arange(-8.6, 8.61, 0.2)  # of a standard normal: the trapezoid rule
_WEIGHTS = np.exp(-0.5 * _NODES**2) / np.exp(-0.5 * _NODES**2).sum()


def tail_of_groups(lengths: LengthModel, size: int, beyond: int, cap: int) -> tuple[float, float]:
    """(probability that the longest of a prompt's ``size`` rollouts exceeds ``beyond`` tokens, its
    mean then); (0, ``beyond``) if none can."""
    if beyond >= cap:
        return 0.0, float(beyond)
    tokens = np.geomspace(max(beyond, 1), cap, _POINTS)
    log_tokens = np.log(tokens)
    shorter = np.zeros(_POINTS)
    for weight, component in zip(lengths.weights, lengths.components, strict=True):
        for z, node in zip(_NODES, _WEIGHTS, strict=True):
            shorter += weight * node * (1.0 - component.sf_given(z, log_tokens)) ** size
    if lengths.runaway > 0:
        shorter *= float(_WEIGHTS @ (1.0 - lengths.runaway_given(_NODES)) ** size)
    longer = np.clip(1.0 - shorter, 0.0, 1.0)
    if longer[0] <= 1e-12:
        return 0.0, float(beyond)
    area = float(np.diff(tokens) @ (longer[1:] + longer[:-1])) / 2
    return float(longer[0]), float(tokens[0]) + area / float(longer[0])


@dataclass(frozen=True)
class WithOne(DerivedWorkload):
    """A workload of which one group's first rollout has ``tokens`` tokens."""

    base: Workload
    group: int
    tokens: int

    def _changed(
        self, drawn: GroupDraw, group: int, attempt: int, prompt: int | None, visit: int
    ) -> GroupDraw:
        if group != self.group or attempt:
            return drawn
        return replace(drawn, new_tokens=[self.tokens, *drawn.new_tokens[1:]])
