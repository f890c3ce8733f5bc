"""Published RL runs, phase by phase, each source left out of what stacks are fitted to.

A stack's effect on a phase, and the mean of all stacks, are fitted to the other sources
(`benchmarks.validation.stack_effects`); a stack that the other sources do not have takes the mean.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np

from benchmarks.validation.case import Case, Check, by, outside
from benchmarks.validation.published_runs import (
    PublishedRun,
    all_runs,
    parts,
    published_sources,
)
from benchmarks.validation.run_phases import GROUP, Effects, Forecast, forecast
from benchmarks.validation.stack_effects import Effect, Observed, StackEffects, fit
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs.stacks import FOLDERS
from rollcast.simulator.errors import RollcastError
from rollcast.simulator.studies.interval import ends

TARGETS = {"generation": 0.20, "log_prob": 0.25, "update": 0.20, "step": 0.12}
"""Of the median absolute error."""
BIAS = 0.10
WIDTH = 2.2  # of the median interval, from low to high


@dataclass(frozen=True)
class Row:
    """A run, and the name of its source."""

    source: str
    name: str
    run: PublishedRun

    @property
    def stack(self) -> str:
        return FOLDERS[self.run.stack].name


def group_of(figure: str) -> str | None:
    """The group of a measured figure; None where it mixes several, or belongs to none."""
    groups = {GROUP.get(phase, "") for phase in parts(figure)}
    return groups.pop() or None if len(groups) == 1 else None


def seconds_of(figure: str, seconds: Mapping[str, float]) -> float:
    """Forecast seconds of a measured figure."""
    return sum(seconds.get(phase, 0.0) for phase in parts(figure))


def observed(row: Row, found: Forecast) -> Iterator[tuple[str, Observed]]:
    """Each measured phase of a run that its forecast has too, by group."""
    for figure, measured in row.run.measured.items():
        group, seconds = group_of(figure), seconds_of(figure, found.seconds)
        if group is not None and seconds > 0:
            logs = np.log([max(seconds_of(figure, draw), 1e-9) for draw in found.draws])
            sd = float(np.std(logs)) if len(logs) else 0.0
            yield group, Observed(row.stack, row.source, measured / seconds, sd)


def all_effects(rows: Sequence[Row], found: Sequence[Forecast]) -> dict[str, StackEffects]:
    """The effects fitted to these runs, by group."""
    pairs = [pair for row, one in zip(rows, found, strict=True) for pair in observed(row, one)]
    groups = by(pairs, lambda pair: pair[0])
    return {group: fit([one for _, one in members]) for group, members in groups.items()}


def left_out(rows: Sequence[Row], found: Sequence[Forecast]) -> list[dict[str, Effect]]:
    """For each run the effects by group, fitted without its source."""
    of_source = {}
    for source in {row.source for row in rows}:
        kept = [i for i, row in enumerate(rows) if row.source != source]
        of_source[source] = all_effects([rows[i] for i in kept], [found[i] for i in kept])
    return [
        {group: fitted.of(row.stack) for group, fitted in of_source[row.source].items()}
        for row in rows
    ]


def cases(row: Row, found: Forecast) -> Iterator[Case]:
    """A case for each measured figure."""
    for figure, measured in row.run.measured.items():
        seconds = seconds_of(figure, found.seconds)
        if seconds > 0 and measured > 0:
            low, high = ends([seconds_of(figure, draw) for draw in found.draws]).tolist()
            group = figure if figure in ("step", "wait") else group_of(figure) or "several"
            name = f"{row.name}, {figure}"
            yield Case(group, name, "s", measured, seconds, "held out", low, high, row.name)


def read(_: object = None) -> list[Row]:
    """Every run of every source."""
    return [Row(*entry) for entry in all_runs(published_sources())]


def judge(rows: Sequence[Row]) -> Judged:
    """Every measured phase of every run, its source left out; a note for each run that cannot be
    forecast."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        tried = list(pool.map(_bare, [row.run for row in rows]))
        kept = [i for i, one in enumerate(tried) if isinstance(one, Forecast)]
        bare = [one for one in tried if isinstance(one, Forecast)]
        known = [rows[i] for i in kept]
        effects: list[Effects] = list(left_out(known, bare))
        found = list(pool.map(forecast, [row.run for row in known], effects))
    judged = [case for row, one in zip(known, found, strict=True) for case in cases(row, one)]
    return Judged(
        judged,
        list(checks(judged)),
        [f"{rows[i].name}: not forecast, {one}" for i, one in enumerate(tried) if i not in kept],
        scenarios={row.name: row.run.keys() for row in known},
    )


def _bare(run: PublishedRun) -> Forecast | str:
    """The forecast without effects, or why there is none."""
    try:
        return forecast(run)
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
    for group, members in by(judged, lambda case: case.group).items():
        note = (
            f"median bias {median_bias(members):+.0%}, intervals hold {1 - outside(members):.0%}, "
            f"median interval {width(members):.1f} times from low to high"
        )
        name = f"{group}, median absolute error"
        yield Check(name, median_error(members), TARGETS.get(group), len(members), note)
    generation = [case for case in judged if case.group == "generation"]
    if generation:
        name = "generation, median bias"
        yield Check(name, median_bias(generation), BIAS, len(generation), signed=True)


def main() -> None:
    """``python -m benchmarks.validation.runs``: prints how far off each phase is; takes long."""
    judged = judge(read())
    for case in judged.cases:
        low, high = case.low or 0.0, case.high or 0.0
        print(
            f"{case.name}: measured {case.measured:.4g} s, forecast {case.forecast:.4g} s "
            f"({case.error:+.0%}), 90 % interval {low:.3g} to {high:.3g} s"
        )
    print("\n".join(judged.notes))
    for check in judged.checks:
        print(f"{check.name}: {check.value:.0%} of {check.cases}; {check.note}")


if __name__ == "__main__":
    main()
