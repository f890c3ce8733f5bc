"""What the cluster works on: the tokens that each rollout produces and the reward it gets."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from simulator.errors import ScenarioError
from simulator.options import missing, read
from simulator.results.fitted_file import read_fitted
from simulator.workload.draws import GroupDraw
from simulator.workload.environment import EnvironmentSection, RewardSection
from simulator.workload.from_trace import TraceWorkload
from simulator.workload.judged import JudgedWorkload
from simulator.workload.length_specs import FIELD as LENGTHS_FIELD
from simulator.workload.length_specs import DrawnLengths, MeasuredLengths, TraceLengths
from simulator.workload.measured import FIELD as MEASURED_FIELD
from simulator.workload.measured import ResampledWorkload, TurnRules, measured_workload
from simulator.workload.rewards import BetaBernoulli, RewardModel
from simulator.workload.seconds import seconds_model
from simulator.workload.section import WorkloadSection
from simulator.workload.synthetic import PromptTokens, SyntheticWorkload
from simulator.workload.traces import read_trace
from simulator.workload.turn_presets import turn_presets
from simulator.workload.turn_traces import TurnTraceWorkload, has_turns, read_turn_trace
from simulator.workload.turns import PresetTurns, Turns, TurnWorkload
from simulator.workload.wrong_length import correlated_by_ratio

__all__ = [
    "GroupDraw",
    "PromptTokens",
    "SyntheticWorkload",
    "TraceWorkload",
    "Workload",
    "build_workload",
]


class Workload(Protocol):
    """Draws that hang on their address only, so that every policy meets the same ones."""

    @property
    def max_new_tokens(self) -> int:
        """The cap on a response, tokens."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """No prompt is longer, tokens."""
        ...

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each thing that was done to what was given, for the run's result."""
        ...

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``, which answers ``prompt`` (None: one of its own,
        of the same number) for the ``visit``-th time, from 0.

        attempt: 0 for the first try; a restart keeps the prompt and draws its responses afresh.
        version: updates that the weights had had when the group was first launched.
        """
        ...


@runtime_checkable
class WorkloadOfTurns(Workload, Protocol):
    """A workload whose rollouts have turns; ``max_new_tokens`` is of one turn."""

    @property
    def max_context_tokens(self) -> int:
        """No prompt, with what comes after it, is longer, tokens."""
        ...


def longest_context(workload: Workload) -> int:
    """No prompt, with what comes after it, is longer, tokens."""
    if isinstance(workload, WorkloadOfTurns):
        return workload.max_context_tokens
    return workload.max_prompt_tokens + workload.max_new_tokens


_DEFAULT_REWARDS = BetaBernoulli(0.5, 0.3)


def build_workload(
    section: WorkloadSection,
    seed: int,
    folder: Path = Path(),
    environment: EnvironmentSection | None = None,
    reward: RewardSection | None = None,
) -> Workload:
    """The workload of a scenario's ``workload`` section, with what its ``environment`` and
    ``reward`` add.

    folder: what a relative path starts from. Raises ScenarioError naming the key.
    """
    workload = _unjudged(section, seed, folder, environment)
    if reward is None:
        return workload
    seconds = seconds_model(reward.seconds)
    return JudgedWorkload(workload, longest_context(workload), seconds, seed)


def _unjudged(
    section: WorkloadSection, seed: int, folder: Path, environment: EnvironmentSection | None
) -> Workload:
    lengths = section.lengths
    if section.turns is not None:
        return _turn_workload(section, section.turns, seed, environment)
    if lengths is None:
        raise missing(LENGTHS_FIELD, "a family, a preset, a trace or a file")
    if isinstance(lengths, TraceLengths) and has_turns(folder / lengths.trace):
        return _turn_trace(section, lengths, folder, environment)
    if isinstance(lengths, MeasuredLengths):
        return _measured_workload(section, lengths, seed, folder, environment)
    _refuse_turns(section, environment)
    if isinstance(lengths, TraceLengths):
        return _trace_workload(section, lengths, seed, folder)
    prompts = section.prompt_lengths
    if prompts is None:
        raise missing("workload.prompt_tokens", "a number of tokens")
    model = lengths.model()
    rewards: RewardModel = section.rewards or _DEFAULT_REWARDS
    if isinstance(rewards, BetaBernoulli):
        rewards = correlated_by_ratio(rewards, model, section.max_new_tokens)
    return SyntheticWorkload(model, rewards, prompts, section.max_new_tokens, seed)


def _refuse_turns(section: WorkloadSection, environment: EnvironmentSection | None) -> None:
    """Raises ScenarioError for what only rollouts of several turns have."""
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
    lengths = section.lengths
    if lengths is None and isinstance(given, PresetTurns):
        lengths = read(DrawnLengths, turn_presets()[given.preset].lengths, LENGTHS_FIELD)
    if lengths is None:
        raise missing(LENGTHS_FIELD, "the lengths of a turn's response: a family or a preset")
    if isinstance(lengths, TraceLengths | MeasuredLengths):
        raise ScenarioError(
            "workload.turns", "needs lengths that are drawn from a model; a trace has its own turns"
        )
    if section.prompt_lengths is None:
        raise missing("workload.prompt_tokens", "a number of tokens")
    model = lengths.model()
    rewards: RewardModel = section.rewards or _DEFAULT_REWARDS
    if isinstance(rewards, BetaBernoulli):
        rewards = correlated_by_ratio(rewards, model, section.max_new_tokens)
    base = SyntheticWorkload(model, rewards, section.prompt_lengths, section.max_new_tokens, seed)
    return TurnWorkload(base, given.drawn, environment, section.max_context_tokens, seed)


def _turn_trace(
    section: WorkloadSection,
    lengths: TraceLengths,
    folder: Path,
    environment: EnvironmentSection | None,
) -> TurnTraceWorkload:
    trace = read_turn_trace(folder / lengths.trace)
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
    place = folder / lengths.file
    try:
        content = read_fitted(place, MEASURED_FIELD)
    except ScenarioError as error:
        hint = "for a table of lengths or a log of requests, give trace: in place of file:"
        raise ScenarioError(MEASURED_FIELD, f"{error.message}; {hint}") from None
    for key in ("prompt_tokens", "rewards"):
        if getattr(section, key) is not None:
            raise ScenarioError(f"workload.{key}", f"{place.name} has its own; leave this out")
    rules = TurnRules.of(section.max_new_tokens, section.max_context_tokens, environment)
    found = measured_workload(content, place.name, section.max_new_tokens, seed, rules)
    if found.groups.turned is None:
        _refuse_turns(section, environment)
    for key in ("turn_s", "boot_s", "failure"):
        if environment is not None and getattr(environment, key):
            raise ScenarioError(f"environment.{key}", f"{place.name} has its own; leave this out")
    return found


def _trace_workload(
    section: WorkloadSection, lengths: TraceLengths, seed: int, folder: Path
) -> TraceWorkload:
    trace = read_trace(folder / lengths.trace)
    if section.prompt_tokens is not None:
        raise ScenarioError(
            "workload.prompt_tokens", f"{trace.name} has its own prompt lengths; leave this out"
        )
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
