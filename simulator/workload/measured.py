"""A workload that draws from the groups that a run measured (``lengths: {file: fitted.json}``),
with their own tail, their own mix of prompts, and rewards that belong to their lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.rollout import CUT, FAILED, Ending
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.results.columns import LARGEST_TOKENS, MOST
from rollcast.simulator.values import Between, read
from rollcast.simulator.workload.base import (
    GROUPS_PER_BLOCK,
    AddressedWorkload,
    GroupDraw,
    Trajectory,
    check_seed,
    keyed_uniforms,
)
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.seconds import SECONDS
from rollcast.simulator.workload.turns import MAX_TURNS, Caps, Patience, trajectory

FIELD = "workload.lengths.file"
NEAR_GROUPS = 256
"""Groups that a step draws from: those measured at the versions nearest to its own."""

_GROUPS, _ORDER = 0x72736770, 0x72736F72  # Philox streams: the letters of "rsgp" and "rsor"


LENGTH = Between(1, LARGEST_TOKENS)
_COLUMNS = ("version", "prompt_tokens", "new_tokens", "rewards")
_COUNT = Annotated[int, Between(0, LARGEST_TOKENS)]


@dataclass(frozen=True, slots=True)
class MeasuredTurns:
    """A rollout with turns: of each (observation tokens, tokens sampled, seconds of the answer),
    its ending, seconds of a boot outside the first answer, and of its judge, if any."""

    turns: tuple[tuple[_COUNT, _COUNT, Annotated[float, SECONDS]], ...]
    ending: Ending
    boot_s: Annotated[float, SECONDS] = 0.0
    reward_s: Annotated[float | None, SECONDS] = None

    @classmethod
    def of(cls, made: Trajectory) -> MeasuredTurns:
        """Of what a rollout did."""
        turns = tuple((turn[0], turn[1], turn[2]) for turn in made.turns)
        return cls(turns, made.ending, made.boot_s, made.reward_s)


@dataclass(frozen=True, slots=True)
class TurnRules:
    """Caps and patience for measured rollouts with turns; slower: factor on environments' times."""

    caps: Caps
    patience: Patience = Patience()  # noqa: RUF009  # frozen
    max_turns: int = MAX_TURNS
    slower: float = 1.0

    @classmethod
    def of(
        cls, turn_tokens: int, context_tokens: int | None, environment: EnvironmentSection | None
    ) -> TurnRules:
        """Of a scenario. Failures are part of what was measured."""
        given = Patience.of(environment)
        return cls(Caps(turn_tokens, context_tokens), Patience(given.timeout_s))

    def applied(self, prompt_tokens: int, measured: MeasuredTurns) -> Trajectory:
        """What becomes of a measured rollout."""
        rows = measured.turns[: self.max_turns]
        ending: Ending = measured.ending if len(rows) == len(measured.turns) else "turns"
        last = len(rows) - 1
        timed = [
            (
                observed,
                tokens,
                0.0 if ending == "turns" and i == last else self.slower * seconds,
                1.0,
            )
            for i, (observed, tokens, seconds) in enumerate(rows)
        ]
        made = trajectory(
            prompt_tokens, timed, ending, self.caps, self.patience, self.slower * measured.boot_s
        )
        return replace(made, reward_s=measured.reward_s)


