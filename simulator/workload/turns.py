"""Rollouts of several turns: how many, what their environments say, and how long that takes.

A turn's response has the lengths of ``workload.lengths``, once more spread from turn to turn. How
many turns a rollout takes is drawn like a length: an effect of the prompt, which correlates with
its difficulty, times an effect of the rollout. Failures and timeouts are part of the draw, so that
every policy meets the same ones: a trajectory is what a rollout would do if nobody stopped it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from rollcast.simulator.core.rollout import CUT, FAILED, Ending
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import SHARE, Above, Between, Doc, Options
from rollcast.simulator.workload.base import (
    INDICES_PER_LANE,
    AddressedWorkload,
    FloatArray,
    GroupDraw,
    Trajectory,
    Turn,
    check_seed,
    keyed_uniforms,
)
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.length_specs import SPREAD, Family
from rollcast.simulator.workload.lengths import LARGEST_CAP, Component, LengthModel, whole_tokens
from rollcast.simulator.workload.rewards import correlated
from rollcast.simulator.workload.seconds import OfTurnPreset, SecondsModel, seconds_model
from rollcast.simulator.workload.synthetic import PromptTokens, SyntheticWorkload
from rollcast.simulator.workload.turn_presets import turn_presets

FIELD = "workload.turns"
MAX_TURNS = 10_000
_LOG = "standard deviation of the log"
_CORRELATION = Between(-1, 1)

# Philox streams: the letters of "tprm", "trol" and "turn"
_PROMPTS, _ROLLOUTS, _TURNS = 0x7470726D, 0x74726F6C, 0x7475726E


@dataclass(frozen=True, slots=True)
class DrawnObservations(Options):
    """Lengths of an environment's answers, drawn from a lognormal distribution."""

    FIELD = "workload.turns.observation_tokens"

    median_tokens: Annotated[
        float, Between(1, LARGEST_CAP), Doc("median length of an environment's answer")
    ]
    sd: Annotated[float, SPREAD, Doc("spread of the log length of answers", unit=_LOG)]
    max_tokens: Annotated[int, Between(1, LARGEST_CAP), Doc("maximum length of an answer")]

    def agree(self) -> None:
        """The cut is not below the median."""
        if self.max_tokens < self.median_tokens:
            raise self.refuse(
                "max_tokens",
                f"must be at least median_tokens, {self.median_tokens:g}, got {self.max_tokens}",
            )


Observations = Annotated[int, Between(0, LARGEST_CAP)] | DrawnObservations
_FAMILY = Doc("distribution of the number of turns within a prompt")
_MEDIAN = Doc("median number of turns for a prompt of average difficulty", unit="turns")
_BETWEEN = Doc("spread of the log number of turns between prompts", unit=_LOG)
_WITHIN = Doc("spread of the log number of turns within a prompt", unit=_LOG)
_MAX = Doc("maximum number of turns of a rollout", unit="turns")
_OBSERVED = Doc(
    "tokens that an environment's answer adds to the context: one number or a distribution"
)
_LENGTH_SD = Doc("spread of the log response length from turn to turn", unit=_LOG)
_DIFFICULTY = Doc("correlation of hard prompts with more turns", unit="correlation")
_RUNAWAY = Doc("share of rollouts that do not end by themselves and run to max_turns", unit="share")


@dataclass(frozen=True, slots=True)
class DrawnTurns(Options):
    """Turns drawn from one family."""

    FIELD = FIELD

    family: Annotated[Family, _FAMILY]
    median: Annotated[float, Above(0, MAX_TURNS), _MEDIAN]
    between_sd: Annotated[float, SPREAD, _BETWEEN]
    within_sd: Annotated[float, SPREAD, _WITHIN]
    max_turns: Annotated[int, Between(1, MAX_TURNS), _MAX]
    observation_tokens: Annotated[Observations, _OBSERVED]
    length_sd: Annotated[float, SPREAD, _LENGTH_SD] = 0.0
    difficulty_correlation: Annotated[float, _CORRELATION, _DIFFICULTY] = 0.0
    runaway: Annotated[float, SHARE, _RUNAWAY] = 0.0

    @property
    def drawn(self) -> DrawnTurns:
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class PresetTurns(OfTurnPreset):
    """Turns of a preset, of which further keys override what they name."""

    FIELD = FIELD

    median: Annotated[float | None, Above(0, MAX_TURNS), _MEDIAN] = None
    between_sd: Annotated[float | None, SPREAD, _BETWEEN] = None
    within_sd: Annotated[float | None, SPREAD, _WITHIN] = None
    max_turns: Annotated[int | None, Between(1, MAX_TURNS), _MAX] = None
    observation_tokens: Annotated[Observations | None, _OBSERVED] = None
    length_sd: Annotated[float | None, SPREAD, _LENGTH_SD] = None
    difficulty_correlation: Annotated[float | None, _CORRELATION, _DIFFICULTY] = None
    runaway: Annotated[float | None, SHARE, _RUNAWAY] = None

    @property
    def drawn(self) -> DrawnTurns:
        """The preset's, overridden."""
        given: dict[str, Any] = dict(turn_presets()[self.preset].turns)
        if isinstance(given["observation_tokens"], dict):
            given["observation_tokens"] = DrawnObservations(**given["observation_tokens"])
        overrides = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "preset"
        }
        return DrawnTurns(**{**given, **{k: v for k, v in overrides.items() if v is not None}})


