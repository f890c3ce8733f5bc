"""The fewest changes of a launch that fit, and those that make it faster, by the stack's settings.

Memory of a set of changes is a ledger, which runs nothing; sets are tried by size, so that the
fewest come first. The step of a change is the planner's estimate over the estimate of the launch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from rollcast.simulator.check.question import Question
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.errors import RollcastError, ScenarioError
from rollcast.simulator.planner.estimate import estimated
from rollcast.simulator.scenario.knobs import Knob, knobs_of
from rollcast.simulator.scenario.ledger import roofline_of
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.workload.base import longest_rollout

MOST_CHANGES = 3
MOST_TRIED = 150
"""Sets of one size."""
SHOWN = 4
LEAST_GAIN = 0.02
SLOW = 1.5
"""Times the step of the launch, that a change is told last for."""
_PASS_TOKENS = "cost.roofline.trainer.microbatch_tokens"
MOST_TAKEN_OFF = 0.25
"""Of what is trained on, what a change leaves at least."""

OnTry = Callable[[], None]


def _nothing() -> None:
    """Of a search that shows no progress."""


@dataclass(frozen=True)
class Change:
    """Settings that are different. settings: by our key. keys: of the scenario that they change.
    lines: in the stack's own words, to paste. words: what they do. ledger: with them. estimate_s:
    of a step, by the planner's estimate; infinite where there is none. trains_otherwise: whether it
    changes what is learned."""

    settings: Mapping[str, Any]
    keys: Mapping[str, Any]
    lines: tuple[str, ...]
    words: tuple[str, ...]
    question: Question
    ledger: Ledger
    estimate_s: float
    trains_otherwise: bool = False


@dataclass(frozen=True)
class _Single:
    """One knob's value, in settings."""

    knob: Knob
    value: Any
    settings: Mapping[str, Any]


def that_fit(
    question: Question, ledger: Ledger, now_s: float = math.inf, on_try: OnTry = _nothing
) -> list[Change]:
    """The smallest sets of changes that more likely fit than not, and than the launch: those that
    leave alone what is learned first, then those that surely fit and are not `SLOW`, then the
    fastest; at most `SHOWN`. ledger: of the question itself. now_s: its step, as if it fit."""
    alone = []
    for single in _singles(question):
        on_try()
        change = _changed(question, (single,))
        if change is not None:
            alone.append((single, change))
    least = max(ledger.fits_probability, 0.5)
    found = [one for _, one in alone if one.ledger.fits and one.ledger.fits_probability > least]
    helpful = _helpful(alone, _excess(ledger))
    for size in range(2, MOST_CHANGES + 1):
        if any(_good(one, now_s) for one in found):
            break
        for chosen in islice(_sets(helpful, size), MOST_TRIED):
            settings = _settings(chosen)
            if any(_sure(one) and one.settings.items() <= settings.items() for one in found):
                continue  # nothing to add
            on_try()
            change = _changed(question, chosen)
            if change is not None and change.ledger.fits_probability > _most(found, change, least):
                found.append(change)
    return _best(found, now_s)


def _most(found: Iterable[Change], change: Change, least: float) -> float:
    """How likely the likeliest part of a change fits; ``least`` at least."""
    parts = (one for one in found if one.settings.items() <= change.settings.items())
    return max((one.ledger.fits_probability for one in parts), default=least)


def _excess(ledger: Ledger) -> float:
    """Bytes by which phases exceed the GPUs' memory and a node its host memory, together."""
    return max(0.0, -ledger.host_left_bytes) + sum(
        max(0.0, ledger.total(phase, pool) - ledger.pools[pool].capacity_bytes)
        for phase, pool in ledger.places
    )


def _helpful(alone: Sequence[tuple[_Single, Change]], excess: float) -> list[_Single]:
    """Singles that bring a phase that does not fit nearer to it: of each knob the one that brings
    it nearest and the fastest, those that help most first."""
    by_knob: dict[str, list[tuple[float, float, _Single]]] = {}
    for single, change in alone:
        left = _excess(change.ledger)
        if left < (1 - LEAST_GAIN) * excess:
            by_knob.setdefault(single.knob.key, []).append((left, change.estimate_s, single))
    kept = []
    for options in by_knob.values():
        kept.append(min(options, key=lambda one: one[:2]))
        kept.append(min(options, key=lambda one: (one[1], one[0])))
    unique = {id(single): (left, single) for left, _, single in kept}
    return [single for _, single in sorted(unique.values(), key=lambda one: one[0])]


