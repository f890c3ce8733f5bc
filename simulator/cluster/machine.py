"""Replicas and a trainer of processes of their own: each is slower while the other works."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import simpy

from rollcast.simulator.cluster.replica import Replica
from rollcast.simulator.costs.actors import ActorCosts


class Machine:
    """An iteration keeps its initial pace; the trainer's work changes its in the middle."""

    def __init__(
        self, env: simpy.Environment, costs: ActorCosts, replicas: Sequence[Replica]
    ) -> None:
        self._env, self._costs, self._replicas = env, costs, replicas
        self._trainer: simpy.Process | None = None  # at work
        self._working = (False, False)  # whether any replica works, and whether the trainer does

    def settle(self) -> bool:
        """Sets everybody's pace at the end of an instant. Whether that changed anything."""
        working = any(replica.works for replica in self._replicas), self._trainer is not None
        if working == self._working:
            return False
        self._working = working
        slower = self._costs.iteration_beside if working[1] else 1.0
        for replica in self._replicas:
            replica.slow_down(slower)
        if self._trainer is not None:
            self._trainer.interrupt()
        return True

    def update(self, ticks: int) -> Generator[simpy.Event, Any, None]:
        """Work of the trainer that takes so many ticks where nobody else works; of its process."""
        env = self._env
        self._trainer = env.active_process
        left = float(ticks)
        try:
            while left > 0:
                slower = self._costs.update_beside if self._working[0] else 1.0
                began = env.now
                try:
                    yield env.timeout(max(round(left * slower), 1))
                    return
                except simpy.Interrupt:
                    left -= (env.now - began) / slower
        finally:
            self._trainer = None
