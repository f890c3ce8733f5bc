"""Turns replayed from a trace: CSV with the columns
``group,index,turn,observation_tokens,new_tokens,environment_s`` and, if known, ``reward``.

One row a turn. The first turn's observation is the prompt, which a group's rollouts share.
``environment_s`` is what the environment took after the turn; after the last one it may be 0. A
reward stands in the last turn's row, or in every row of its rollout alike.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, NoReturn

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.rollout import CUT, FAILED
from rollcast.simulator.workload.draws import GroupDraw, address
from rollcast.simulator.workload.environment import EnvironmentSection
from rollcast.simulator.workload.seconds import LARGEST_S, DrawnSeconds
from rollcast.simulator.workload.traces import (
    FIELD,
    csv_rows,
    ordinal,
    reward_of,
    shown,
    text_of,
    tokens_of,
)
from rollcast.simulator.workload.turns import Caps, Patience, trajectory

COLUMNS = ("group", "index", "turn", "observation_tokens", "new_tokens", "environment_s")


class TracedTurn(NamedTuple):
    """A row: what began the turn, what it sampled, what its environment then took."""

    observation_tokens: int
    new_tokens: int
    environment_s: float


@dataclass(frozen=True, slots=True)
class TracedGroup:
    """The rollouts of one prompt, and their rewards where the trace has them."""

    prompt_tokens: int
    rollouts: tuple[tuple[TracedTurn, ...], ...]
    rewards: tuple[float, ...] | None


@dataclass(frozen=True, slots=True)
class TurnTrace:
    """A trace of turns; groups in rising order of their number in the file."""

    name: str
    groups: tuple[TracedGroup, ...]

    @property
    def has_rewards(self) -> bool:
        """Whether every rollout has a reward."""
        return self.groups[0].rewards is not None


def has_turns(path: Path) -> bool:
    """Whether a file is a trace of turns, by its header. What cannot be read is none."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            header = next(csv.reader([file.readline(4096)]), [])
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return "turn" in [name.strip() for name in header]


def _fail(message: str) -> NoReturn:
    raise ScenarioError(FIELD, message)


def read_turn_trace(path: Path) -> TurnTrace:
    """The trace in a file. Raises ScenarioError, field ``workload.lengths.trace``, naming line and
    column of what is wrong, or of what contradicts an earlier line."""
    rows = csv_rows(text_of(path), path)
    _, header = next(rows, (0, []))
    names = [name.strip() for name in header]
    lacking = [name for name in COLUMNS if name not in names]
    if lacking:
        _fail(
            f"{path} lacks the column {', '.join(lacking)}; a trace of turns has "
            f"{','.join(COLUMNS)} and, if known, reward"
        )
    at = {name: names.index(name) for name in (*COLUMNS, "reward") if name in names}
    read = _Reader(path, at)
    for line, row in rows:
        read.take(line, row)
    return read.trace()