def that_speed_up(question: Question, on_try: OnTry = _nothing) -> list[Change]:
    """Single changes that surely fit, leave alone what is learned, and whose estimated step is
    shorter by `LEAST_GAIN` at least, the shortest first; of each knob the best, at most `SHOWN`."""
    now_s = estimate_s(question.scenario)
    found: dict[str, Change] = {}
    for single in _singles(question):
        on_try()
        change = _changed(question, (single,))
        if change is None or not _sure(change) or change.trains_otherwise:
            continue
        had = found.get(single.knob.key)
        if change.estimate_s < (1 - LEAST_GAIN) * now_s and (
            had is None or change.estimate_s < had.estimate_s
        ):
            found[single.knob.key] = change
    return sorted(found.values(), key=lambda change: change.estimate_s)[:SHOWN]


def estimate_s(scenario: Scenario) -> float:
    """Of a step; infinite where it cannot be estimated, since it does not fit."""
    try:
        return estimated(scenario, remedied=False).step_s()
    except RollcastError:
        return float("inf")


def _sure(change: Change) -> bool:
    return change.ledger.nearly_sure


def _good(change: Change, now_s: float) -> bool:
    """Whether nobody would look for another one."""
    return _sure(change) and not change.trains_otherwise and change.estimate_s <= SLOW * now_s


def _best(found: Iterable[Change], now_s: float) -> list[Change]:
    """The best of each set of knobs; none that is `SLOW` where a good one is not."""
    listed = list(found)
    if any(_good(one, now_s) for one in listed):
        listed = [one for one in listed if one.estimate_s <= SLOW * now_s]
    ordered = sorted(
        listed,
        key=lambda one: (
            one.trains_otherwise,
            not _sure(one) or one.estimate_s > SLOW * now_s,
            len(one.keys),
            one.estimate_s,
        ),
    )
    unlike = {frozenset(one.keys): one for one in reversed(ordered)}
    return [one for one in ordered if unlike[frozenset(one.keys)] is one][:SHOWN]


def _singles(question: Question) -> Iterator[_Single]:
    """Every value of every knob that the launch can say, and does not say yet."""
    cost = roofline_of(question.scenario.cost)
    if cost is None:
        return
    stack = question.value("cost.roofline.stack")
    for knob in knobs_of(stack, cost.trainer_of.backend, cost.placement, cost.model):
        for value in _tried(knob, question):
            if settings := question.saying(knob.key, value):
                yield _Single(knob, value, settings)


def _tried(knob: Knob, question: Question) -> tuple[Any, ...]:
    """The other values of a knob: of what changes the training, those that take a little off; of a
    pass's tokens, those that hold the longest rollout."""
    now = question.value(knob.key)
    if knob.key == _PASS_TOKENS:
        longest = sum(longest_rollout(question.scenario.workload))
        able = sorted({longest, *(value for value in knob.values if value > longest)})
        return tuple(value for value in able if value != now)
    others = knob.others(now)
    if knob.effect != "training" or isinstance(now, bool) or not isinstance(now, int | float):
        return others
    return tuple(value for value in others if MOST_TAKEN_OFF * now <= value < now)


def _sets(singles: Sequence[_Single], size: int) -> Iterator[tuple[_Single, ...]]:
    """Sets of that many, no knob twice."""
    for chosen in combinations(singles, size):
        if len({one.knob.key for one in chosen}) == size:
            yield chosen


def _settings(chosen: Iterable[_Single]) -> dict[str, Any]:
    return {key: value for one in chosen for key, value in one.settings.items()}


def _changed(question: Question, chosen: Sequence[_Single]) -> Change | None:
    """None where the launch cannot be changed so, or the change does not come through."""
    settings = _settings(chosen)
    try:
        changed = question.with_settings(settings)
        ledger = changed.scenario.ledger
        lines = question.lines(settings)
    except (ScenarioError, KeyError):  # KeyError: the stack has no word for it
        return None
    if ledger is None or any(changed.value(one.knob.key) != one.value for one in chosen):
        return None
    return Change(
        settings,
        {one.knob.key: one.value for one in chosen},
        tuple(lines),
        tuple(one.knob.words for one in chosen),
        changed,
        ledger,
        estimate_s(changed.scenario),
        any(one.knob.effect == "training" for one in chosen),
    )
