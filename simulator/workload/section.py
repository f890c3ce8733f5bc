"""A scenario's ``workload``: what is asked, how long the answers are, what they earn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from simulator.options import Between, Doc, Options
from simulator.workload.length_specs import SPREAD, Lengths
from simulator.workload.lengths import LARGEST_CAP
from simulator.workload.rewards import Rewards
from simulator.workload.synthetic import PromptTokens
from simulator.workload.turns import Turns

MAX_ROLLOUTS = 4_000_000
MAX_PROMPTS = 100_000_000


@dataclass(frozen=True, slots=True)
class DrawnPrompts(Options):
    """Prompt lengths drawn from a lognormal distribution."""

    FIELD = "workload.prompt_tokens"

    median_tokens: Annotated[float, Between(1, LARGEST_CAP), Doc("median prompt length")]
    sd: Annotated[
        float,
        SPREAD,
        Doc("spread of the log prompt length", unit="standard deviation of the log"),
    ]
    max_tokens: Annotated[int, Between(1, LARGEST_CAP), Doc("at which prompts are cut")]
    family: Annotated[Literal["lognormal"], Doc("the shape of the distribution")] = "lognormal"

    def agree(self) -> None:
        """The cut is not below the median."""
        if self.max_tokens < self.median_tokens:
            raise self.refuse(
                "max_tokens",
                f"must be at least median_tokens, {self.median_tokens:g}, got {self.max_tokens}",
            )


@dataclass(frozen=True, slots=True)
class WorkloadSection(Options):
    """The workload of a scenario."""

    FIELD = "workload"

    batch_groups: Annotated[
        int, Between(1, MAX_ROLLOUTS), Doc("B, groups (prompts) that a step trains on")
    ]
    group_size: Annotated[
        int,
        Between(1, MAX_ROLLOUTS),
        Doc("G, rollouts of each prompt", unit="rollouts"),
    ]
    max_new_tokens: Annotated[
        int,
        Between(1, LARGEST_CAP),
        Doc("at which responses are cut; each turn's, if there are any"),
    ]
    prompts: Annotated[
        int | None,
        Between(1, MAX_PROMPTS),
        Doc(
            "different ones, which come again in order once all have come; null is endless",
            unit="prompts",
        ),
    ] = None
    prompt_tokens: Annotated[
        Annotated[int, Between(1, LARGEST_CAP)] | DrawnPrompts | None,
        Doc("prompt length, one for all or drawn; needed unless lengths brings prompts of its own"),
    ] = None
    lengths: Annotated[
        Lengths | None,
        Doc("response lengths: a family, a preset, a trace or a fitted file; the simulator's"),
    ] = None
    turns: Annotated[
        Turns | None,
        Doc("how many, and what their environments say; null is one. Lengths are then a turn's; "
            "the simulator's"),
    ] = None  # fmt: skip
    max_context_tokens: Annotated[
        int | None,
        Between(2, LARGEST_CAP),
        Doc("of prompt, turns and what is observed, at which a rollout is ended; null caps the "
            "turns alone"),
    ] = None  # fmt: skip
    rewards: Annotated[
        Rewards | None,
        Doc("what responses earn; null is beta_bernoulli with mean 0.5 and spread 0.3, or what a "
            "trace or a fitted file brings; the simulator's"),
    ] = None  # fmt: skip

    @property
    def prompt_lengths(self) -> PromptTokens | None:
        """How long prompts are, where the scenario says."""
        given = self.prompt_tokens
        if isinstance(given, DrawnPrompts):
            return PromptTokens(given.median_tokens, given.sd, given.max_tokens)
        return None if given is None else PromptTokens(given)


__all__ = ["MAX_ROLLOUTS", "DrawnPrompts", "WorkloadSection"]
