"""The numbers of the best choice's policies, changed one at a time: what is better is raced to the
end, and what is faster but learns from something else is said, for the user to weigh."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rollcast.simulator.core.policy import Chain, chain
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.planner.answer import Row
from rollcast.simulator.planner.auto import TELLING
from rollcast.simulator.planner.measure import Measured, Simulator, Task
from rollcast.simulator.planner.question import Question
from rollcast.simulator.planner.whole_run import RunCost
from rollcast.simulator.planner.words import OBJECTIVES
from rollcast.simulator.policies import parse_labelled, spell
from rollcast.simulator.values import given

ROUNDS = 2  # of changes, each from the best so far
TRIED = 10  # changes of both
GAIN = 0.01  # of the objective, below which a change is none
WORTH = 0.03  # below which it is not worth a sentence
SAID = 2  # changes that are said
RATIOS = ("over_sampling", "in_flight")  # numbers that need not be whole
ALIKE = 0.03  # share by which trained rollouts and their length may differ


@dataclass(frozen=True, slots=True)
class Refined:
    """policy: a chain that is better and learns from the same; None where none is. sentences: of
    those that are faster and learn from staler, fewer or shorter rollouts."""

    policy: str | None = None
    sentences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Tried:
    policy: str
    measured: Measured
    value: float


def refined(search: Simulator, asked: Question, best: Row) -> Refined:
    """The best choice with other numbers in its policies, by short simulations."""
    tried: dict[str, _Tried] = {}

    def simulated(policies: Sequence[str]) -> list[_Tried]:
        tasks = [Task(replace(best.choice, policy=policy), steps) for policy in policies]
        results = search.simulate("the policy's numbers", tasks)
        made = []
        for policy, result in zip(policies, results, strict=True):
            if isinstance(result, Measured):
                run_cost = _run_cost(asked, best, policy, result)
                if not list(asked.objective.beyond(best.setup, result, run_cost)):
                    made.append(_Tried(policy, result, asked.objective.value(run_cost)))
        return made

    steps, folder = asked.rungs.brief, asked.raw.modules
    if not neighbours(best.choice.policy, folder):
        return Refined()
    started = simulated([best.choice.policy])
    if not started:
        return Refined()
    [start] = started
    now = start
    for _ in range(ROUNDS):
        wanted = [policy for policy in neighbours(now.policy, folder) if policy not in tried]
        made = simulated(wanted[: asked.rungs.tries(TRIED) - len(tried)])
        tried.update({one.policy: one for one in made})
        better = [
            one
            for one in made
            if one.value < (1 - GAIN) * now.value
            and _learns_alike(one.measured, start.measured, asked)
        ]
        if not better:
            break
        now = min(better, key=lambda one: (one.value, one.policy))
    others = [
        one
        for one in tried.values()
        if one.value < (1 - WORTH) * now.value
        and not _learns_alike(one.measured, start.measured, asked)
    ]
    others.sort(key=lambda one: (one.value, one.policy))
    return Refined(
        None if now is start else now.policy,
        tuple(_sentence(one, start, asked) for one in others[:SAID]),
    )


def neighbours(policy: str, folder: Path | None = None) -> list[str]:
    """The chains with one number of one policy a quarter smaller or larger (whole ones by one at
    least), where it can be; each is spelt."""
    parsed = parse_labelled(policy, folder=folder)[1]
    texts = [spell(changed, TELLING) for changed in _changed(parsed)]
    return [text for text in dict.fromkeys(texts) if text != spell(parsed, TELLING)]


def _changed(parsed: Chain) -> Iterator[Chain]:
    members = parsed.policies
    for place, member in enumerate(members):
        for name, value in given(member).items():
            if name == "seed" or isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if not math.isfinite(value):
                continue
            for sign in (-1, 1):
                step: float = max(1, value // 4)
                if name in RATIOS or value != int(value):
                    step = value / 4
                other = float(f"{value + sign * step:.2g}")
                try:
                    changed = replace(cast(Any, member), **{name: type(value)(other)})
                except RollcastError:  # beyond its range
                    continue
                yield chain(*members[:place], changed, *members[place + 1 :])


def _run_cost(asked: Question, best: Row, policy: str, measured: Measured) -> RunCost:
    quality = asked.quality_for(policy, measured)
    setup = best.setup
    return measured.run_cost(asked.work, setup.gpus, setup.usd_per_gpu_hour, quality)


def _learns_alike(one: Measured, other: Measured, asked: Question) -> bool:
    """Whether its update trains on as many rollouts, as long and no older; or whether a law of
    learning has counted what that does."""
    if asked.work.accuracy is not None:
        return True
    long, usual = one.length_bias or 1.0, other.length_bias or 1.0
    return (
        one.staleness_max <= other.staleness_max
        and abs(one.trained - other.trained) <= ALIKE * max(other.trained, 1.0)
        and abs(long - usual) <= ALIKE
    )


def _sentence(one: _Tried, start: _Tried, asked: Question) -> str:
    less = 1 - one.value / start.value
    made, usual, told = one.measured, start.measured, []
    if made.staleness_max != usual.staleness_max:
        told.append(f"tokens up to {made.staleness_max} versions old (now {usual.staleness_max})")
    if abs(made.trained - usual.trained) > ALIKE * max(usual.trained, 1.0):
        told.append(f"{made.trained:,.0f} rollouts an update (now {usual.trained:,.0f})")
    if abs((made.length_bias or 1.0) - (usual.length_bias or 1.0)) > ALIKE:
        told.append(
            f"responses {made.length_bias or 1.0:.2f}x as long as those launched "
            f"(now {usual.length_bias or 1.0:.2f}x)"
        )
    return (
        f"{one.policy} would take {less:.0%} less {OBJECTIVES[asked.objective.name]} on the same "
        f"GPUs, but trains on {' and '.join(told)}."
    )
