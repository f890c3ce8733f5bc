"""Costs of replicas and a trainer in processes of their own: the ways between them, and how much
slower each is while the other works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rollcast.simulator.values import Between, Doc, Options

_SECONDS = Between(0, 1e6)
_TIMES = Between(1, 1000)
RETIRED = ("iteration_among", "iteration_crowded", "update_crowded", "cores")
"""Keys of fitted files of earlier versions, which priced a shortage of CPU cores: ignored."""


@dataclass(frozen=True, slots=True)
class ActorCosts(Options):
    """Seconds between a replica, the trainer and the driver, and slowdowns while both work. Without
    it all of that is nothing. Raises ScenarioError(``cost.linear.actors.<name>``)."""

    FIELD = "cost.linear.actors"

    to_trainer_s: Annotated[
        float,
        _SECONDS,
        Doc("time from the last rollout that an update waits for to the start of the update"),
    ] = 0.0
    from_trainer_s: Annotated[
        float, _SECONDS, Doc("time from the end of an update until its weights are sent")
    ] = 0.0
    open_s: Annotated[
        float,
        _SECONDS,
        Doc(
            "time from the start of an update to the first rollouts of the next step, if "
            "these need not wait for it; the driver saves the run in between"
        ),
    ] = 0.0
    load_s: Annotated[
        float, _SECONDS, Doc("part of sync_s in which a replica is paused to load new weights")
    ] = 0.0
    check_s: Annotated[
        float,
        _SECONDS,
        Doc(
            "part of sync_s in which an idle replica's weights are compared with the "
            "trainer's; none while rollouts run"
        ),
    ] = 0.0
    iteration_beside: Annotated[
        float,
        _TIMES,
        Doc(
            "duration of an iteration while the trainer works, relative to one without",
            unit="times",
        ),
    ] = 1.0
    update_beside: Annotated[
        float,
        _TIMES,
        Doc("duration of an update while a replica works, relative to one without", unit="times"),
    ] = 1.0
