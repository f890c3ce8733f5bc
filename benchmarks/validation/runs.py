"""Published RL runs, phase by phase, each source left out of what stacks are fitted to.

A stack's effect on a phase is fitted to the other sources (`benchmarks.validation.stack_effects`);
a stack that the other sources do not have takes none, and the spread of all.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np

from benchmarks.validation.case import Case, Check, by, outside
from benchmarks.validation.published_runs import (
    PublishedRun,
    PublishedSource,
    parts,
    published_sources,
)
from benchmarks.validation.run_phases import GROUP, STEPS, Effects, Forecast, forecast
from benchmarks.validation.stack_effects import Effect, Observed, StackEffects, fit, holding
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs.backends import unsaid_options
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.roofline.draws import narrowing, unusual
from rollcast.simulator.costs.stacks import FOLDERS, UNKNOWN
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.results.phases import SIDES, STEP_PHASES, Side
from rollcast.simulator.studies.drawn import ends

TARGETS = {"generation": 0.20, "log_prob": 0.25, "update": 0.20, "step": 0.12}
"""Of the median absolute error."""
BIAS = 0.10
WIDTH = 2.2  # of the median interval, from low to high
SIZE = 0.2  # of a ratio that is forecast well
TIED = 0.1  # sides of a step as long as each other
ADDED = {
    "models": ("mixtures and recurrent layers add", (True, False)),
    "gpus": ("GPUs of which no kernel was measured add", (False, True)),
    "both": ("both together add", (True, True)),
}
"""Of ``unusual`` in spreads.yaml: what is told of each, and whether model and GPU are."""
MEGATRON = "on megatron"
TRAINED = ("log_prob", "update")  # groups of the trainer, which a stack's backends do differently
OPEN = 2  # keys that a source leaves open
BARE_DRAWS = 12
BARE_STEPS = 4  # of synchronous forecasts to which effects are fitted


@dataclass(frozen=True)
class Row:
    """A run, and the name of its source."""

    source: str
    name: str
    run: PublishedRun

    @property
    def stack(self) -> str:
        return FOLDERS[self.run.stack].name

    def pooled(self, group: str) -> str:
        """Whose runs have an effect on a group of phases together: a stack's, and those of its
        trainer on Megatron apart."""
        trainer = self.run.scenario["cost"]["roofline"].get("trainer") or {}
        backend = unsaid_options(self.run.stack, trainer, "trainer")["backend"]
        apart = group in TRAINED and backend == "megatron"
        return f"{self.stack} {MEGATRON}" if apart else self.stack

    @property
    def unusual(self) -> bool:
        """Whether its model is."""
        return unusual(load_model(self.run.scenario["model"]))

    @property
    def assumed(self) -> bool:
        """Whether its GPU's figures are."""
        return load_gpu(self.run.scenario["gpu"]).assumed

    @property
    def open(self) -> bool:
        """Whether its source leaves several keys open: it says little of others, too."""
        return len(self.run.unknown) >= OPEN

    def effect(self, group: str, fitted: StackEffects) -> Effect:
        """Of its stack on a group of phases, as wide as a scenario of the run draws it."""
        its = fitted.of(
            self.pooled(group), unusual=self.unusual, assumed=self.assumed, open=self.open
        )
        narrowed = narrowing(self.run.stack, not self.run.unknown and group != "sync")
        return replace(its, sd=narrowed * its.sd)


def group_of(figure: str) -> str | None:
    """The group of a measured figure; None where it mixes several, or belongs to none."""
    groups = {GROUP.get(phase, "") for phase in parts(figure)}
    return groups.pop() or None if len(groups) == 1 else None


def seconds_of(figure: str, seconds: Mapping[str, float]) -> float:
    """Forecast seconds of a measured figure."""
    return sum(seconds.get(phase, 0.0) for phase in parts(figure))


