"""The trajectories of a finished run, from its tables of segments and calls.

Where slots are held for a call, a boot is part of the first answer. Where an environment was closed
(``on_suspend: close``) and booted again, its next call repeated earlier answers; that is
subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rollcast.simulator.core.rollout import CALL_ENDS, CALL_KINDS, ENDINGS, FAILED, CallEnd, Ending
from rollcast.simulator.core.spans import Calls, Segments
from rollcast.simulator.workload.base import Trajectory, Turn
from rollcast.simulator.workload.seconds import LARGEST_S
from rollcast.simulator.workload.slots import EnvironmentSpec

Name = tuple[int, int, int]
"""(group, attempt, index) of a response."""

Cut = Literal["boot", "model", "budget", "environment", "reward"]


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """How far a rollout came. cut: where it was stopped for good, None at its end; its last turn,
    boot_s or reward_s then has what it reached. ``budget``: in the model, or after a turn there."""

    prompt_tokens: int
    trajectory: Trajectory
    cut: Cut | None
    reward: float


class _Row(NamedTuple):
    turn: int
    tokens: int
    observed: int
    ending: Ending
    finished: bool
    end_s: float
    prompt_tokens: int
    reward: float


class _Call(NamedTuple):
    turn: int
    kind: str
    ended: CallEnd
    seconds: float
    asked_s: float
    end_s: float


def recorded_trajectories(
    segments: Segments, calls: Calls, spec: EnvironmentSpec
) -> dict[Name, RecordedTrajectory]:
    """Every rollout that had a segment, by name. spec: the run's environments."""
    rows: dict[Name, list[_Row]] = {}
    key = ("group", "attempt", "index", "turn")
    columns = ("new_tokens", "observation_tokens", "ending", "finished", "end_s", "prompt_tokens")
    for group, attempt, index, turn, new, observed, ending, finished, *rest in segments.each(
        *key, *columns, "reward"
    ):
        name = ENDINGS[ending]
        # the limit on a trial stops a rollout, as the loop will again
        whole = bool(finished) and name != "trial_timeout"
        row = _Row(turn, new, observed, name, whole, *rest)
        rows.setdefault((group, attempt, index), []).append(row)
    asked: dict[Name, list[_Call]] = {}
    for group, attempt, index, turn, kind, ended, asked_s, start_s, end_s in calls.each(
        *key, "kind", "ended", "asked_s", "start_s", "end_s"
    ):
        call = _Call(turn, CALL_KINDS[kind], CALL_ENDS[ended], end_s - start_s, asked_s, end_s)
        asked.setdefault((group, attempt, index), []).append(call)
    return {name: _trajectory(mine, asked.get(name, []), spec) for name, mine in rows.items()}


