"""Our trainer's forecast seconds against measured ones: ``python -m benchmarks.gpu_cases judge``.

Of each GPU's updates whose passes are in bf16, in the order of the cases, the figures of ``stack:
rollcast`` are fitted to every first two of four, and judged on the others and on those in float32.
"""

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

MEASURED = {
    "h200-sxm": ("updates.json", "h200-second/updates.json"),
    "h100-sxm": ("h100/updates.json",),
}
"""In ``benchmarks/data/gpu``, by the preset of the GPU that was measured."""
GRID: Mapping[str, Sequence[float]] = {
    "traffic_per_activation_byte": [step / 2 for step in range(1, 9)],
    "traffic_per_logit": range(0, 80, 10),
    "launch_s_per_layer": [step * 5e-5 for step in range(20, 40)],
}


@dataclass(frozen=True, slots=True)
class Judged:
    """An update. gpu: a preset. Seconds of forward and backward. fitted: whether figures are fitted
    to it."""

    gpu: str
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


def judged(measured: Mapping[str, Any]) -> list[Judged]:
    """Every measured update of our trainer. measured: by the preset of its GPU."""
    return [
        Judged(name, case, fitted, passes_s(case, gpu), seconds)
        for name, told in measured.items()
        for gpu in [load_gpu(name)]
        for case, fitted, seconds in updates(told)
    ]


def squares(measured: Mapping[str, Any], figures: Mapping[str, float]) -> float:
    """Of the fitted half, the sum of squared logs of measured over forecast."""
    errors = [
        math.log(seconds / passes_s(case, gpu, **figures))
        for name, told in measured.items()
        for gpu in [load_gpu(name)]
        for case, fitted, seconds in updates(told)
        if fitted
    ]
    return math.fsum(error * error for error in errors)


def fit(measured: Mapping[str, Any]) -> dict[str, float]:
    """The figures of `GRID` whose squares are least."""
    every = (dict(zip(GRID, values, strict=True)) for values in product(*GRID.values()))
    return min(every, key=lambda figures: squares(measured, figures))


def gains(rows: Sequence[Judged]) -> dict[tuple[str, str], tuple[float, float]]:
    """By GPU, and by prompt, rollouts of a group and layout: dense over shared seconds, forecast
    and measured."""
    by_name = {(row.gpu, row.case.name): row for row in rows}
    found = {}
    for (gpu, name), shared in by_name.items():
        plain = name.replace("shared", "dense").replace("together", "dense")
        dense = by_name.get((gpu, plain))
        if shared.case.shared and dense is not None:
            found[gpu, name] = (
                dense.forecast_s / shared.forecast_s,
                dense.measured_s / shared.measured_s,
            )
    return found


def table(rows: Sequence[Judged]) -> str:
    """The updates as Markdown, all GPUs of one in a row."""
    gpus = list(dict.fromkeys(row.gpu for row in rows))
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        star = "*" if row.fitted else ""
        said = f"{1e3 * row.forecast_s:,.0f}{star}; {1e3 * row.measured_s:,.0f}; "
        said += f"{row.measured_s / row.forecast_s:.2f}"
        cells.setdefault(row.case.name, {})[row.gpu] = said
    head = [f"{gpu}: forecast, measured, ms; their ratio" for gpu in gpus]
    body = [(name, *(by_gpu.get(gpu, "") for gpu in gpus)) for name, by_gpu in cells.items()]
    return markdown_table(("update", *head), body)


def gains_table(rows: Sequence[Judged]) -> str:
    """What a shared prefix gains, as Markdown."""
    cells = [
        (name, gpu, f"{said:.2f}", f"{found:.2f}")
        for (gpu, name), (said, found) in gains(rows).items()
    ]
    return markdown_table(("prompt x rollouts of a group", "GPU", "forecast", "measured"), cells)


def told(rows: Sequence[Judged]) -> str:
    """Both tables, and the errors of both halves in words."""
    lines = [table(rows)]
    for name, half in (("fitted (*)", True), ("judged", False)):
        errors = [abs(row.error) for row in rows if row.fitted == half]
        lines.append(f"{name}: off by {median(errors):.0%} (median), {fmean(errors):.0%} (mean)")
    return "\n".join([*lines, "", "Dense over shared seconds:", "", gains_table(rows)])


def here() -> dict[str, Any]:
    """The measurements that are here, by the preset of their GPU."""
    folder = ROOT / "benchmarks" / "data" / "gpu"
    found: dict[str, Any] = {}
    for gpu, names in MEASURED.items():
        told = [json.loads((folder / name).read_text("utf-8"))["cases"] for name in names]
        found[gpu] = {"cases": {case: row for cases in told for case, row in cases.items()}}
    return found


def kept() -> list[Judged]:
    """Those, judged."""
    return judged(here())
