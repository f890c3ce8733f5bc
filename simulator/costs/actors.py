"""What it costs that replicas and trainer are processes of their own on one machine.

Beside the work itself there is the way from one process to another, and what processes that work at
the same time take from each other: cores that the driver and others need too, caches, and memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from simulator.options import AtLeast, Between, Doc, Options

_SECONDS = Between(0, 1e6)
_TIMES = Between(1, 1000)


@dataclass(frozen=True, slots=True)
class ActorCosts(Options):
    """Seconds between a replica, the trainer and the driver, and how much slower each is beside
    another. Without it all of that is nothing.

    The slowing grows with who works: what one other actor costs is measured, each further one is
    taken to cost as much again while there are cores for all, and beyond that they share the cores
    evenly. All actors are on one machine. Raises ScenarioError(``cost.linear.actors.<name>``).
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
        Doc("from an update's order to the next step's first rollouts, where that is opened at "
            "once: the driver saves the run in between"),
    ] = 0.0  # fmt: skip
    load_s: Annotated[
        float,
        _SECONDS,
        Doc("the part of sync_s in which a replica stands still to take new weights in"),
    ] = 0.0
    check_s: Annotated[
        float,
        _SECONDS,
        Doc("the part of sync_s in which an idle replica is compared with the trainer; none where "
            "rollouts run"),
    ] = 0.0  # fmt: skip
    iteration_beside: Annotated[
        float,
        _TIMES,
        Doc("an iteration beside one other actor that works, over one alone", unit="times"),
    ] = 1.0
    update_beside: Annotated[
        float,
        _TIMES,
        Doc("an update beside one other actor that works, over one alone", unit="times"),
    ] = 1.0
    cores: Annotated[
        int | None,
        AtLeast(1),
        Doc("of the machine that the actors share; null is enough for all", unit="cores"),
    ] = None

    def slower_iterations(self, working: int) -> float:
        """How many times as long an iteration takes while so many actors work, its own included."""
        return self._slower(self.iteration_beside, working)

    def slower_updates(self, working: int) -> float:
        """The same of an update."""
        return self._slower(self.update_beside, working)

    def _slower(self, beside: float, working: int) -> float:
        if working < 2:
            return 1.0
        room = working if self.cores is None else max(self.cores, 2)  # two were measured
        waiting = max(working - room, 0)
        shared = 0.0 if self.cores is None else waiting / self.cores
        return 1.0 + (beside - 1.0) * (min(working, room) - 1) + shared