def observed(row: Row, found: Forecast) -> Iterator[tuple[str, Observed]]:
    """Each measured phase of a run that its forecast has too, by group."""
    for figure, measured in row.run.judged.items():
        group, seconds = group_of(figure), seconds_of(figure, found.seconds)
        if group is not None and seconds > 0 and measured > 0:
            logs = np.log([max(seconds_of(figure, draw), 1e-9) for draw in found.draws])
            sd = float(np.std(logs)) if len(logs) else 0.0
            ratio = measured / seconds
            whose = row.pooled(group)
            yield group, Observed(whose, row.source, ratio, sd, row.unusual, row.assumed, row.open)


def all_effects(rows: Sequence[Row], found: Sequence[Forecast]) -> dict[str, StackEffects]:
    """The effects fitted to these runs, by group."""
    pairs = [pair for row, one in zip(rows, found, strict=True) for pair in observed(row, one)]
    groups = by(pairs, lambda pair: pair[0])
    # Trainers are a stack's own code; engines and how weights reach them are those of a few others.
    return {
        group: fit([one for _, one in members], differ=group in TRAINED)
        for group, members in groups.items()
    }


def left_out(
    rows: Sequence[Row], found: Sequence[Forecast], each: Callable[..., Iterable[Any]] = map
) -> list[dict[str, Effect]]:
    """For each run the effects by group, fitted without its source. each: as `map`, of as many
    processes as there are."""
    sources = sorted({row.source for row in rows})
    fits = each(partial(_without, rows, found), sources)
    of_source: dict[str, dict[str, StackEffects]] = dict(zip(sources, fits, strict=True))
    return [
        {group: row.effect(group, fitted) for group, fitted in of_source[row.source].items()}
        for row in rows
    ]


def _without(
    rows: Sequence[Row], found: Sequence[Forecast], source: str
) -> dict[str, StackEffects]:
    kept = [pair for pair in zip(rows, found, strict=True) if pair[0].source != source]
    return all_effects([row for row, _ in kept], [one for _, one in kept])


def cases(row: Row, found: Forecast) -> Iterator[Case]:
    """A case for each measured figure."""
    for figure, measured in row.run.judged.items():
        seconds = seconds_of(figure, found.seconds)
        if seconds > 0 and measured > 0:
            low, high = ends([seconds_of(figure, draw) for draw in found.draws]).tolist()
            several = "several" if len(parts(figure)) > 1 else figure
            group = group_of(figure) or several
            yield Case(
                group, f"{row.name}, {figure}", "s", measured, seconds, "held out", low, high
            )


def pairs(
    sources: Mapping[str, PublishedSource], found: Mapping[str, Forecast]
) -> Iterator[tuple[str, float, float]]:
    """Of two runs of a source that differ in policy, layout or machine: their names, and the ratio
    of their seconds a trained rollout, measured and forecast."""
    for source in sources.values():
        for pair in source.pairs:
            if all(name in found and "step" in source.runs[name].judged for name in pair):
                first, second = (source.runs[name] for name in pair)
                size = _rollouts(second) / _rollouts(first)
                steps = [found[name].seconds["step"] for name in pair]
                measured = first.measured["step"] / second.measured["step"]
                yield " over ".join(pair), size * measured, size * steps[0] / steps[1]


def _rollouts(run: PublishedRun) -> int:
    """Rollouts that a step trains on."""
    work = run.scenario["workload"]
    return int(work["batch_groups"]) * int(work.get("group_size", 1))


def measured_bound(run: PublishedRun) -> str | None:
    """What bounds a published step: in turns the longest side, by the phases that were measured,
    whichever side the rest of the step belongs to; otherwise the side of the phase that the source
    names, and None where it names none or two sides are within `TIED` of each other."""
    said = None if run.bound is None else _side(run.bound)
    phases = {part for name in run.judged for part in parts(name)}
    beside = run.scenario["policy"] and run.scenario["cluster"]["placement"] != "colocated"
    if beside or not {"generation", "update"} <= phases:
        return said
    seconds = dict.fromkeys(SIDES, 0.0)
    for name, measured in run.judged.items():
        if name != "step":
            seconds[_side(parts(name)[0])] += measured
    whole = run.judged.get("step", math.fsum(seconds.values()) if "sync" in phases else math.inf)
    rest = max(whole - math.fsum(seconds.values()), 0.0)
    first, second = sorted(seconds, key=lambda side: -seconds[side])[:2]
    return first if seconds[second] + rest < (1.0 - TIED) * seconds[first] else said