class _Environment:
    """An environment by one rollout's calls. seconds: of each turn's answer; reached: of answers
    that never came; boot_s: of a boot outside an answer."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.reached: dict[int, float] = {}
        self.boot_s: float | None = None
        self.booted = False
        self.booting = False
        self._pieces_s = 0.0

    def take(self, call: _Call, answers: bool) -> None:
        """answers: whether the call was to answer its turn; it only boots otherwise."""
        self._pieces_s += call.seconds
        before = math.fsum(self.seconds.get(turn, 0.0) for turn in range(call.turn))
        repeated_s = 0.0 if self.booted else (self.boot_s or 0.0) + before
        own_s = max(self._pieces_s - repeated_s, 0.0)
        self.booting = self.boot_s is None and not answers
        if answers:
            self.reached[call.turn] = max(self.reached.get(call.turn, 0.0), own_s)
        elif self.booting:
            self.reached[-1] = max(self.reached.get(-1, 0.0), own_s)
        if call.ended == "suspended":
            return
        if call.ended != "closed":
            if answers:
                self.seconds[call.turn] = own_s
            elif self.booting:
                self.boot_s, self.booting = self._pieces_s, False
            self.booted = True
        self._pieces_s = 0.0

    def closed(self) -> None:
        """It is gone."""
        self.booted, self._pieces_s = False, 0.0


def _trajectory(
    rows: Sequence[_Row], calls: Sequence[_Call], spec: EnvironmentSpec
) -> RecordedTrajectory:
    last = rows[-1]
    count = last.turn + 1
    tokens, observed, sampled_by = [0] * count, [0] * count, [-1] * count
    complete = [last.finished or turn < last.turn for turn in range(count)]
    for place, row in enumerate(rows):
        tokens[row.turn] += row.tokens
        observed[row.turn] = row.observed
        complete[row.turn] |= row.ending == "turn"
        if row.tokens:
            sampled_by[row.turn] = place
    if spec.held == "call":  # nothing is asked before a turn is over, even one at its budget
        for call in calls:
            if call.kind == "environment":
                complete[min(call.turn, last.turn)] = True
    environment, judge_s, judged = _Environment(), 0.0, False
    waiting = list(reversed(calls))
    for place, row in enumerate(rows):
        while waiting and waiting[-1].end_s <= row.end_s:
            if row.tokens and waiting[-1].asked_s >= row.end_s:
                break  # asked with what this segment sampled, and stopped at the same instant
            call = waiting.pop()
            if call.kind == "reward":
                judge_s, judged = judge_s + call.seconds, True
                continue
            turn = min(call.turn, last.turn)
            answers = complete[turn] and place > sampled_by[turn]
            environment.take(call, answers)
        away = not row.finished and row.ending != "turn"
        if away and spec.on_suspend == "close":
            environment.closed()
    cut: Cut | None = None
    seconds = environment.seconds
    if not last.finished:
        cut = "reward" if judged else "environment" if complete[-1] else "model"
        if environment.booting:
            cut = "boot"
        elif cut == "model" and last.ending == "budget":
            cut = "budget"
        if cut == "environment":
            seconds = {**seconds, last.turn: environment.reached.get(last.turn, 0.0)}
    before = [0, *observed]
    turns = tuple(
        Turn(observed[turn] - before[turn], tokens[turn], seconds.get(turn, 0.0))
        for turn in range(count)
    )
    ending = last.ending if last.finished else "stop"
    boot_s = environment.reached[-1] if cut == "boot" else environment.boot_s or 0.0
    made = Trajectory(turns, ending, boot_s, judge_s if judged else None)
    return RecordedTrajectory(last.prompt_tokens, made, cut, last.reward)


def continued(recorded: RecordedTrajectory, drawn: Trajectory) -> Trajectory:
    """A recorded rollout, continued like ``drawn`` from where it was stopped: at least one token,
    or as long in its environment, as it had; with one turn more if ``drawn`` ended before."""
    made, cut = recorded.trajectory, recorded.cut
    if cut is None:
        return made
    if cut == "reward":
        seconds = max(made.reward_s or 0.0, drawn.reward_s or 0.0)
        return replace(made, reward_s=seconds)
    if cut == "boot":
        return replace(drawn, boot_s=max(drawn.boot_s, made.boot_s))
    *known, last = made.turns
    here = drawn.turns[len(known)] if len(known) < len(drawn.turns) else None
    rest = drawn.turns[len(made.turns) :]
    ending: Ending = drawn.ending
    if cut in ("model", "budget"):
        more = here or Turn(0, 0, 0.0)
        if here is None and ending in FAILED:
            ending = "stop"
        tokens = max(more.new_tokens, last.new_tokens + (cut == "model"))
        last = last._replace(new_tokens=tokens, environment_s=more.environment_s)
    else:
        seconds = max(last.environment_s, here.environment_s if here else 0.0)
        last = last._replace(environment_s=seconds)
        if not rest and (here is None or ending not in FAILED):
            rest = (drawn.turns[-1]._replace(environment_s=0.0),)
            ending = "stop"
    return Trajectory((*known, last, *rest), ending, made.boot_s, drawn.reward_s)


def never_ending(recorded: RecordedTrajectory, tokens: int, cap: int) -> Trajectory:
    """A recorded rollout with ``tokens`` more, up to ``cap``, or with a call that never ends."""
    made, cut = recorded.trajectory, recorded.cut
    *known, last = made.turns
    if cut == "model":
        last = last._replace(new_tokens=max(min(last.new_tokens + tokens, cap), 1))
        return replace(made, turns=(*known, last))
    if cut == "boot":
        return replace(made, turns=(last._replace(new_tokens=1),), boot_s=LARGEST_S)
    if cut in ("environment", "budget"):
        last = last._replace(environment_s=LARGEST_S)
        return replace(made, turns=(*known, last, Turn(0, 1, 0.0)))
    return replace(made, reward_s=LARGEST_S) if cut == "reward" else made


def context_tokens(prompt_tokens: int, made: Trajectory) -> int:
    """Of a rollout at its end."""
    return prompt_tokens + sum(turn.observation_tokens + turn.new_tokens for turn in made.turns)


NOTHING = Trajectory((Turn(0, 1, 0.0),))
"""Of a rollout that no replica ever had."""
