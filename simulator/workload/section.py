"""A scenario's ``workload``: what is asked, how long the answers are, what they earn; and the
workload that it builds. The module of a kind is imported where one is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import Between, Doc, Options, missing, read
from rollcast.simulator.values.later import Later
from rollcast.simulator.workload.base import Workload, longest_context
from rollcast.simulator.workload.known_lengths import KnownLengths, Sampled
from rollcast.simulator.workload.length_specs import FIELD as LENGTHS_FIELD
from rollcast.simulator.workload.length_specs import (
    SPREAD,
    DrawnLengths,
    Lengths,
    MeasuredLengths,
    ModelLengths,
    TraceLengths,
)
from rollcast.simulator.workload.lengths import LARGEST_CAP
from rollcast.simulator.workload.rewards import BetaBernoulli, RewardModel, Rewards
from rollcast.simulator.workload.synthetic import PromptTokens, SyntheticWorkload

if TYPE_CHECKING:
    from rollcast.simulator.workload.environment import EnvironmentSection, RewardSection
    from rollcast.simulator.workload.from_trace import TraceWorkload, TurnTraceWorkload
    from rollcast.simulator.workload.measured import ResampledWorkload
    from rollcast.simulator.workload.traces import Trace
    from rollcast.simulator.workload.turns import Turns, TurnWorkload
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
        int, Between(1, MAX_ROLLOUTS), Doc("G: rollouts per prompt", unit="rollouts")
    ]
    max_new_tokens: Annotated[
        int, Between(1, LARGEST_CAP), Doc("maximum response length; with turns, per turn")
    ]
    prompts: Annotated[
        int | None,
        Between(1, MAX_PROMPTS),
        Doc("dataset size in prompts; it repeats in order. null: unlimited", unit="prompts"),
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


_DEFAULT_REWARDS = BetaBernoulli(0.5, 0.3)


def build_workload(
    section: WorkloadSection,
    seed: int,
    folder: Path = Path(),
    environment: EnvironmentSection | None = None,
    reward: RewardSection | None = None,
) -> Workload:
    """The workload of a scenario's sections. folder: start of relative paths. Raises ScenarioError
    naming the key."""
    workload = _unjudged(section, seed, folder, environment)
    if reward is None:
        return workload
    from rollcast.simulator.workload.judged import JudgedWorkload
    from rollcast.simulator.workload.seconds import seconds_model

    seconds = seconds_model(reward.seconds)
    return JudgedWorkload(workload, longest_context(workload), seconds, seed)


def _unjudged(
    section: WorkloadSection, seed: int, folder: Path, environment: EnvironmentSection | None
) -> Workload:
    lengths = section.lengths
    if section.turns is not None:
        return _turn_workload(section, section.turns, seed, environment)
    if lengths is None:
        raise missing(LENGTHS_FIELD, "mean_tokens, a family, a preset, a trace or a file")
    if isinstance(lengths, MeasuredLengths):
        return _measured_workload(section, lengths, seed, folder, environment)
    if isinstance(lengths, TraceLengths):
        from rollcast.simulator.workload.traces import read_trace

        trace = read_trace(folder / lengths.trace)
        if trace.format == "turns":
            return _turn_trace(section, lengths, trace, environment)
        _refuse_turns(section, environment)
        return _trace_workload(section, lengths, trace, seed)
    _refuse_turns(section, environment)
    return _synthetic(section, lengths, seed)


def _synthetic(
    section: WorkloadSection, lengths: ModelLengths | KnownLengths, seed: int
) -> SyntheticWorkload:
    prompts = section.prompt_lengths
    if prompts is None:
        raise missing("workload.prompt_tokens", "a number of tokens")
    rewards: RewardModel = section.rewards or _DEFAULT_REWARDS
    if isinstance(lengths, KnownLengths):
        from rollcast.simulator.workload.length_problem import solved

        model = solved(lengths, section.sampled).lengths.model()
    else:
        model = lengths.model()
    return SyntheticWorkload(model, rewards, prompts, section.max_new_tokens, seed)


def _refuse_turns(section: WorkloadSection, environment: EnvironmentSection | None) -> None:
    """Raises ScenarioError for sections that only rollouts with turns have."""
    if environment is not None:
        raise ScenarioError(
            "environment", "answers turns, and there are none; give workload.turns, or leave it out"
        )
    if section.max_context_tokens is not None:
        raise ScenarioError(
            "workload.max_context_tokens",
            "caps rollouts with turns, and there are none; give workload.turns, or leave it out",
        )


def _turn_workload(
    section: WorkloadSection, given: Turns, seed: int, environment: EnvironmentSection | None
) -> TurnWorkload:
    from rollcast.simulator.workload.turn_presets import turn_presets
    from rollcast.simulator.workload.turns import PresetTurns, TurnWorkload

    lengths = section.lengths
    if lengths is None and isinstance(given, PresetTurns):
        lengths = read(DrawnLengths, turn_presets()[given.preset].lengths, LENGTHS_FIELD)
    if lengths is None:
        raise missing(
            LENGTHS_FIELD, "the lengths of a turn's response: mean_tokens, a family or a preset"
        )
    if isinstance(lengths, TraceLengths | MeasuredLengths):
        raise ScenarioError(
            "workload.turns", "needs lengths that are drawn from a model; a trace has its own turns"
        )
    base = _synthetic(section, lengths, seed)
    return TurnWorkload(base, given.drawn, environment, section.max_context_tokens, seed)


def _turn_trace(
    section: WorkloadSection,
    lengths: TraceLengths,
    trace: Trace,
    environment: EnvironmentSection | None,
) -> TurnTraceWorkload:
    from rollcast.simulator.workload.from_trace import TurnTraceWorkload

    if lengths.within_sd is not None:
        raise ScenarioError(
            f"{LENGTHS_FIELD}.within_sd", f"{trace.name} has groups of its own; leave this out"
        )
    for key, value, what in (
        ("workload.prompt_tokens", section.prompt_tokens, "prompts"),
        ("workload.rewards", section.rewards, "rewards, or 1 for what ends by itself,"),
        ("environment.turn_s", environment and environment.turn_s, "answers"),
        ("environment.failure", environment and environment.failure, "failures"),
    ):
        if value:
            raise ScenarioError(key, f"{trace.name} has {what} of its own; leave this out")
    return TurnTraceWorkload(
        trace,
        section.max_new_tokens,
        section.max_context_tokens,
        environment,
        repeat=lengths.repeat,
    )


def _measured_workload(
    section: WorkloadSection,
    lengths: MeasuredLengths,
    seed: int,
    folder: Path,
    environment: EnvironmentSection | None,
) -> ResampledWorkload:
    from rollcast.simulator.results.fitted_file import read_fitted
    from rollcast.simulator.workload import measured

    place = folder / lengths.file
    try:
        content = read_fitted(place, measured.FIELD)
    except ScenarioError as error:
        hint = "for a table of lengths or a log of requests, give trace: in place of file:"
        raise ScenarioError(measured.FIELD, f"{error.message}; {hint}") from None
    for key in ("prompt_tokens", "rewards"):
        if getattr(section, key) is not None:
            raise ScenarioError(f"workload.{key}", f"{place.name} has its own; leave this out")
    rules = measured.TurnRules.of(section.max_new_tokens, section.max_context_tokens, environment)
    workload = measured.measured_workload(content, place.name, section.max_new_tokens, seed, rules)
    if workload.groups.turned is None:
        _refuse_turns(section, environment)
    for key in ("turn_s", "boot_s", "failure"):
        if environment is not None and getattr(environment, key):
            raise ScenarioError(f"environment.{key}", f"{place.name} has its own; leave this out")
    return workload


def _trace_workload(
    section: WorkloadSection, lengths: TraceLengths, trace: Trace, seed: int
) -> TraceWorkload:
    from rollcast.simulator.workload.from_trace import TraceWorkload

    prompt = section.prompt_tokens
    if trace.has_prompts and prompt is not None:
        raise ScenarioError(
            "workload.prompt_tokens",
            f"{trace.name} has its own prompt lengths; leave this out, or set it to null",
        )
    if not trace.has_prompts:
        if not isinstance(prompt, int):
            raise ScenarioError(
                "workload.prompt_tokens",
                f"{trace.name} has lengths of responses alone; give one number of tokens",
            )
        trace = trace.prompted(prompt)
    rewards = section.rewards
    if rewards is None and not trace.has_rewards:
        rewards = _DEFAULT_REWARDS
    if lengths.within_sd is None:
        trace = trace.dealt(section.group_size)
    return TraceWorkload(
        trace,
        section.max_new_tokens,
        rewards=rewards,
        within_sd=lengths.within_sd,
        repeat=lengths.repeat,
        seed=seed,
    )