Turns = PresetTurns | DrawnTurns


@dataclass(frozen=True, slots=True)
class Caps:
    """At which a rollout is ended: tokens of a turn, of its context (None: no such cap)."""

    turn_tokens: int
    context_tokens: int | None


@dataclass(frozen=True, slots=True)
class Patience:
    """What is done about answers that fail, or do not come."""

    timeout_s: float = math.inf
    failure: float = 0.0
    retry: int = 0

    @classmethod
    def of(cls, section: EnvironmentSection | None) -> Patience:
        """That of a section; for ever, where there is none."""
        if section is None:
            return cls()
        return cls(section.call_timeout_s, section.failure, section.retry)

    def waits(self, answer_s: float, failure_u: float) -> tuple[float, Ending | None]:
        """(seconds until the answer, ending if none comes). A failed call takes as long as another;
        failure_u: uniform."""
        if answer_s > self.timeout_s:
            return self.timeout_s, "timeout"
        if failure_u < self.failure ** (self.retry + 1):
            return answer_s * (self.retry + 1), "environment"
        failed = int(math.log(failure_u) / math.log(self.failure)) if 0 < self.failure < 1 else 0
        return answer_s * (failed + 1), None


def trajectory(
    prompt_tokens: int,
    turns: Sequence[tuple[int, int, float, float]],
    ending: Ending,
    caps: Caps,
    patience: Patience,
    boot_s: float = 0.0,
) -> Trajectory:
    """What becomes of a rollout that would take these turns: (observation tokens, response tokens,
    seconds of the answer, a uniform number for its failure). ending: of the last one, if nothing
    ends it before. Only the first turn's observation counts for nothing."""
    made: list[Turn] = []
    context = prompt_tokens
    most = math.inf if caps.context_tokens is None else caps.context_tokens
    for number, (observed, tokens, answer_s, failure_u) in enumerate(turns):
        observed = observed if number else 0
        if made and context + observed >= most:
            return Trajectory(tuple(made), "context", boot_s)
        context += observed
        kept = int(min(tokens, caps.turn_tokens, most - context))
        context += kept
        cut: Ending | None = None
        if kept < tokens:
            cut = "length" if kept == caps.turn_tokens else "context"
        last = number == len(turns) - 1
        if cut or (last and answer_s <= 0):
            made.append(Turn(observed, kept, 0.0))
            return Trajectory(tuple(made), cut or ending, boot_s)
        waited_s, failed = patience.waits(answer_s, failure_u)
        made.append(Turn(observed, kept, waited_s))
        if failed:
            return Trajectory(tuple(made), failed, boot_s)
    return Trajectory(tuple(made), ending, boot_s)


