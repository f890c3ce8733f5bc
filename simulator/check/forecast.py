"""How long a step takes, by phase, with 90 % intervals that hold what a launch leaves open."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from rollcast.simulator.check.question import CAP, MEAN_TOKENS, Question
from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.costs.memory.ledger import Ledger
from rollcast.simulator.costs.presets.provenance import figures
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner.estimate import estimated
from rollcast.simulator.results.phases import PHASES, PhaseName, in_sum
from rollcast.simulator.scenario.ledger import roofline_of
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.simulate import Result, simulate
from rollcast.simulator.studies.uncertainty import add_intervals

OnStep = Callable[[StepRecord], None] | None
_S = dict[str, float]  # seconds of a step, and of its phases by name
LAST = 0.03  # share of a step's responses whose wait is told
ROUNDING = 1e-9  # share of a step that is no phase
RUNAWAY = "workload.lengths.runaway"
_HALVINGS = 6  # of the logarithm of a range of eight times: to 4 %
_LEAST_OF_CAP = 1 / 64  # of the longest responses that are tried
_ABOVE_MEAN = 1.25  # times a mean length that somebody says, the shortest of these
_WEIGHTS = (0.63, 0.185, 0.185)
_OF_TOKENS = ("log_prob", "reference", "values", "update")
_MULTIPLES = frozenset({"fully_async", "one_step_off", "pipeline_rl"})
_MANY, _ENOUGH = 4_096, 2_048  # rollouts of a run, and of the part of one that tells of it


@dataclass(frozen=True)
class Seconds:
    """A median and its 90 % interval."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Seconds:
        """Each of them so many times."""
        return Seconds(self.median * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Part:
    """A run of fewer replicas with as much each, which tells what other settings do to all of it:
    to each phase what they do to the part's own, to the trainer's passes what they do by the
    planner's estimate, and to a step that overlaps training what they do to the part's, whose
    trainer is as much smaller. fewer: times. whole, part: the scenarios. own: seconds of a step and
    its phases, of the whole run."""

    fewer: int
    whole: Scenario
    part: Scenario
    own: Mapping[str, float]

    @cached_property
    def _middle(self) -> _S:
        """Of the part: simulated where another is asked for, and once."""
        return _seconds(simulate(self.part).summary)

    @cached_property
    def _train_s(self) -> float:
        """Of the whole run, by the estimate."""
        return estimated(self.whole).train_s

    def seconds(self, question: Question, keys: Mapping[str, Any], on_step: OnStep = None) -> _S:
        """Seconds of a step and its phases of the whole run, of a question with these keys. Raises
        ScenarioError or RunError as `simulate` does."""
        whole = question.with_keys(keys)
        part = question.with_keys({**keys, **_part_keys(whole, self.fewer)})
        its = _seconds(simulate(part, on_step).summary)
        if _overlaps(self.whole):
            of_step = self.own["step"] / self._middle["step"]
            pairs = ((name, self.own[name], self._middle[name]) for name in its)
            return {
                name: its[name] * (own / its_own if own and its_own else of_step)
                for name, own, its_own in pairs
            }
        longer = estimated(whole).train_s / self._train_s
        for name in PHASES:
            ratio = its[name] / self._middle[name] if self._middle[name] else 1.0
            its[name] = self.own[name] * (longer if name in _OF_TOKENS else ratio)
        its["step"] = self.own["step"] + sum(its[name] - self.own[name] for name in in_sum(False))
        return its


@dataclass(frozen=True)
class Forecast:
    """step, phases: seconds of a step, and of each of its phases that takes any. result: of the run
    behind them. last_share: of generation, in which the last 3 % of responses end. steps: of the
    whole run, None if unknown. known_length: seconds of a step if the mean response length is the
    one that was assumed; None where it was not assumed. part: of the run, None of a short one."""

    step: Seconds
    phases: Mapping[PhaseName, Seconds]
    result: Result
    last_share: float
    steps: int | None
    known_length: Seconds | None = None
    part: Part | None = None

    @property
    def summary(self) -> Mapping[str, Any]:
        """Of the run."""
        return self.result.summary

    @property
    def said(self) -> Mapping[str, Any]:
        """The summary, with the intervals of phases that hold what the launch leaves open."""
        open_too = {
            name: {**self.summary["phases"][name], "low_s": phase.low, "high_s": phase.high}
            for name, phase in self.phases.items()
        }
        return {**self.summary, "phases": {**self.summary["phases"], **open_too}}

    @property
    def gpus(self) -> int:
        """That the run holds."""
        return self.result.scenario.shape.held_gpus

    @property
    def hours(self) -> Seconds | None:
        """Of the whole run."""
        return None if self.steps is None else self.step.times(self.steps / 3600)

    @property
    def usd(self) -> Seconds | None:
        """Of the whole run; None without a price."""
        price, hours = self.result.scenario.usd_per_gpu_hour, self.hours
        return None if price is None or hours is None else hours.times(price * self.gpus)


def forecast(question: Question, fits: bool, on_step: OnStep = None) -> Forecast:
    """Simulates a question's scenario; where it does not fit, as if it did. Raises ScenarioError or
    RunError as `simulate` does."""
    keys = {} if fits else question.as_if_it_fit()
    result = simulate(question.with_keys(keys), on_step)
    add_intervals(result, None, on_step, sources=False)
    summary = result.summary
    low, high = summary["intervals"]["step_s"]
    step = Seconds(summary["step_s"], low, high)
    phases = {
        name: Seconds(phase["s"], phase["low_s"], phase["high_s"])
        for name in PHASES
        if max((phase := summary["phases"][name])["s"], phase["high_s"]) > ROUNDING * step.median
    }
    part = _part(question, keys, summary)
    ends = _at_the_ends(question, keys, part, on_step)
    known_length = step if ends else None
    if ends:
        step = _wider(step, [end["step"] for end in ends])
        phases = {
            name: _wider(phase, [end[name] for end in ends]) for name, phase in phases.items()
        }
    last_share, steps = _last_share(result), question.draft.steps
    return Forecast(step, phases, result, last_share, steps, known_length, part)


def _at_the_ends(
    question: Question, keys: Mapping[str, Any], part: Part | None, on_step: OnStep
) -> list[_S]:
    """Seconds of a step and of its phases at the ends of what the mean length may be."""
    ends = [{**keys, MEAN_TOKENS: tokens} for tokens in question.open_lengths]
    if part is not None:
        return [part.seconds(question, end, on_step) for end in ends]
    return [_seconds(simulate(question.with_keys(end), on_step).summary) for end in ends]


def _seconds(summary: Mapping[str, Any]) -> _S:
    return {"step": summary["step_s"]} | {name: summary["phases"][name]["s"] for name in PHASES}


def _part(question: Question, keys: Mapping[str, Any], summary: Mapping[str, Any]) -> Part | None:
    """A part of a run; None of one that is short, or whose policy counts rollouts itself."""
    scenario = question.with_keys(keys)
    batch, shared = scenario.plan.batch, math.gcd(*_divided(scenario).values())
    most = scenario.steps * batch.rollouts // _ENOUGH
    fewer = max(by for by in range(1, shared + 1) if shared % by == 0 and by <= max(most, 1))
    counts = question.value("policy") and not _overlaps(scenario)
    if fewer == 1 or scenario.steps * batch.rollouts <= _MANY or counts:
        return None
    wanted = _part_keys(scenario, fewer)
    try:
        part = question.with_keys({**keys, **wanted})
    except ScenarioError:  # of a trainer whose layout needs all of its GPUs
        return None
    if not _divided(part).items() <= wanted.items():  # `--set` holds over them
        return None
    return Part(fewer, scenario, part, _seconds(summary))


def _overlaps(scenario: Scenario) -> bool:
    """Whether rollouts run beside training, on GPUs of their own, by a policy whose figures are all
    multiples of the batch."""
    names = {policy.NAME for policy in scenario.policy.policies}
    return not scenario.shape.colocated and bool(names) and names <= _MULTIPLES


def _divided(scenario: Scenario) -> dict[str, int]:
    """What a part of a run has less of, by key."""
    shape = scenario.shape
    sizes = {
        "cluster.replicas": shape.replicas,
        "workload.batch_groups": scenario.plan.batch.groups,
    }
    return sizes | ({"cluster.trainer_gpus": shape.trainer_gpus} if _overlaps(scenario) else {})


def _part_keys(scenario: Scenario, fewer: int) -> dict[str, Any]:
    """Keys of a part of a run. Raises ScenarioError where replicas or groups are not divided."""
    sizes = _divided(scenario)
    for key, size in sizes.items():
        if size % fewer:
            raise ScenarioError(key, f"{size} cannot be divided into {fewer} parts")
    return {key: size // fewer for key, size in sizes.items()} | {"steps": scenario.steps}


def over_lengths(question: Question, ledger: Ledger) -> Ledger:
    """A question's ledger, whose chance to fit is over what nobody says of responses, on the side
    of the answer: over their mean length, of a median and the ends of a 90 % interval (Keefer and
    Bodily, 1983), and, where they do not fit, over whether any comes near its cap: it is as likely
    as not at most, where one at the cap does not fit."""
    ends = [question.with_mean(tokens).scenario.ledger for tokens in question.open_lengths]
    chances = [one.fits_probability for one in (ledger, *ends) if one is not None]
    short = None if ledger.fits else _short(question)
    if len(chances) < len(_WEIGHTS) and short is None:
        return ledger
    chance = chances[0]
    if len(chances) == len(_WEIGHTS):
        chance = sum(map(operator.mul, _WEIGHTS, chances))
    if short is not None:
        share = figures("launches").short_share
        chance += share * max(0.0, short.fits_probability - chance)
    most = 0.49 if short is None else 0.5
    return replace(ledger, likely=max(chance, 0.5) if ledger.fits else min(chance, most))


def _short(question: Question) -> Ledger | None:
    """The ledger if no response is longer than a part of its cap; None where all are padded to it,
    or somebody says a mean that is."""
    least = _shortest_cap(question)
    cost = roofline_of(question.scenario.cost) if least else None
    if cost is None or cost.trainer_of.batching == "padded_to_cap":
        return None
    tokens = round(figures("launches").short_of_cap * question.value(CAP))
    return _up_to(question, tokens) if least <= tokens else None


def fits_below(question: Question) -> int | None:
    """The mean length of responses up to which a question more likely fits than not, in tokens, to
    two digits; None where somebody says the mean, or where it decides nothing."""
    ends = question.open_lengths
    if not ends:
        return None

    def fits(tokens: int) -> bool:
        ledger = question.with_mean(tokens).scenario.ledger
        return ledger is not None and ledger.fits

    return _most(fits, min(ends), max(ends))


def fits_to(question: Question) -> int | None:
    """The longest response with which a question more likely fits than not, in tokens, to two
    digits; None where its cap fits, or where shorter responses do not help."""
    least = _shortest_cap(question)
    if not least:
        return None
    cap = question.value(CAP)

    def fits(tokens: int, longest: int | None = None) -> bool:
        ledger = _up_to(question, tokens, longest)
        return ledger is not None and ledger.fits

    if fits(least, cap):  # beside short ones, one long response changes nothing
        return None
    return _most(fits, least, cap) if least < cap else None


def _shortest_cap(question: Question) -> int:
    """The least cap of responses that is tried, in tokens; 0 where lengths have none."""
    parts = {part.key: part for part in question.parts}
    if CAP not in parts or RUNAWAY in parts:  # somebody says that all reach it
        return 0
    mean = parts.get(MEAN_TOKENS)
    if mean is not None and not mean.assumed:
        return math.ceil(_ABOVE_MEAN * float(mean.value))
    return max(round(_LEAST_OF_CAP * float(parts[CAP].value)), 1)


def _up_to(question: Question, tokens: int, cap: int | None = None) -> Ledger | None:
    """The ledger with another cap of responses, and their mean as much of it where it is assumed;
    None where such a scenario cannot be. cap: of the longest one, if it is not that."""
    keys: dict[str, Any] = {CAP: cap or tokens}
    if question.open_lengths:
        keys[MEAN_TOKENS] = max(round(figures("launches").mean_of_cap * tokens), 1)
    try:
        return question.with_keys(keys).ledger
    except ScenarioError:
        return None


def _most(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """The most tokens that fit, to two digits; None where ``low`` does not fit or ``high`` does."""
    if not fits(low) or fits(high):
        return None
    for _ in range(_HALVINGS):
        middle = round(math.sqrt(low * high))
        if fits(middle):
            low = middle
        else:
            high = middle
    unit: int = 10 ** max(0, len(str(low)) - 2)
    return low // unit * unit


def _wider(figure: Seconds, ends: Sequence[float]) -> Seconds:
    """With an independent input, at whose ends the figure is this: log spreads add in squares."""
    if not figure.median > 0 or not figure.low > 0 or not min(ends) > 0:
        return Seconds(figure.median, min(figure.low, *ends), max(figure.high, *ends))
    least, most = min(*ends, figure.median), max(*ends, figure.median)
    below = math.hypot(math.log(figure.median / figure.low), math.log(figure.median / least))
    above = math.hypot(math.log(figure.high / figure.median), math.log(most / figure.median))
    median = figure.median
    return Seconds(median, median * math.exp(-below), median * math.exp(above))


def _last_share(result: Result) -> float:
    """Of generation, the part after which only the last `LAST` of a step's responses run."""
    table = result.run.segments
    ended = table["finished"] != 0
    if not ended.any():
        return 0.0
    steps, ends = table["step"][ended], table["end_s"][ended]
    spans = {p.step: (p.start_s, p.end_s) for p in result.run.phases if p.kind == "rollout"}
    waits, whole = 0.0, 0.0
    for step, (start_s, end_s) in spans.items():
        its = ends[steps == step]
        if len(its) and end_s > start_s:
            waits += max(0.0, end_s - float(np.quantile(its, 1 - LAST)))
            whole += end_s - start_s
    return waits / whole if whole else 0.0
