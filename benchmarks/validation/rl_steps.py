"""Whole steps of published RL runs, and how much one-step-off saves of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.validation.case import Case, Check, held_out, mape, outside
from benchmarks.validation.files import column, read_table
from benchmarks.validation.rl_scenario import (
    DRAWS,
    RUNAWAYS,
    SPREADS,
    Run,
    built,
    drawn_name,
    scenario,
    smaller,
)
from benchmarks.validation.suite import Judged
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.simulate import Result, simulate
from rollcast.simulator.studies.uncertainty import uncertainty

RATIO_TARGET = 0.10
PRINTED = 0.15  # of held-out steps and ratios, outside intervals of 90 %, at most


@dataclass(frozen=True, kw_only=True)
class Row(Run):
    """A run; ``against`` names the on-policy run that a ratio is taken to."""

    step_s: float = column()
    against: str = column()


def read(path: Path) -> list[Row]:
    """The runs typed in. Raises ScenarioError for a row that is wrong, or a ratio to no run."""
    runs = read_table(path, Row)
    names = {run.name for run in runs}
    for run in runs:
        if run.against and run.against not in names:
            raise ScenarioError(f"{path.name}, {run.name}", f"no run {run.against!r} to compare to")
    return runs


def step_s(result: Result) -> float:
    """Seconds of the last step but one: past the start of the pipeline, and with the next batch
    generated beside it where that is so."""
    return result.run.steps[-2].step_s


def forecast_s(keys: Mapping[str, Any], draw: int | None = None) -> float:
    """The same of a scenario, with its costs drawn anew."""
    return step_s(simulate(built(keys, draw)))


@lru_cache(maxsize=32)
def finished(run: Row) -> Result:
    return simulate(built(scenario(run)))


def drawn_s(run: Row) -> list[float]:
    """Forecasts with what the lengths leave open, and the costs, drawn anew; runs that are drawn
    alike may be divided."""
    small = smaller(run)
    level = step_s(finished(run)) / forecast_s(scenario(small))
    seconds = []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        lengths = drawn_name(rng, SPREADS), drawn_name(rng, RUNAWAYS)
        seconds.append(level * forecast_s(scenario(small, *lengths), draw))
    return seconds


def printed_s(run: Row) -> list[float]:
    """Forecasts drawn as ``rollcast simulate`` and ``rollcast compare`` do without being asked
    (`simulator.studies.uncertainty`), the lengths taken as the scenario gives them."""
    result = finished(run)
    by_draw = uncertainty(result, sources=False).draws["step_s"] / result.summary["step_s"]
    return list(step_s(result) * by_draw)


def cases(runs: Sequence[Row], drawn: Mapping[str, Sequence[float]]) -> list[Case]:
    """Step times, then ratios, with intervals from the draws of each run by name."""
    by_name = {run.name: run for run in runs}
    steps, ratios = [], []
    for run in runs:
        guess = step_s(finished(run))
        low, high = ends(list(drawn[run.name])).tolist()
        pair = (run.step_s, guess)
        steps.append(Case(f"{run.stack} step", run.name, "s", *pair, run.role, low, high, run.name))
        if run.against:
            base = by_name[run.against]
            low, high = ends(np.divide(drawn[run.name], drawn[base.name])).tolist()
            group = f"{run.stack} ratio, one-step-off over on-policy"
            pair = (run.step_s / base.step_s, guess / step_s(finished(base)))
            role = run.role if run.stack == "NeMo-RL" else "held out"
            ratios.append(Case(group, run.name, "", *pair, role, low, high, run.name))
    return [*steps, *ratios]


def wrong_signs(ratios: Sequence[Case]) -> float:
    """Share of the ratios that are forecast on the other side of 1."""
    return sum((c.forecast < 1) != (c.measured < 1) for c in ratios) / len(ratios)


def judge(runs: Sequence[Row]) -> Judged:
    """Steps and ratios; how many of them lie outside the intervals that are printed."""
    found = cases(runs, {run.name: drawn_s(run) for run in runs})
    shown = held_out(cases(runs, {run.name: printed_s(run) for run in runs}))
    shown_steps = [case for case in shown if case.unit]
    ratios = [case for case in held_out(found) if not case.unit]
    missed = "outside what is printed"
    checks = [
        Check("ratios, all pairs", mape(ratios), RATIO_TARGET, len(ratios)),
        Check("ratios on the wrong side of 1", wrong_signs(ratios), 0.0, len(ratios)),
        Check(f"held-out steps {missed}", outside(shown_steps), PRINTED, len(shown_steps)),
        Check(f"held-out steps and ratios {missed}", outside(shown), PRINTED, len(shown)),
    ]
    return Judged(found, checks, scenarios={run.name: scenario(run) for run in runs})
