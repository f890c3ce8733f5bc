"""How many environments and judges there are, and how long a rollout has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.simulator.errors import ScenarioError

Held = Literal["call", "rollout"]
PutAway = Literal["keep", "close"]


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """What environments and judges there are.

    slots: environments at once; reward_slots: rollouts judged at once; None is no limit. held: how
    long a rollout has its slot: for a ``call``, which is its boot or its answer to a turn, or for
    the whole ``rollout``, from before its first turn on. put_away: whether the environment of a
    rollout that is suspended is kept, and works on (its slot is not, once it has answered), or is
    closed: then its next call boots it anew and repeats all that it had been asked.
    """

    slots: int | None = None
    held: Held = "call"
    put_away: PutAway = "keep"
    reward_slots: int | None = None

    def __post_init__(self) -> None:
        for field, slots in (("environment", self.slots), ("reward", self.reward_slots)):
            if slots is not None and slots < 1:
                raise ScenarioError(f"{field}.slots", "must be at least 1")


UNLIMITED = EnvironmentSpec()
"""As many slots as anybody wants."""
