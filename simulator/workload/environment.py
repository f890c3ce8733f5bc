"""A scenario's ``environment`` and ``reward``: what answers a turn, and what judges a rollout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from simulator.options import Above, Between, Doc, Options
from simulator.plan import Failed
from simulator.workload.seconds import (
    LARGEST_S,
    DrawnSeconds,
    Seconds,
    SecondsModel,
    TurnSeconds,
    seconds_model,
)
from simulator.workload.slots import EnvironmentSpec, Held, PutAway

MAX_SLOTS = 10_000_000
_SLOTS = Between(1, MAX_SLOTS)


@dataclass(frozen=True, slots=True)
class EnvironmentSection(Options):
    """What answers the turns of a rollout: a sandbox, a search, a calculator."""

    FIELD = "environment"

    turn_s: Annotated[
        TurnSeconds | None,
        Doc("seconds of an answer; null is what the trace says, or none"),
    ] = None
    slots: Annotated[
        int | None, _SLOTS, Doc("environments at once; null is no limit", unit="slots")
    ] = None
    held: Annotated[
        Held,
        Doc("how long a rollout has its slot: for a call, or for the whole rollout, from before "
            "its first turn on"),
    ] = "call"  # fmt: skip
    boot_s: Annotated[
        Seconds, Doc("seconds of a boot, once a rollout, before its first answer")
    ] = 0.0
    timeout_s: Annotated[
        float | None,
        Above(0, LARGEST_S),
        Doc("at which an answer is given up, and the rollout with it; null waits for ever"),
    ] = None
    failure: Annotated[
        float, Between(0, 1, below=True), Doc("probability that a call fails", unit="share")
    ] = 0.0
    retry: Annotated[
        int, Between(0, 100), Doc("times that a failed call is made again", unit="times")
    ] = 0
    failed: Annotated[
        Failed,
        Doc("what becomes of a rollout whose environment failed for good, or timed out: it counts, "
            "with a reward of 0, or another starts in its place"),
    ] = "keep"  # fmt: skip
    put_away: Annotated[
        PutAway,
        Doc("what becomes of the environment of a rollout that is put away for a later step: it is "
            "kept and works on, or closed, and then booted anew and brought to where it was"),
    ] = "keep"  # fmt: skip

    def agree(self) -> None:
        """Calls end, and environments boot in time."""
        limit, boot = self.timeout_s, self.boot_s
        boot_s = boot.median_s if isinstance(boot, DrawnSeconds) else boot
        if limit is not None and boot_s >= limit:
            raise self.refuse(
                "timeout_s",
                f"is {limit:g}, and an environment boots in {boot_s:g} (environment.boot_s): make "
                "it longer",
            )
        if self.answers.hang > 0 and limit is None:
            raise self.refuse(
                "timeout_s", "missing; some answers never come (turn_s.hang), so give a limit"
            )
        if isinstance(boot, DrawnSeconds) and boot.hang > 0:
            raise self.refuse("boot_s.hang", "a boot ends; leave this out")

    @property
    def answers(self) -> SecondsModel:
        """What answers take; nothing where it is not said."""
        return seconds_model(0.0 if self.turn_s is None else self.turn_s)


@dataclass(frozen=True, slots=True)
class RewardSection(Options):
    """What judges a rollout after its last turn: a test suite, a judge that is a model."""

    FIELD = "reward"

    seconds: Annotated[Seconds, Doc("that judging a rollout takes", unit="seconds")]
    slots: Annotated[
        int | None, _SLOTS, Doc("rollouts judged at once; null is no limit", unit="slots")
    ] = None

    def agree(self) -> None:
        """Judgements end."""
        if isinstance(self.seconds, DrawnSeconds) and self.seconds.hang > 0:
            raise self.refuse("seconds.hang", "a judgement ends; leave this out")


def environment_spec(
    environment: EnvironmentSection | None, reward: RewardSection | None
) -> EnvironmentSpec:
    """The pools of these sections."""
    given = environment or EnvironmentSection()
    return EnvironmentSpec(
        given.slots, given.held, given.put_away, None if reward is None else reward.slots
    )


__all__ = ["EnvironmentSection", "RewardSection", "environment_spec"]