@dataclass(frozen=True)
class MeasuredGroups:
    """Measured groups, in order of version.

    version: of the weights at launch. prompt_tokens: of each. new_tokens, rewards: of its rollouts.
    max_new_tokens: the cap, of each turn if ``turned`` has what each rollout did.
    """

    version: Annotated[tuple[int, ...], Between(0, MOST)]
    prompt_tokens: Annotated[tuple[int, ...], LENGTH]
    new_tokens: Annotated[tuple[tuple[int, ...], ...], LENGTH]
    rewards: tuple[tuple[float, ...], ...]
    max_new_tokens: Annotated[int, LENGTH]
    turned: tuple[tuple[MeasuredTurns, ...], ...] | None = None

    def __len__(self) -> int:
        return len(self.version)

    @classmethod
    def from_mapping(cls, content: object, name: str) -> MeasuredGroups:
        """The mapping ``groups`` of a fitted file. Raises ScenarioError naming what is wrong."""
        try:
            groups = read(cls, content, "groups")
            order = sorted(range(len(groups._rows())), key=lambda i: groups.version[i])
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{name}: {error}") from None
        return groups.only(order)

    def only(self, rows: list[int]) -> MeasuredGroups:
        """The groups of these numbers."""
        columns: dict[str, Any] = {
            key: tuple(getattr(self, key)[i] for i in rows) for key in _COLUMNS
        }
        turned = None if self.turned is None else tuple(self.turned[i] for i in rows)
        return replace(self, **columns, turned=turned)

    def _rows(self) -> list[tuple[Any, ...]]:
        """One row a group. Raises ScenarioError where the columns do not make any."""
        columns = [getattr(self, key) for key in _COLUMNS]
        if len(set(map(len, columns))) > 1:
            raise ScenarioError("groups", "its lists differ in length")
        rows = list(zip(*columns, strict=True))
        if not rows:
            raise ScenarioError("groups", "there are none")
        for i, (_, _, tokens, rewards) in enumerate(rows):
            if not tokens or len(tokens) != len(rewards):
                raise ScenarioError(
                    f"groups.new_tokens[{i}]", f"{len(tokens)} lengths and {len(rewards)} rewards"
                )
        if self.turned is not None:
            sizes = [len(tokens) for _, _, tokens, _ in rows]
            if [len(row) for row in self.turned] != sizes:
                raise ScenarioError("groups.turned", "has not the rollouts that new_tokens has")
            if not all(row.turns for group in self.turned for row in group):
                raise ScenarioError("groups.turned", "holds a rollout without turns")
        return rows

    def to_mapping(self) -> dict[str, Any]:
        """What `from_mapping` reads."""
        mapping = {key: getattr(self, key) for key in (*_COLUMNS, "max_new_tokens")}
        if self.turned is not None:
            mapping["turned"] = [[asdict(rollout) for rollout in group] for group in self.turned]
        return mapping

    def drawn(self, rng: np.random.Generator) -> MeasuredGroups:
        """As many groups, drawn from these with replacement: a bootstrap."""
        return self.only(np.sort(rng.integers(len(self), size=len(self))).tolist())


