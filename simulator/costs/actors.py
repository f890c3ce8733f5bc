"""What it costs that replicas and trainer are processes of their own on one machine.

Beside the work itself there is the way from one process to another, and what processes that work at
the same time take from each other: cores that the driver and others need too, caches, and memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from rollcast.simulator.values import AtLeast, Between, Doc, Options

_SECONDS = Between(0, 1e6)
_TIMES = Between(1, 1000)


@dataclass(frozen=True, slots=True)
class ActorCosts(Options):
    """Seconds between a replica, the trainer and the driver, and how much slower each is beside
    another. Without it all of that is nothing.

    The slowing grows with who works: what one other actor costs is measured, each further one is
    taken to cost as much again while there are cores for all, and beyond that they wait for each
    other. All actors are on one machine. Raises ScenarioError(``cost.linear.actors.<name>``).
    """

    FIELD = "cost.linear.actors"

    to_trainer_s: Annotated[
        float, _SECONDS, Doc("from the last rollout that an update waits for to its beginning")
    ] = 0.0
    from_trainer_s: Annotated[
        float, _SECONDS, Doc("from an update's end until its weights are sent")
    ] = 0.0
    open_s: Annotated[
        float,
        _SECONDS,
        Doc(
            "from an update's order to the next step's first rollouts, where that is opened at "
            "once: the driver saves the run in between"
        ),
    ] = 0.0
    load_s: Annotated[
        float,
        _SECONDS,
        Doc("the part of sync_s in which a replica stands still to take new weights in"),
    ] = 0.0
    check_s: Annotated[
        float,
        _SECONDS,
        Doc(
            "the part of sync_s in which an idle replica is compared with the trainer; none where "
            "rollouts run"
        ),
    ] = 0.0
    iteration_beside: Annotated[
        float,
        _TIMES,
        Doc("an iteration beside a trainer that works, over one alone", unit="times"),
    ] = 1.0
    iteration_among: Annotated[
        float | None,
        _TIMES,
        Doc(
            "an iteration beside one other replica that works, over one alone; null is as beside "
            "the trainer",
            unit="times",
        ),
    ] = None
    update_beside: Annotated[
        float,
        _TIMES,
        Doc("an update beside one replica that works, over one alone", unit="times"),
    ] = 1.0
    iteration_crowded: Annotated[
        float,
        AtLeast(0),
        Doc(
            "what an iteration waits where there are fewer cores than actors that work, over an "
            "even share of them",
            unit="times",
        ),
    ] = 1.0
    update_crowded: Annotated[float, AtLeast(0), Doc("the same of an update", unit="times")] = 1.0
    cores: Annotated[
        int | None,
        AtLeast(1),
        Doc("of the machine that the actors share; null is enough for all", unit="cores"),
    ] = None

    def slower_iterations(self, replicas: int, training: bool) -> float:
        """How many times as long an iteration takes while so many replicas work, its own included,
        and the trainer does or not."""
        among = self.iteration_beside if self.iteration_among is None else self.iteration_among
        beside = [among] * (replicas - 1) + [self.iteration_beside] * training
        return self._slower(beside, self.iteration_crowded)

    def slower_updates(self, replicas: int) -> float:
        """The same of an update."""
        return self._slower([self.update_beside] * replicas, self.update_crowded)

    def waiting(self, working: int) -> float:
        """How many times as long again everything takes where so many actors work and wait for the
        cores evenly; 0 where there are enough."""
        return 0.0 if self.cores is None else max(working - self._room, 0) / self.cores

    @property
    def _room(self) -> float:
        """For how many actors there are cores; two were measured."""
        return math.inf if self.cores is None else max(self.cores, 2)

    def _slower(self, beside: Sequence[float], crowded: float) -> float:
        """beside: what each of the others that work costs, where it alone does."""
        if not beside:
            return 1.0
        working = len(beside) + 1
        mean = sum(times - 1.0 for times in beside) / len(beside)
        return 1.0 + mean * (min(working, self._room) - 1) + crowded * self.waiting(working)
