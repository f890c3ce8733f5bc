"""What an update costs that the trainer gets in parts."""

from __future__ import annotations

import math

from rollcast.simulator.costs.base import CostModel, TrainLoad

_ONCE = ("gradient_exchange", "optimizer", "overhead", "rest")


class Streamed:
    """Prices an update in parts.

    A pass (log-probabilities, forward, backward) costs what its part does; the gradients' exchange,
    the optimiser's step and fixed seconds come with the last part. With a cost model of one
    ``train`` phase, a part costs what it adds to those before.
    """

    def __init__(self, cost: CostModel) -> None:
        self._cost = cost
        self._before: list[TrainLoad] = []

    def part(self, load: TrainLoad, final: bool) -> list[tuple[str, float]]:
        """The phases of the next part of an update and their seconds; ``final``: the last one."""
        whole = self._cost.train(load).phases_s
        if final and not self._before:
            return [*whole]
        phases = []
        for name, seconds in whole:
            if name == "train":
                seconds = self._added(load)
            if final or name not in _ONCE:
                phases.append((name, seconds))
        self._before = [] if final else [*self._before, load]
        return phases

    def _added(self, load: TrainLoad) -> float:
        def train_s(loads: list[TrainLoad]) -> float:
            if not loads:
                return 0.0
            phases = self._cost.train(_joined(loads)).phases_s
            return math.fsum(seconds for name, seconds in phases if name == "train")

        return max(train_s([*self._before, load]) - train_s(self._before), 0.0)


def _joined(loads: list[TrainLoad]) -> TrainLoad:
    return TrainLoad(
        [group for load in loads for group in load.groups],
        loads[0].shared_prefix,
        [equal for load in loads for equal in load.equal_rewards],
    )
