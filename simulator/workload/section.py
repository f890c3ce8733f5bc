"""A scenario's ``workload``: what is asked, how long the answers are, what they earn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from rollcast.simulator.values import Between, Doc, Options
from rollcast.simulator.values.later import Later
from rollcast.simulator.workload.known_lengths import KnownLengths, Sampled
from rollcast.simulator.workload.length_specs import SPREAD, Lengths
from rollcast.simulator.workload.lengths import LARGEST_CAP
from rollcast.simulator.workload.rewards import Rewards
from rollcast.simulator.workload.synthetic import PromptTokens

if TYPE_CHECKING:
    from rollcast.simulator.workload.turns import Turns
else:
    _TURNS = "rollcast.simulator.workload.turns"
    Turns = Later(_TURNS, "PresetTurns") | Later(_TURNS, "DrawnTurns")

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
        Doc("standard deviation of the log prompt length", unit="standard deviation of the log"),
    ]
    max_tokens: Annotated[int, Between(1, LARGEST_CAP), Doc("maximum prompt length")]
    family: Annotated[Literal["lognormal"], Doc("distribution of prompt lengths")] = "lognormal"

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
        int, Between(1, MAX_ROLLOUTS), Doc("B: groups (prompts) per training batch")
    ]
    group_size: Annotated[
        int,
        Between(1, MAX_ROLLOUTS),
        Doc("G: rollouts per prompt", unit="rollouts"),
    ]
    max_new_tokens: Annotated[
        int,
        Between(1, LARGEST_CAP),
        Doc("maximum response length; with turns, per turn"),
    ]
    prompts: Annotated[
        int | None,
        Between(1, MAX_PROMPTS),
        Doc(
            "dataset size in prompts; it repeats in order. null: unlimited",
            unit="prompts",
        ),
    ] = None
    prompt_tokens: Annotated[
        Annotated[int, Between(1, LARGEST_CAP)] | DrawnPrompts | None,
        Doc(
            "prompt length: one number or a distribution; required unless the lengths come "
            "with prompts"
        ),
    ] = None
    lengths: Annotated[
        KnownLengths | Lengths | None,
        Doc(
            "simulation only: response lengths: figures of them (mean_tokens, cut_share, p90), a "
            "family, a preset, a trace or a fitted file"
        ),
    ] = None
    turns: Annotated[
        Turns | None,
        Doc(
            "simulation only: number of turns and what the environment adds between them; "
            "null: one turn. workload.lengths is then the length of a turn"
        ),
    ] = None
    max_context_tokens: Annotated[
        int | None,
        Between(2, LARGEST_CAP),
        Doc(
            "maximum context of a rollout with turns, at which it ends; null: only the "
            "turns are capped"
        ),
    ] = None
    rewards: Annotated[
        Rewards | None,
        Doc(
            "simulation only: rewards of responses; null: those of the trace or fitted "
            "file, else beta_bernoulli with mean 0.5 and spread 0.3"
        ),
    ] = None

    @property
    def sampled(self) -> Sampled:
        """What figures of the lengths are of."""
        turn_sd = 0.0 if self.turns is None else self.turns.drawn.length_sd
        return Sampled(self.max_new_tokens, self.batch_groups, self.group_size, turn_sd)

    @property
    def prompt_lengths(self) -> PromptTokens | None:
        """How long prompts are, where the scenario says."""
        given = self.prompt_tokens
        if isinstance(given, DrawnPrompts):
            return PromptTokens(given.median_tokens, given.sd, given.max_tokens)
        return None if given is None else PromptTokens(given)
