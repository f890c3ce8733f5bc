"""How many environments and judges there are, and how long a rollout has one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollcast.simulator.errors import ScenarioError

Held = Literal["call", "rollout"]
OnSuspend = Literal["keep", "close"]


@dataclass(frozen=True, slots=True)
class EnvironmentSpec:
    """Pools of environments and judges.

    slots, reward_slots: environments and judgements at once; None: unlimited. held: a rollout holds
    its slot for a ``call`` (boot or answer) or for the whole ``rollout``. on_suspend: a
    suspended rollout's environment is kept and works on, or closed; then the next call boots it and
    repeats what it had been asked.
    """

    slots: int | None = None
    held: Held = "call"
    on_suspend: OnSuspend = "keep"
    reward_slots: int | None = None

    def __post_init__(self) -> None:
        for field, slots in (("environment", self.slots), ("reward", self.reward_slots)):
            if slots is not None and slots < 1:
                raise ScenarioError(f"{field}.slots", "must be at least 1")


UNLIMITED = EnvironmentSpec()
"""As many slots as anybody wants."""
