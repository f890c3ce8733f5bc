"""Our trainer's forecast seconds against measured ones: ``python -m benchmarks.gpu_cases judge``.

Of the updates whose passes are in bf16, in the order of the cases, the figures of ``stack:
rollcast`` are fitted to every first two of four (a pair of layouts stays together), and judged on
the others and on the one in float32.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, median
from typing import Any

from benchmarks.gpu.cases import Case, all_cases
from benchmarks.gpu.forecast import load_of, trainer_of
from benchmarks.runner import ROOT, markdown_table
from rollcast.simulator.costs.presets.gpus import Gpu, load_gpu

GRID: Mapping[str, Sequence[float]] = {
    "traffic_per_activation_byte": [step / 2 for step in range(1, 13)],
    "traffic_per_logit": range(0, 80, 10),
    "launch_s_per_layer": [step * 1e-4 for step in range(14, 26)],
}


@dataclass(frozen=True, slots=True)
class Judged:
    """An update. Seconds of forward and backward. fitted: whether figures are fitted to it."""

    case: Case
    fitted: bool
    forecast_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """The log of measured over forecast."""
        return math.log(self.measured_s / self.forecast_s)


def passes_s(case: Case, gpu: Gpu, **figures: float) -> float:
    """Forecast seconds of forward and backward; figures: in place of the stack's, in both layouts
    one to launch a layer."""
    if "launch_s_per_layer" in figures:
        figures["shared_launch_s_per_layer"] = figures["launch_s_per_layer"]
    trainer = replace(trainer_of(case, gpu), **figures)  # type: ignore[arg-type]
    phases = dict(trainer.train(load_of(case)).phases_s)
    return phases["forward"] + phases["backward"]


def updates(measured: Mapping[str, Any]) -> Iterator[tuple[Case, bool, float]]:
    """Of our trainer, those that were measured: whether figures are fitted to it, and seconds of
    forward and backward."""
    place = 0
    for case in all_cases():
        told = measured["cases"].get(case.name, {})
        if case.kind != "update" or told.get("outcome") != "ok":
            continue
        bf16 = case.passes == "bfloat16"
        values = told["values"]
        yield case, bf16 and place % 4 < 2, values["forward_s"] + values["backward_s"]
        place += bf16


def judged(measured: Mapping[str, Any], gpu: Gpu) -> list[Judged]:
    """Every measured update of our trainer."""
    found = updates(measured)
    return [Judged(case, fitted, passes_s(case, gpu), seconds) for case, fitted, seconds in found]


def squares(measured: Mapping[str, Any], gpu: Gpu, figures: Mapping[str, float]) -> float:
    """Of the fitted half, the sum of squared logs of measured over forecast."""
    half = ((case, seconds) for case, fitted, seconds in updates(measured) if fitted)
    errors = [math.log(seconds / passes_s(case, gpu, **figures)) for case, seconds in half]
    return math.fsum(error * error for error in errors)


def fit(measured: Mapping[str, Any], gpu: Gpu) -> dict[str, float]:
    """The figures of `GRID` whose squares are least."""
    every = (dict(zip(GRID, values, strict=True)) for values in product(*GRID.values()))
    return min(every, key=lambda figures: squares(measured, gpu, figures))


def gains(rows: Sequence[Judged]) -> dict[str, tuple[float, float]]:
    """By prompt, rollouts of a group and layout: dense over shared seconds, forecast and
    measured."""
    by_name = {row.case.name: row for row in rows}
    found = {}
    for name, shared in by_name.items():
        dense = by_name.get(name.replace("shared", "dense").replace("together", "dense"))
        if shared.case.shared and dense is not None:
            found[name] = (
                dense.forecast_s / shared.forecast_s,
                dense.measured_s / shared.measured_s,
            )
    return found


def table(rows: Sequence[Judged]) -> str:
    """The updates as Markdown."""
    cells = [
        (
            row.case.name,
            "fitted" if row.fitted else "judged",
            f"{1e3 * row.forecast_s:,.0f}",
            f"{1e3 * row.measured_s:,.0f}",
            f"{row.measured_s / row.forecast_s:.2f}",
        )
        for row in rows
    ]
    return markdown_table(
        ("update", "half", "forecast, ms", "measured, ms", "measured / forecast"), cells
    )


def gains_table(rows: Sequence[Judged]) -> str:
    """What a shared prefix gains, as Markdown."""
    cells = [(name, f"{said:.2f}", f"{found:.2f}") for name, (said, found) in gains(rows).items()]
    return markdown_table(("prompt x rollouts of a group", "forecast", "measured"), cells)


def told(rows: Sequence[Judged]) -> str:
    """Both tables, and the errors of both halves in words."""
    lines = [table(rows)]
    for name, half in (("fitted", True), ("judged", False)):
        errors = [abs(row.error) for row in rows if row.fitted == half]
        lines.append(f"{name}: off by {median(errors):.0%} (median), {fmean(errors):.0%} (mean)")
    return "\n".join([*lines, "", "Dense over shared seconds:", "", gains_table(rows)])


def kept() -> list[Judged]:
    """The measurements that are here, on one H200."""
    measured = json.loads((ROOT / "benchmarks/data/gpu/updates.json").read_text("utf-8"))
    return judged(measured, load_gpu("h200-sxm"))
