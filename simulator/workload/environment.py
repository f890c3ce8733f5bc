"""A scenario's ``environment`` and ``reward``: what answers a turn, and what judges a rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from rollcast.simulator.core.plan import Failed
from rollcast.simulator.values import Above, Between, Doc, Options
from rollcast.simulator.workload.seconds import (
    LARGEST_S,
    DrawnSeconds,
    Seconds,
    SecondsModel,
    TurnSeconds,
    seconds_model,
)
from rollcast.simulator.workload.slots import EnvironmentSpec, Held, OnSuspend

MAX_SLOTS = 10_000_000
_SLOTS = Between(1, MAX_SLOTS)


@dataclass(frozen=True, slots=True)
class EnvironmentSection(Options):
    """What answers the turns of a rollout: a sandbox, a search, a calculator."""

    FIELD = "environment"
    RENAMED: ClassVar[Mapping[str, str]] = {"put_away": "on_suspend"}

    turn_s: Annotated[
        TurnSeconds | None,
        Doc("time of one answer of the environment; null: taken from the trace, else 0"),
    ] = None
    slots: Annotated[
        int | None,
        _SLOTS,
        Doc("maximum number of environments at once; null: unlimited", unit="slots"),
    ] = None
    held: Annotated[
        Held,
        Doc(
            "when a rollout holds a slot: call (during each call) or rollout (from before "
            "its first turn until its end)"
        ),
    ] = "call"
    boot_s: Annotated[
        Seconds, Doc("time to start an environment, once per rollout, before its first answer")
    ] = 0.0
    timeout_s: Annotated[
        float | None,
        Above(0, LARGEST_S),
        Doc("time after which a call is abandoned and its rollout ends; null: never"),
    ] = None
    trial_timeout_s: Annotated[
        float | None,
        Above(0, LARGEST_S),
        Doc(
            "time in flight after which a rollout ends, all its turns together: queues, "
            "sampling, boot, environment and judge count, the time for which it is suspended "
            "until a later step does not; null: never"
        ),
    ] = None
    failure: Annotated[
        float, Between(0, 1, below=True), Doc("probability that a call fails", unit="share")
    ] = 0.0
    retry: Annotated[
        int, Between(0, 100), Doc("number of retries of a failed call", unit="times")
    ] = 0
    failed: Annotated[
        Failed,
        Doc(
            "handling of a rollout whose environment failed for good or timed out, or that "
            "reached trial_timeout_s: keep (it counts, with reward 0) or restart (another one "
            "starts in its place)"
        ),
    ] = "keep"
    on_suspend: Annotated[
        OnSuspend,
        Doc(
            "environment of a rollout that is suspended until a later step: keep (it goes on "
            "with its answer) or close (when the rollout resumes, it boots again and repeats its "
            "answers)"
        ),
    ] = "keep"

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
        trial = self.trial_timeout_s
        if trial is not None and limit is not None and trial < limit:
            raise self.refuse(
                "trial_timeout_s",
                f"is {trial:g}, and a single call may take {limit:g} (environment.timeout_s): make "
                "it longer, or the other shorter",
            )
        if trial is not None and boot_s >= trial:
            raise self.refuse(
                "trial_timeout_s",
                f"is {trial:g}, and an environment boots in {boot_s:g} (environment.boot_s): make "
                "it longer",
            )
        if self.answers.hang > 0 and limit is None and trial is None:
            raise self.refuse(
                "timeout_s",
                "missing; some answers never come (turn_s.hang), so give a limit, here or in "
                "trial_timeout_s",
            )
        if isinstance(boot, DrawnSeconds) and boot.hang > 0:
            raise self.refuse("boot_s.hang", "a boot ends; leave this out")

    @property
    def call_timeout_s(self) -> float:
        """After which a call is abandoned: no later than its rollout; infinite without a limit."""
        limits = (self.timeout_s, self.trial_timeout_s)
        return min((limit for limit in limits if limit is not None), default=math.inf)

    @property
    def answers(self) -> SecondsModel:
        """What answers take; nothing where it is not said."""
        return seconds_model(0.0 if self.turn_s is None else self.turn_s)


@dataclass(frozen=True, slots=True)
class RewardSection(Options):
    """What judges a rollout after its last turn: a test suite, a judge that is a model."""

    FIELD = "reward"

    seconds: Annotated[Seconds, Doc("time to grade one rollout", unit="seconds")]
    slots: Annotated[
        int | None,
        _SLOTS,
        Doc("maximum number of rollouts graded at once; null: unlimited", unit="slots"),
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
        given.slots, given.held, given.on_suspend, None if reward is None else reward.slots
    )
