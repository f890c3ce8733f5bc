"""Changes of the question that would change a plan's answer: prices, limits, spreads of lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.planner import words
from rollcast.simulator.planner.answer import Row
from rollcast.simulator.planner.choices import Choice
from rollcast.simulator.planner.estimate import estimate
from rollcast.simulator.planner.measure import Failure, Measured, Simulator, Task
from rollcast.simulator.planner.question import Question
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.scenario.knobs import Knob, knobs_of
from rollcast.simulator.scenario.scenario import outline
from rollcast.simulator.stacks.syntax.yaml_text import spelt
from rollcast.simulator.values import read
from rollcast.simulator.workload.length_specs import LARGEST_SD, DrawnLengths, PresetLengths
from rollcast.simulator.workload.solved import solved_lengths

SPREADS = (0.7, 1.4)  # factors on the spread of lengths, at the same mean, to try
BOUND = 0.25  # share of draws in which the trainer bounds a step, from which its settings are tried
WORTH = 0.03  # of a step, below which a setting is not worth a sentence
TRIED = 4  # settings that are simulated
RIVALS = 2  # the nearest finalists that may change places
NEAR = 0.5  # largest relative fall of a price worth a sentence


def what_would_change(
    search: Simulator, asked: Question, best: Row, finalists: Sequence[Row], rows: Sequence[Row]
) -> tuple[str, ...]:
    """Sentences, each on one change."""
    sentences = [*_prices(asked, best, rows), *_limits(asked, best, rows)]
    sentences += _knobs(search, asked, best)
    sentences += _spread(search, asked, best, finalists)
    return tuple(sentences)


def _prices(asked: Question, best: Row, rows: Sequence[Row]) -> list[str]:
    """Prices at which another GPU would win."""
    if asked.objective.name not in ("usd", "balanced") or best.run_cost.usd is None:
        return []
    sentences = []
    rows = [row for row in rows if not row.setup.trainer_gpu]  # one price each
    kinds = {row.setup.gpu for row in rows} - {best.setup.gpu}
    for kind in sorted(kinds):
        others = [row for row in rows if row.setup.gpu == kind and not row.beyond]
        if not others or others[0].setup.usd_per_gpu_hour is None:
            continue
        other = others[0]  # best first
        factor = asked.objective.value(best.run_cost) / asked.objective.value(other.run_cost)
        if 1 - factor < NEAR:
            now = other.setup.usd_per_gpu_hour
            assert now is not None
            sentences.append(
                f"{kind} would be best below ${now * factor:.2f} an hour (now ${now:.2f}): "
                f"{words.choice(other)}."
            )
    return sentences


def _knobs(search: Simulator, asked: Question, best: Row) -> list[str]:
    """Settings of the trainer with which the best choice would take less, where it bounds a step:
    by estimates, then simulated. They change no result of training."""
    said = best.measured.said
    alone = float(said.get("bound_by") == "trainer")
    if (said.get("bound_by_share") or {"trainer": alone}).get("trainer", 0.0) < BOUND:
        return []
    applied = best.choice.applied(asked.raw)
    scenario = outline(replace(applied, data={**applied.data, "policy": "sync"}))
    section, model = scenario.sections.cost.of_the_roofline, scenario.sections.model
    if section is None or model is None:
        return []
    now = estimate(asked.raw, best.choice)
    assert not isinstance(now, Failure)
    stack, backend = section.stack, section.trainer.backend
    offered = knobs_of(stack, backend, best.setup.placement, load_model(model))
    tried: list[tuple[float, Knob, Any, Choice]] = []
    for knob in offered:
        if knob.effect != "trainer":
            continue
        for value in knob.values:
            settings = {**best.choice.settings, knob.key: value}
            choice = replace(best.choice, settings=settings)
            found = estimate(asked.raw, choice)
            if not isinstance(found, Failure) and found.step_s() < (1 - WORTH) * now.step_s():
                tried.append((found.step_s(), knob, value, choice))
    tried.sort(key=lambda one: one[0])
    firsts = {knob.key: one for one in reversed(tried) for knob in one[1:2]}
    likely = sorted(firsts.values(), key=lambda one: one[0])[: asked.rungs.tries(TRIED)]
    if not likely:
        return []
    steps = asked.rungs.brief
    tasks = [Task(best.choice, steps), *(Task(choice, steps) for *_, choice in likely)]
    base, *results = search.simulate("the trainer's settings", tasks)
    sentences = []
    for (_, knob, value, _), result in zip(likely, results, strict=True):
        if isinstance(base, Failure) or isinstance(result, Failure):
            continue
        less = 1 - result.step_s / base.step_s
        if less > WORTH:
            sentences.append(
                f"{knob.key}: {spelt(value)} would take {less:.0%} less time, if the stack has "
                f"it ({knob.words})."
            )
    return sentences


def _limits(asked: Question, best: Row, rows: Sequence[Row]) -> list[str]:
    """The best choice that breaks one limit alone, by limit."""
    sentences = []
    objective = asked.objective
    for name in ("hours", "usd", "gpus", "staleness"):
        limit = getattr(objective.limits, name)
        if limit is None:
            continue
        for row in sorted(rows, key=lambda row: objective.value(row.run_cost)):
            broken = [limit for limit, _ in objective.beyond(row.setup, row.measured, row.run_cost)]
            if broken == [name] and objective.value(row.run_cost) < objective.value(best.run_cost):
                less = 1 - objective.value(row.run_cost) / objective.value(best.run_cost)
                sentences.append(
                    f"Without the limit of {name} ({limit:g}), {words.choice(row)} "
                    f"would take {less:.0%} less {words.OBJECTIVES[objective.name]} "
                    f"({words.takes(row, intervals=False)})."
                )
                break
    stale = best.measured.staleness_max
    if stale > 0:
        fresh = [row for row in rows if row.measured.staleness_max == 0 and not row.beyond]
        if fresh:
            more = objective.value(fresh[0].run_cost) / objective.value(best.run_cost) - 1
            sentences.append(
                f"The best on-policy choice is {words.choice(fresh[0])}, with {more:.0%} "
                f"more {words.OBJECTIVES[asked.objective.name]} "
                f"({words.takes(fresh[0], intervals=False)})."
            )
    return sentences


def _spread(search: Simulator, asked: Question, best: Row, finalists: Sequence[Row]) -> list[str]:
    """Whether finalists change places at the `SPREADS`."""
    others = [row for row in finalists if row.choice.name != best.choice.name][:RIVALS]
    if not others or not asked.intervals:
        return []
    sentences = []
    for factor in SPREADS:
        more = spread_by(asked.raw, factor)
        if more is None:
            return []
        those = [best, *others]
        tasks = [Task(row.choice, asked.rungs.brief, more) for row in those]
        values = []
        results = search.simulate("other lengths", tasks)
        if any(isinstance(result, Measured) and not result.settled for result in results):
            return []  # too short to compare
        for row, result in zip(those, results, strict=True):
            if isinstance(result, Failure):
                values.append(math.inf)
                continue
            run = result.run_cost(
                asked.work, row.setup.gpus, row.setup.usd_per_gpu_hour, row.quality
            )
            values.append(asked.objective.value(run))
        winner = min(range(len(those)), key=lambda i: (values[i], i))
        if winner and values[winner] < 0.99 * values[0]:
            word = "less" if factor < 1 else "more"
            row = those[winner]
            by = (
                f"by {values[0] / values[winner] - 1:.0%}"
                if math.isfinite(values[0])
                else "because the recommended choice could not be run"
            )
            sentences.append(
                f"If lengths were spread {word} ({factor:g} times the log spread, same "
                f"mean), {words.choice(row)} would be best, {by}."
            )
    if not sentences:
        low, high = SPREADS
        sentences.append(
            f"Lengths spread {low:g} to {high:g} times as much would not change the recommendation."
        )
    return sentences


def spread_by(raw: RawScenario, factor: float) -> dict[str, Any] | None:
    """Settings with ``factor`` times the log spread of lengths at the same mean (before the cap);
    None unless lengths are of one family."""
    workload = raw.data.get("workload") or {}
    lengths = workload.get("lengths")
    try:
        if solved := solved_lengths(workload):
            open_sd = solved["open"].get("sd")
            return open_sd and {"workload.lengths.sd": factor * open_sd[1]}
        if isinstance(lengths, dict) and "preset" in lengths:
            components = read(PresetLengths, lengths, PresetLengths.FIELD).model().components
        else:
            components = read(DrawnLengths, lengths, DrawnLengths.FIELD).model().components
    except ScenarioError:
        return None
    if len(components) != 1:
        return None
    [one] = components
    variance = one.between_sd**2 + one.within_sd**2
    median = one.median_tokens * math.exp(-(factor**2 - 1) * variance / 2)
    return {
        "workload.lengths.median_tokens": median,
        "workload.lengths.between_sd": min(factor * one.between_sd, LARGEST_SD),
        "workload.lengths.within_sd": min(factor * one.within_sd, LARGEST_SD),
    }