def _side(phase: str) -> Side:
    side = STEP_PHASES[phase].side  # type: ignore[index]
    return side or "other"


def read(_: object = None) -> list[Row]:
    """Every run of every source."""
    return [
        Row(key, name, run)
        for key, source in published_sources().items()
        for name, run in source.runs.items()
    ]


def judge(rows: Sequence[Row]) -> Judged:
    """Every measured phase of every run, its source left out; a note for each run that cannot be
    forecast."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        tried = list(pool.map(_bare, rows))
        rows, bare, notes = _forecast_ones(rows, tried)
        effects: list[Effects] = list(left_out(rows, bare, pool.map))
        tried = list(pool.map(_tried, [row.run for row in rows], effects))
    known, found, more = _forecast_ones(rows, tried)
    judged = [case for row, one in zip(known, found, strict=True) for case in cases(row, one)]
    by_name = {row.name: one for row, one in zip(known, found, strict=True)}
    ratios = list(pairs(published_sources(), by_name))
    judged += [Case("ratio of steps", *ratio[:1], "", *ratio[1:]) for ratio in ratios]
    return Judged(
        judged,
        [
            *checks(judged),
            *ratio_checks(ratios),
            *bound_checks(known, found),
            *width_checks(known, judged),
        ],
        [*notes, *more],
        facts={"stacks": "; ".join(stack_texts(all_effects(rows, bare)))},
    )


def _forecast_ones(
    rows: Sequence[Row], tried: Sequence[Forecast | str]
) -> tuple[list[Row], list[Forecast], list[str]]:
    """The runs that have a forecast, with it, and a note for each other."""
    both = list(zip(rows, tried, strict=True))
    known = [(row, one) for row, one in both if isinstance(one, Forecast)]
    notes = [f"{row.name}: not forecast, {one}" for row, one in both if isinstance(one, str)]
    return [row for row, _ in known], [one for _, one in known], notes


def stack_texts(effects: Mapping[str, StackEffects]) -> Iterator[str]:
    """Effects fitted to all sources: of a stack that nobody measured, and of those that some did;
    and the standard deviations that unusual models and GPUs add."""
    for name in (UNKNOWN, *sorted({folder.name for folder in FOLDERS.values()} - {UNKNOWN})):
        of = {group: fitted.of(name) for group, fitted in effects.items()}
        known = {group: effect for group, effect in of.items() if effect.factor != 1.0}
        if name == UNKNOWN:
            yield _text(name, of)
        elif known:
            yield _text(name, known)
            trained = {group: effects[group].of(f"{name} {MEGATRON}") for group in TRAINED}
            yield _text(f"{name} {MEGATRON}", trained)
    for text, kinds in ADDED.values():
        sds = (f"{group} {fitted.added(*kinds):.2f}" for group, fitted in effects.items())
        yield f"{text} {', '.join(sds)}"


def _text(name: str, effects: Mapping[str, Effect]) -> str:
    of = (f"{group} {effect.factor:.2f} (sd {effect.sd:.2f})" for group, effect in effects.items())
    return f"{name} {', '.join(of)}"


def _bare(row: Row) -> Forecast | str:
    """The forecast without effects, to which they are fitted, or why there is none. Its few draws
    are its own: what the same few have too much of would be too much in all runs."""
    steps = STEPS if row.run.scenario["policy"] else BARE_STEPS
    seed = crc32(f"{row.source}/{row.name}".encode())
    return _tried(row.run, None, steps=steps, seeds=1, draws=BARE_DRAWS, seed_of_draws=seed)


def _tried(run: PublishedRun, effects: Effects | None, **most: int) -> Forecast | str:
    """A forecast with these effects, or why there is none."""
    try:
        return forecast(run, effects, **most)
    except RollcastError as error:
        return str(error)


def median_error(cases: Sequence[Case]) -> float:
    return float(np.median([abs(case.error) for case in cases]))


def median_bias(cases: Sequence[Case]) -> float:
    return float(np.median([case.error for case in cases]))


def width(cases: Sequence[Case]) -> float:
    """Of the median interval, high over low."""
    return float(np.median([(case.high or 1.0) / (case.low or 1.0) for case in cases]))


def checks(judged: Sequence[Case]) -> Iterator[Check]:
    """Medians, shares inside and widths by group."""
    groups = by((case for case in judged if case.low is not None), lambda case: case.group)
    for group, members in groups.items():
        note = (
            f"median bias {median_bias(members):+.0%}, intervals hold {1 - outside(members):.0%}, "
            f"median interval {width(members):.1f} times from low to high"
        )
        name = f"{group}, median absolute error"
        yield Check(name, median_error(members), TARGETS.get(group), len(members), note)
    if "generation" in groups:
        bias = median_bias(groups["generation"])
        yield Check("generation, median bias", bias, BIAS, len(groups["generation"]), signed=True)


def ratio_checks(ratios: Sequence[tuple[str, float, float]]) -> Iterator[Check]:
    """How many pairs are on the wrong side of 1, and how many ratios more than `SIZE` off."""
    if ratios:
        wrong = [name for name, true, found in ratios if (true - 1) * (found - 1) < 0]
        note = "; ".join(wrong)
        yield Check("pairs on the wrong side", len(wrong) / len(ratios), 0.1, len(ratios), note)
        off = sum(abs(found / true - 1) > SIZE for _, true, found in ratios)
        yield Check(f"ratios more than {SIZE:.0%} off", off / len(ratios), 1 / 3, len(ratios))


def bound_checks(rows: Sequence[Row], found: Sequence[Forecast]) -> Iterator[Check]:
    """In how many runs something else bounds the step than the source says."""
    known = [
        (row.name, bound, one.bound)
        for row, one in zip(rows, found, strict=True)
        if (bound := measured_bound(row.run)) is not None
    ]
    if known:
        wrong = [f"{name}: {told}, not {true}" for name, true, told in known if told != true]
        share = len(wrong) / len(known)
        yield Check("what bounds a step, wrong", share, 0.1, len(known), "; ".join(wrong))


def width_checks(rows: Sequence[Row], judged: Sequence[Case]) -> Iterator[Check]:
    """Of runs that leave nothing open, of which intervals are narrowed by one figure for all phases
    but syncs: how much wider their logs' would have to be to hold nine of ten. Sources count as in
    `benchmarks.validation.stack_effects`."""
    known = {row.name: row.source for row in rows if not row.run.unknown}
    needed, counts = [], []
    groups = by((case for case in judged if case.low), lambda case: case.group)
    for group in sorted(groups.keys() & TARGETS.keys()):
        cases = [case for case in groups[group] if case.name.rpartition(", ")[0] in known]
        of_source = by(cases, lambda case: known[case.name.rpartition(", ")[0]])
        for case in cases:
            end = case.high if case.measured > case.forecast else case.low
            log = math.log((end or math.inf) / case.forecast)
            needed.append(math.log(case.measured / case.forecast) / log)
            counts.append(len(of_source[known[case.name.rpartition(", ")[0]]]) ** -0.5)
    if needed:
        name = "nothing left open, how much wider intervals should be"
        yield Check(name, holding(needed, counts) - 1, 0.15, len(needed), signed=True)


def main() -> None:
    """``python -m benchmarks.validation.runs``: prints how far off each phase is; takes long."""
    judged = judge(read())
    for case in judged.cases:
        low, high = case.low or 0.0, case.high or math.inf
        print(
            f"{case.full_name}: measured {case.measured:.4g}, forecast {case.forecast:.4g} "
            f"({case.error:+.0%}), 90 % interval {low:.3g} to {high:.3g}"
        )
    print("\n".join(judged.notes))
    for check in judged.checks:
        print(f"{check.name}: {check.value:.0%} of {check.cases}; {check.note}")
    print(judged.facts["stacks"])


if __name__ == "__main__":
    main()
