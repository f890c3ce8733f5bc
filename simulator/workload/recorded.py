"""Lengths, rewards and common tokens as a finished run had them: the same run in another world."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rollcast.simulator.core.rollout import ENDINGS
from rollcast.simulator.core.spans import Calls, Segments
from rollcast.simulator.errors import RunError
from rollcast.simulator.workload.base import GroupDraw, Path
from rollcast.simulator.workload.recorded_turns import (
    NOTHING,
    Name,
    context_tokens,
    never_ending,
    recorded_trajectories,
)
from rollcast.simulator.workload.slots import UNLIMITED, EnvironmentSpec


class RecordedWorkload:
    """The responses in a run's table of segments, by (group, attempt, index).

    A rollout that never finished gets ``unfinished_tokens`` more than it had, which a replay with
    the same decisions never reaches. max_new_tokens: the run's cap, of each turn if any. calls: the
    run's, of rollouts with turns or judges; environments: their slots.
    """

    def __init__(
        self,
        segments: Segments,
        max_new_tokens: int,
        unfinished_tokens: int = 1,
        calls: Calls | None = None,
        environments: EnvironmentSpec = UNLIMITED,
    ) -> None:
        self.max_new_tokens = max_new_tokens
        self.warnings: tuple[str, ...] = ()
        self.turned = (
            recorded_trajectories(segments, calls, environments)
            if calls is not None and len(calls)
            else None
        )
        self._found: dict[tuple[int, int], dict[int, tuple[int, float]]] = {}
        self._prompts: dict[int, int] = {}
        columns = ("group", "attempt", "index", "prompt_tokens", "total_tokens", "finished")
        for group, attempt, index, prompt, total, finished, ending, reward in segments.each(
            *columns, "ending", "reward"
        ):
            whole = finished and ENDINGS[ending] != "trial_timeout"
            tokens = total if whole else total + unfinished_tokens
            if self.turned is None:
                tokens = min(tokens, max_new_tokens)
            self._found.setdefault((group, attempt), {})[index] = (tokens, reward)
            self._prompts[group] = prompt
        self.max_prompt_tokens = max(self._prompts.values(), default=1)
        self.max_context_tokens = self.max_prompt_tokens + max_new_tokens
        self._made = {}
        if self.turned is not None:
            self._made = {
                name: never_ending(trajectories, unfinished_tokens, max_new_tokens)
                for name, trajectories in self.turned.items()
            }
            self.max_context_tokens = max(
                context_tokens(self.turned[name].prompt_tokens, made)
                for name, made in self._made.items()
            )
        self._paths = paths(segments) if (segments["shared_tokens"] > 0).any() else None

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The group's responses; 0 tokens for one that no replica had. Raises RunError if the last
        is such."""
        recorded = self._found.get((group, attempt), {})
        if size - 1 not in recorded:
            raise RunError(
                f"the replay launched rollout {size - 1} of group {group} (attempt {attempt}), "
                "which the run that it replays never did: their decisions differ"
            )
        drawn = [recorded.get(index, (0, math.nan)) for index in range(size)]
        lengths = tuple(tokens for tokens, _ in drawn)
        rewards = tuple(reward for _, reward in drawn)
        sharing = None if self._paths is None else RecordedSharing(self._paths, group, attempt)
        made = None
        if self.turned is not None:
            made = [self._made.get((group, attempt, index), NOTHING) for index in range(size)]
            lengths = tuple(trajectory.new_tokens for trajectory in made)
        return GroupDraw(self._prompts[group], lengths, rewards, sharing, made)


@dataclass(frozen=True)
class RecordedSharing:
    """What a group's responses had in common with others, version by version."""

    paths: dict[tuple[int, Name], Path]
    group: int
    attempt: int

    def path(self, index: int, version: int) -> Path:
        """The path of a response among those of this version; none if it had no segment then."""
        return self.paths.get((version, (self.group, self.attempt, index)), ())


def paths(segments: Segments) -> dict[tuple[int, Name], Path]:
    """The path of every response in every version in which it had a segment.

    A row names the earlier row of its version that shares most tokens with it: rows form a tree,
    and the first row with a beginning owns it. A path ends where no other response follows it
    further. Observations count as tokens; rows without a replica computed nothing.
    """
    context = ("prompt_tokens", "total_tokens", "observation_tokens")
    shared = ("shared_tokens", "shared_group", "shared_index")
    rows = segments.each("group", "attempt", "index", "version", "replica", *context, *shared)
    whole: dict[tuple[int, Name], list[tuple[int, int]]] = {}  # by version and response
    latest: dict[tuple[int, int, int], list[tuple[int, int]]] = {}  # by version, group and index
    # Of the tokens of each row that no earlier one began with: which responses go along them, and
    # how far, in tokens from their beginning.
    lines: list[dict[Name, int]] = []
    for row, (group, attempt, index, version, replica, *parts, tokens, whose, place) in enumerate(
        rows
    ):
        if replica < 0:
            lines.append({})
            continue
        name, context = (group, attempt, index), sum(parts)
        path: list[tuple[int, int]] = []
        if tokens:
            earlier = latest.get((version, whose, place))
            if earlier is None or earlier[-1][0] < tokens:
                raise RunError(
                    f"segment {row} of the run began with {tokens} tokens of rollout "
                    f"{(whose, place)}, which has no earlier segment of so "
                    f"many in version {version}"
                )
            path = _cut(earlier, tokens)
        if context > tokens:
            path.append((context, row))
        lines.append({})
        for end, owner in path:
            lines[owner][name] = end
        whole[version, name] = latest[version, group, index] = path
    return {
        (version, name): _cut(path, _common(path, name, lines))
        for (version, name), path in whole.items()
    }


def _cut(path: Sequence[tuple[int, int]], tokens: int) -> list[tuple[int, int]]:
    """The path of the first ``tokens`` tokens."""
    cut: list[tuple[int, int]] = []
    for end, owner in path:
        if not cut or cut[-1][0] < tokens:
            cut.append((min(end, tokens), owner))
    return cut if tokens else []


def _common(path: Sequence[tuple[int, int]], name: Name, lines: Sequence[dict[Name, int]]) -> int:
    """How many of the path's tokens any other response has."""
    starts = [0, *(end for end, _ in path)]
    for (end, owner), start in zip(reversed(path), reversed(starts[:-1]), strict=True):
        others = (reach for other, reach in lines[owner].items() if other != name)
        reach = min(max(others, default=0), end)
        if reach > start:
            return reach
    return 0