class _Reader:
    """Takes in rows, in any order."""

    def __init__(self, path: Path, at: dict[str, int]) -> None:
        self._path, self._at = path, at
        self._turns: dict[tuple[int, int], dict[int, TracedTurn]] = {}
        self._rewards: dict[tuple[int, int], float] = {}

    def take(self, line: int, row: list[str]) -> None:
        """A row. Raises ScenarioError."""
        where = f"{self._path}, line {line}"
        cell = {name: row[place] for name, place in self._at.items()}
        key = tuple(ordinal(cell[name], f"{where}, {name}") for name in ("group", "index"))
        group, index = key
        turn = ordinal(cell["turn"], f"{where}, turn")
        least = 0 if turn else 1
        observed = tokens_of(cell["observation_tokens"], f"{where}, observation_tokens", least)
        new = tokens_of(cell["new_tokens"], f"{where}, new_tokens")
        seconds = self._seconds(cell["environment_s"], f"{where}, environment_s")
        turns = self._turns.setdefault((group, index), {})
        if turn in turns:
            _fail(f"{where} repeats group {group}, index {index}, turn {turn}; each has one row")
        turns[turn] = TracedTurn(observed, new, seconds)
        if cell.get("reward", "").strip():
            reward = reward_of(cell["reward"], f"{where}, reward")
            if self._rewards.setdefault((group, index), reward) != reward:
                _fail(
                    f"{where} gives group {group}, index {index} a reward of {reward:g}, an "
                    f"earlier line {self._rewards[group, index]:g}"
                )

    def _seconds(self, text: str, where: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= LARGEST_S:
            _fail(f"{where} is {shown(text)}; give seconds, from 0 to {LARGEST_S:g}")
        return seconds

    def trace(self) -> TurnTrace:
        """All of it. Raises ScenarioError for gaps, and prompts that differ within a group."""
        if not self._turns:
            _fail(f"{self._path} has a header and no rows")
        groups: dict[int, dict[int, tuple[TracedTurn, ...]]] = {}
        for (group, index), turns in sorted(self._turns.items()):
            for turn in range(len(turns)):
                if turn not in turns:
                    _fail(
                        f"{self._path}, group {group}, index {index} has {len(turns)} turns and "
                        f"none with number {turn}; turns count 0, 1, 2, ..."
                    )
            groups.setdefault(group, {})[index] = tuple(turns[i] for i in range(len(turns)))
        rewarded = len(self._rewards)
        if rewarded not in (0, len(self._turns)):
            _fail(
                f"{self._path} has rewards of {rewarded} of {len(self._turns)} rollouts; give "
                "every one a reward, or none"
            )
        return TurnTrace(self._path.name, tuple(self._group(*item) for item in groups.items()))

    def _group(self, group: int, rollouts: dict[int, tuple[TracedTurn, ...]]) -> TracedGroup:
        for index in range(len(rollouts)):
            if index not in rollouts:
                _fail(
                    f"{self._path}, group {group} has {len(rollouts)} rollouts and none with "
                    f"index {index}; indices count 0, 1, 2, ... without gaps"
                )
        prompts = {turns[0].observation_tokens for turns in rollouts.values()}
        if len(prompts) > 1:
            _fail(
                f"{self._path}, group {group} has prompts (observation_tokens of turn 0) of "
                f"{min(prompts)} and {max(prompts)} tokens; a group's rollouts share one "
                "prompt"
            )
        rewards = None
        if self._rewards:
            rewards = tuple(self._rewards[group, index] for index in range(len(rollouts)))
        ordered = tuple(rollouts[index] for index in range(len(rollouts)))
        return TracedGroup(prompts.pop(), ordered, rewards)


class TurnTraceWorkload:
    """Turns, and rewards where the trace has them, replayed.

    Group g of the run is the g-th of the trace, index i its i-th rollout; ``repeat`` starts over
    once the groups are used up. A restart (``attempt`` k) of index i is rollout i + k, counted
    around the group. What goes beyond a cap is cut to it, or ended there, and what takes longer
    than the environment's timeout is given up. Without rewards in the trace, a rollout that ends by
    itself earns 1 and every other 0.
    """

    def __init__(
        self,
        trace: TurnTrace,
        max_new_tokens: int,
        max_context_tokens: int | None = None,
        environment: EnvironmentSection | None = None,
        *,
        repeat: bool = False,
    ) -> None:
        self.trace = trace
        self.max_new_tokens = max_new_tokens
        self.max_prompt_tokens = max(group.prompt_tokens for group in trace.groups)
        self.warnings: tuple[str, ...] = ()
        self._repeat = repeat
        self._caps = Caps(max_new_tokens, max_context_tokens)
        self._patience = Patience.of(environment)
        boot = 0.0 if environment is None else environment.boot_s
        if isinstance(boot, DrawnSeconds):
            raise ScenarioError("environment.boot_s", "give a number of seconds beside a trace")
        self._boot_s = boot
        if max_context_tokens is not None and max_context_tokens <= self.max_prompt_tokens:
            raise ScenarioError(
                "workload.max_context_tokens",
                f"is {max_context_tokens}, and {trace.name} has a prompt of "
                f"{self.max_prompt_tokens} tokens: make it larger",
            )

    @property
    def max_context_tokens(self) -> int:
        """No prompt, with what comes after it, is longer, tokens."""
        if self._caps.context_tokens is not None:
            return self._caps.context_tokens
        cap = self.max_new_tokens
        return max(
            sum(turn.observation_tokens + min(turn.new_tokens, cap) for turn in turns)
            for group in self.trace.groups
            for turns in group.rollouts
        )

    def draw(
        self,
        group: int,
        size: int,
        attempt: int = 0,
        version: int = 0,
        prompt: int | None = None,
        visit: int = 0,
    ) -> GroupDraw:
        """The first ``size`` rollouts of ``group``; see `simulator.workload.build.Workload`.

        Raises ScenarioError where the trace holds fewer groups or rollouts than asked for."""
        if size < 1:
            raise ValueError(f"no group of {size} rollouts")
        number, tried = address(group, attempt, prompt, visit)
        groups, name = self.trace.groups, self.trace.name
        if number >= len(groups) and not self._repeat:
            _fail(
                f"{name} holds {len(groups)} groups and the run asked for group {number + 1}; set "
                "repeat: true to start over, or run fewer steps"
            )
        source = groups[number % len(groups)]
        held = len(source.rollouts)
        if size > held:
            _fail(
                f"{name} holds {held} rollouts for group {number % len(groups)} and {size} were "
                "asked for; lower workload.group_size (and what a policy may raise it to), or "
                "bring a trace with larger groups"
            )
        around = [(index + tried) % held for index in range(size)]
        made = [
            trajectory(
                source.prompt_tokens,
                [(*turn, 1.0) for turn in source.rollouts[i]],
                "stop",
                self._caps,
                self._patience,
                self._boot_s,
            )
            for i in around
        ]
        rewards = []
        for i, taken in zip(around, made, strict=True):
            known = source.rewards[i] if source.rewards else float(taken.ending not in CUT)
            rewards.append(0.0 if taken.ending in FAILED else known)
        lengths = [trajectory.new_tokens for trajectory in made]
        return GroupDraw(source.prompt_tokens, lengths, rewards, None, made)