class ResampledWorkload(AddressedWorkload):
    """Draws groups from measured ones of the nearest versions.

    A group takes a measured one's responses in random order; beyond those, responses of the groups
    nearest in mean length, scaled to its own mean, so that larger groups have longer tails. Lengths
    are cut to ``max_new_tokens``; those cut when measured stay so. Rollouts with turns are replayed
    under ``rules``.
    """

    def __init__(
        self,
        groups: MeasuredGroups,
        max_new_tokens: int,
        seed: int = 0,
        rules: TurnRules | None = None,
    ) -> None:
        self.groups = groups
        self._rules = rules or TurnRules(Caps(max_new_tokens, None))
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max(groups.prompt_tokens)
        self.warnings = _cut_warnings(groups, max_new_tokens)
        self._seed = check_seed(seed)
        self._version = np.array(groups.version)
        self._mean = np.array([np.log(tokens).mean() for tokens in groups.new_tokens])
        self._near = lru_cache(maxsize=64)(self._nearest)
        self._uniforms = lru_cache(maxsize=16)(self._block)
        self.max_context_tokens = self._longest()

    def _drawn(self, prompt: int, size: int, attempt: int, version: int) -> GroupDraw:
        near = self._near(version)
        u = self._uniforms(prompt // GROUPS_PER_BLOCK)[prompt % GROUPS_PER_BLOCK]
        place = int(u * len(near))
        source = int(near[place])
        tokens: list[int] = []
        rewards: list[float] = []
        turned: list[MeasuredTurns] = []
        lane = 0
        while len(tokens) < size:
            donor = int(near[_beside(place, lane, len(near))])
            whole_lengths = self._brought(donor, source)
            order = self._permutation(prompt, len(whole_lengths), attempt, lane)
            tokens += [whole_lengths[i] for i in order]
            rewards += [self.groups.rewards[donor][i] for i in order]
            if self.groups.turned is not None:
                turned += [self.groups.turned[donor][i] for i in order]
            lane += 1
        prompt_tokens = self.groups.prompt_tokens[source]
        if self.groups.turned is None:
            return GroupDraw(prompt_tokens, tokens[:size], rewards[:size])
        return self._turned(prompt_tokens, turned[:size], rewards[:size])

    def _turned(
        self, prompt_tokens: int, measured: list[MeasuredTurns], rewards: list[float]
    ) -> GroupDraw:
        """A group of rollouts of several turns; what the rules end earns nothing."""
        made = [self._rules.applied(prompt_tokens, trajectory) for trajectory in measured]
        ended = CUT | FAILED
        earned = [
            0.0 if new.ending in ended and new.ending != old.ending else reward
            for new, old, reward in zip(made, measured, rewards, strict=True)
        ]
        return GroupDraw(
            prompt_tokens, [trajectory.new_tokens for trajectory in made], earned, None, made
        )

    def _longest(self) -> int:
        groups = self.groups
        if groups.turned is None:
            return self.max_prompt_tokens + self.max_new_tokens
        cap = self.max_new_tokens
        candidates = (
            prompt + sum(observed + min(tokens, cap) for observed, tokens, _ in rollout.turns)
            for prompt, rollouts in zip(groups.prompt_tokens, groups.turned, strict=True)
            for rollout in rollouts
        )
        longest, most = max(candidates), self._rules.caps.context_tokens
        return longest if most is None else min(longest, most)

    def _nearest(self, step: int) -> NDArray[np.int64]:
        """The groups that a step draws from, shortest mean first: neighbouring steps draw alike."""
        count = min(NEAR_GROUPS, len(self.groups))
        nearest = np.argsort(np.abs(self._version - step), kind="stable")[:count]
        return np.asarray(nearest[np.argsort(self._mean[nearest], kind="stable")])

    def _brought(self, donor: int, source: int) -> list[int]:
        """Lengths of a measured group, at the mean of another."""
        measured = self.groups.new_tokens[donor]
        if donor == source:
            return [min(tokens, self.max_new_tokens) for tokens in measured]
        lengths = np.array(measured, dtype=float) * np.exp(self._mean[source] - self._mean[donor])
        new_tokens: list[int] = (
            np.clip(np.rint(lengths), 1, self.max_new_tokens).astype(int).tolist()
        )
        return new_tokens

    def _block(self, block: int) -> NDArray[np.float64]:
        return keyed_uniforms(self._seed, _GROUPS, (GROUPS_PER_BLOCK,), block=block)

    def _permutation(self, group: int, count: int, attempt: int, lane: int) -> list[int]:
        u = keyed_uniforms(self._seed, _ORDER, (count,), block=group, lane=lane, attempt=attempt)
        order: list[int] = np.argsort(u, kind="stable").tolist()
        return order


def _cut_warnings(groups: MeasuredGroups, max_new_tokens: int) -> tuple[str, ...]:
    cap = groups.max_new_tokens
    cut = sum(n >= cap for tokens in groups.new_tokens for n in tokens)
    if max_new_tokens <= cap or not cut:
        return ()
    return (
        f"{cut} measured responses were cut at {cap} tokens; under max_new_tokens {max_new_tokens} "
        "they would be longer, and are not",
    )


def _beside(place: int, lane: int, count: int) -> int:
    """The ``lane``-th nearest place of ``count``, itself first; around again once all are taken."""
    lane %= count
    around = range(max(place - lane, 0), min(place + lane + 1, count))
    return sorted(around, key=lambda other: (abs(other - place), other))[lane]


def measured_workload(
    content: Mapping[str, Any],
    name: str,
    max_new_tokens: int,
    seed: int,
    rules: TurnRules | None = None,
) -> ResampledWorkload:
    """The workload of a fitted file. Raises ScenarioError (``workload.lengths.file``)."""
    if "groups" not in content:
        raise ScenarioError(FIELD, f"{name} keeps no measured groups; calibrate again")
    groups = MeasuredGroups.from_mapping(content["groups"], name)
    return ResampledWorkload(groups, max_new_tokens, seed, rules)