class TurnWorkload(AddressedWorkload):
    """Turns, answers and rewards drawn from models.

    base: prompts, rewards, and the lengths of a turn's response, up to ``max_new_tokens`` each.
    max_context_tokens: the cap on the context; None caps it by the other caps alone. Raises
    ScenarioError where a prompt would leave no room in it.
    """

    def __init__(
        self,
        base: SyntheticWorkload,
        turns: DrawnTurns,
        environment: EnvironmentSection | None,
        max_context_tokens: int | None,
        seed: int = 0,
    ) -> None:
        self.turns = turns
        self.max_new_tokens = base.max_new_tokens
        self.max_prompt_tokens = base.max_prompt_tokens
        self.warnings = base.warnings
        self._base = base
        self._seed = check_seed(seed)
        self._caps = Caps(base.max_new_tokens, max_context_tokens)
        self._patience = Patience.of(environment)
        self._answers = SecondsModel("lognormal", 0.0)
        self._boot = SecondsModel("lognormal", 0.0)
        if environment is not None:
            self._answers = environment.answers
            self._boot = seconds_model(environment.boot_s)
        self._counts = LengthModel(
            (Component(turns.family, turns.median, turns.between_sd, turns.within_sd),)
        )
        given = turns.observation_tokens
        self._observed: PromptTokens | int = (
            PromptTokens(given.median_tokens, given.sd, given.max_tokens)
            if isinstance(given, DrawnObservations)
            else given
        )
        if max_context_tokens is not None and max_context_tokens <= base.max_prompt_tokens:
            raise ScenarioError(
                "workload.max_context_tokens",
                f"is {max_context_tokens}, and a prompt may have {base.max_prompt_tokens} tokens "
                "(workload.prompt_tokens): make it larger",
            )

    def scaled(self, factor: float) -> TurnWorkload:
        """The same draws with every median length of a turn ``factor`` times as long."""
        made = copy(self)
        made._base = self._base.scaled(factor)
        return made

    @property
    def max_context_tokens(self) -> int:
        """The longest context, tokens."""
        if self._caps.context_tokens is not None:
            return self._caps.context_tokens
        observed = self._observed if isinstance(self._observed, int) else self._observed.longest
        turns = self.turns.max_turns
        return self.max_prompt_tokens + turns * self.max_new_tokens + (turns - 1) * observed

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        base = self._base.effects(prompt, size, attempt)
        drift = self._base.lengths.drift(version) if version else 1.0
        fresh_z, slow_z = normal(keyed_uniforms(self._seed, _PROMPTS, (2,), block=prompt))
        turns = self.turns
        hard_z = np.array([base.difficulty])
        turns_z = correlated(turns.difficulty_correlation, hard_z, np.array([fresh_z]))
        made: list[Trajectory] = []
        for lane in range((size + INDICES_PER_LANE - 1) // INDICES_PER_LANE):
            scale = base.uncapped[lane * INDICES_PER_LANE : (lane + 1) * INDICES_PER_LANE] * drift
            made += self._lane(prompt, attempt, lane, scale, base.prompt_tokens, turns_z, slow_z)
        made = made[:size]
        cap = self.max_new_tokens
        as_if = [cap if trajectory.ending in CUT else min(1, cap - 1) for trajectory in made]
        graded = self._base.rewards.graded(base.rewards, as_if, cap)
        rewards = [
            0.0 if trajectory.ending in FAILED else reward
            for trajectory, reward in zip(made, graded, strict=True)
        ]
        lengths = [trajectory.new_tokens for trajectory in made]
        return GroupDraw(base.prompt_tokens, lengths, rewards, None, made)

    def _lane(
        self,
        group: int,
        attempt: int,
        lane: int,
        scale: FloatArray,
        prompt_tokens: int,
        turns_z: FloatArray,
        slow_z: float,
    ) -> list[Trajectory]:
        """The trajectories of consecutive indices. scale: median response of a turn of each."""
        turns, rollouts = self.turns, len(scale)
        place: Any = {"block": group, "lane": lane, "attempt": attempt}
        whole = keyed_uniforms(self._seed, _ROLLOUTS, (5, INDICES_PER_LANE), **place)
        count_u, runaway_u, pace_u, boot_u, boot_pace_u = whole[:, :rollouts]
        uncapped = self._counts.uncapped(np.array([0.5]), turns_z, count_u[None, :])[0]
        uncapped[runaway_u < turns.runaway] = np.inf
        counts = whole_tokens(uncapped, turns.max_turns)
        endings: list[Ending] = ["turns" if c else "stop" for c in uncapped > turns.max_turns]
        shape = (int(counts.max()), 5, INDICES_PER_LANE)
        uniforms = keyed_uniforms(self._seed, _TURNS, shape, **place)[:, :, :rollouts]
        length_u, observed_u, answer_u, hang_u, failure_u = np.moveaxis(uniforms, 1, 0)
        spread = np.exp(turns.length_sd * normal(length_u))
        tokens = whole_tokens(scale * spread, LARGEST_CAP).T.tolist()
        pace_z = normal(pace_u)
        answers = self._answers.draw(slow_z, pace_z, answer_u, hang_u).T.tolist()
        if isinstance(self._observed, int):
            observed = np.full(uniforms.shape[::2], self._observed).T.tolist()
        else:
            flat = self._observed.sample(observed_u.ravel())
            observed = np.reshape(flat, observed_u.shape).T.tolist()
        boots = self._boot.draw(slow_z, normal(boot_pace_u), boot_u, np.ones(rollouts)).tolist()
        failures = failure_u.T.tolist()
        made = []
        for i, count in enumerate(counts.tolist()):
            seconds = [*answers[i][: count - 1], 0.0]
            rows = zip(observed[i], tokens[i], seconds, failures[i], strict=False)
            steps = [*rows][:count]
            made.append(
                trajectory(prompt_tokens, steps, endings[i], self._caps, self._patience, boots[i])
            )
        return made


def normal(u: FloatArray) -> FloatArray:
    """Standard normals at uniforms."""
    from scipy.special import ndtri

    return np.asarray(ndtri(u))
