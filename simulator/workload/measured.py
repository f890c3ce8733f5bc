"""A workload that draws again from the groups that a run measured.

A lognormal model has the tail that its family has; measured groups have their own, their own mix of
prompts that are answered alike each time and prompts that are not, and rewards that belong to their
lengths. `rollcast calibrate` keeps them in its file, and a scenario uses them with
``lengths: {file: fitted.json}``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from simulator.errors import ScenarioError
from simulator.options import Between, read
from simulator.results.shapes import LARGEST_TOKENS, MOST
from simulator.workload.draws import (
    GROUPS_PER_BLOCK,
    GroupDraw,
    address,
    check_seed,
    keyed_uniforms,
)

FIELD = "workload.lengths.file"
NEAR_GROUPS = 256
"""Groups that a step draws from: those measured at the versions nearest to its own."""

_GROUPS, _ORDER = 0x72736770, 0x72736F72  # Philox streams: the letters of "rsgp" and "rsor"


LENGTH = Between(1, LARGEST_TOKENS)
_COLUMNS = ("version", "prompt_tokens", "new_tokens", "rewards")


@dataclass(frozen=True)
class MeasuredGroups:
    """Groups as a run measured them, in order of their versions.

    version: of the weights when each was launched. prompt_tokens: of each. new_tokens, rewards: of
    its rollouts, as many as it had. max_new_tokens: at which they were cut.
    """

    version: Annotated[tuple[int, ...], Between(0, MOST)]
    prompt_tokens: Annotated[tuple[int, ...], LENGTH]
    new_tokens: Annotated[tuple[tuple[int, ...], ...], LENGTH]
    rewards: tuple[tuple[float, ...], ...]
    max_new_tokens: Annotated[int, LENGTH]

    def __len__(self) -> int:
        return len(self.version)

    @classmethod
    def from_mapping(cls, content: object, name: str) -> MeasuredGroups:
        """The mapping ``groups`` of a fitted file. Raises ScenarioError naming what is wrong."""
        try:
            groups = read(cls, content, "groups")
            rows = groups._rows()
        except ScenarioError as error:
            raise ScenarioError(FIELD, f"{name}: {error}") from None
        version, prompts, tokens, rewards = zip(*sorted(rows, key=lambda r: r[0]), strict=True)
        return cls(version, prompts, tokens, rewards, groups.max_new_tokens)

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
        return rows

    def to_mapping(self) -> dict[str, Any]:
        """What `from_mapping` reads."""
        return {key: getattr(self, key) for key in (*_COLUMNS, "max_new_tokens")}

    def drawn(self, rng: np.random.Generator) -> MeasuredGroups:
        """As many groups, drawn from these with replacement: a bootstrap."""
        rows = np.sort(rng.integers(len(self), size=len(self))).tolist()
        return MeasuredGroups(
            tuple(self.version[i] for i in rows),
            tuple(self.prompt_tokens[i] for i in rows),
            tuple(self.new_tokens[i] for i in rows),
            tuple(self.rewards[i] for i in rows),
            self.max_new_tokens,
        )


class ResampledWorkload:
    """Draws groups from measured ones, those of the nearest versions.

    A group takes the responses of a measured one in random order. Beyond as many as that had, they
    come from the measured groups nearest to it in mean length, brought to its own mean, so that a
    group larger than those measured has a longer tail, as it should. Lengths are cut to
    ``max_new_tokens``; what was cut shorter when it was measured stays so.
    """

    def __init__(self, groups: MeasuredGroups, max_new_tokens: int, seed: int = 0) -> None:
        self.groups = groups
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max(groups.prompt_tokens)
        self.warnings = _cut_warnings(groups, max_new_tokens)
        self._seed = check_seed(seed)
        self._version = np.array(groups.version)
        self._mean = np.array([np.log(tokens).mean() for tokens in groups.new_tokens])
        self._near = lru_cache(maxsize=64)(self._nearest)
        self._uniforms = lru_cache(maxsize=16)(self._block)

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``; see `simulator.workload.build.Workload`."""
        if size < 1:
            raise ValueError(f"no group of {size} rollouts")
        group, attempt = address(group, attempt, prompt, visit)
        near = self._near(version)
        u = self._uniforms(group // GROUPS_PER_BLOCK)[group % GROUPS_PER_BLOCK]
        place = int(u * len(near))
        source = int(near[place])
        tokens: list[int] = []
        rewards: list[float] = []
        lane = 0
        while len(tokens) < size:
            donor = int(near[_beside(place, lane, len(near))])
            whole_lengths = self._brought(donor, source)
            order = self._permutation(group, len(whole_lengths), attempt, lane)
            tokens += [whole_lengths[i] for i in order]
            rewards += [self.groups.rewards[donor][i] for i in order]
            lane += 1
        return GroupDraw(self.groups.prompt_tokens[source], tokens[:size], rewards[:size])

    def _nearest(self, step: int) -> NDArray[np.int64]:
        """The groups that a step draws from, shortest mean first: so that neighbouring steps, which
        draw from slightly different ones, give a group about the same."""
        count = min(NEAR_GROUPS, len(self.groups))
        nearest = np.argsort(np.abs(self._version - step), kind="stable")[:count]
        return np.asarray(nearest[np.argsort(self._mean[nearest], kind="stable")])

    def _brought(self, donor: int, source: int) -> list[int]:
        """Lengths of a measured group, at the mean of another."""
        own = self.groups.new_tokens[donor]
        if donor == source:
            return [min(tokens, self.max_new_tokens) for tokens in own]
        lengths = np.array(own, dtype=float) * np.exp(self._mean[source] - self._mean[donor])
        found: list[int] = np.clip(np.rint(lengths), 1, self.max_new_tokens).astype(int).tolist()
        return found

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
    content: Mapping[str, Any], name: str, max_new_tokens: int, seed: int
) -> ResampledWorkload:
    """The workload of a fitted file. Raises ScenarioError (``workload.lengths.file``)."""
    if "groups" not in content:
        raise ScenarioError(FIELD, f"{name} keeps no measured groups; calibrate again")
    groups = MeasuredGroups.from_mapping(content["groups"], name)
    return ResampledWorkload(groups, max_new_tokens, seed)
