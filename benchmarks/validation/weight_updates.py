"""How long new weights take to reach the engines: checkpoint-engine, and syncs by mechanism."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.validation.case import Case, Check, Role, grouped, held_out, spread_text
from benchmarks.validation.files import PUBLISHED, column, read_table, value_of
from benchmarks.validation.suite import Judged
from rollcast.simulator.costs import RooflineCost
from rollcast.simulator.costs.presets.gpus import load_gpu
from rollcast.simulator.costs.presets.models import load_model
from rollcast.simulator.costs.sync.weight_sync import Mechanism, WeightSync
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.values import read as read_options

SYNCS = PUBLISHED / "weight_syncs.csv"
FACTOR = 1.5  # within which a held-out sync should be forecast
UNFITTED = "TorchTitan"  # a trainer whose export no figure here was fitted to


def _options(cell: str, where: str) -> dict[str, Any]:
    return {k: value_of(v) for k, v in (o.split("=") for o in cell.split(";") if o)}


@dataclass(frozen=True, slots=True)
class Row:
    """An update by checkpoint-engine."""

    name: str = column()
    weight_bytes: float = column(least=1.0)
    gpus: int = column()
    update_s: float = column()
    role: Role = column()


@dataclass(frozen=True, slots=True)
class Sync:
    """A sync by another mechanism; parameters: of a model that is no preset, 16 bit."""

    name: str = column()
    mechanism: Mechanism = column()
    model: str = column()
    parameters: float | None = column(least=1.0)
    trainer_gpus: int = column()
    engine_gpus: int = column()
    options: dict[str, Any] = column(made=_options)
    low_s: float = column()
    high_s: float = column()
    role: Role = column()


def forecast_s(weight_bytes: float) -> float:
    """Seconds of a weight sync with the roofline's defaults, whatever the number of GPUs."""
    cost = RooflineCost(load_model("qwen3-8b"), load_gpu("h20"))
    return cost.sync_fixed_s + weight_bytes / cost.sync_bytes_per_s


def updates(rows: Sequence[Row]) -> Iterator[Case]:
    """checkpoint-engine's weight updates against the defaults; on many GPUs against its preset,
    whose growth is that of the first of them."""
    for row in rows:
        name, guess = f"{row.name}, {row.gpus} GPUs", forecast_s(row.weight_bytes)
        yield Case("checkpoint-engine update", name, "s", row.update_s, guess, row.role)
        if row.gpus > 16:
            sync = WeightSync("checkpoint_service")
            grown = sync.seconds_of(row.weight_bytes, 0.0, 0, row.gpus, row.gpus)
            role: Role = "calibrated" if row.name.startswith("DeepSeek") else "held out"
            ends = _ends(sync, grown)
            yield Case("checkpoint_service", name, "s", row.update_s, grown, role, *ends)


def _ends(sync: WeightSync, seconds: float) -> tuple[float, float]:
    """The middle 90 % of what the mechanism's spread leaves open."""
    low, high = math.log(sync.preset.low), math.log(sync.preset.high)
    within = (low + 0.05 * (high - low), low + 0.95 * (high - low))
    return seconds * math.exp(within[0]), seconds * math.exp(within[1])


def syncs(path: Path = SYNCS) -> list[Case]:
    """Published syncs against the figures of their mechanism; those of a trainer that nothing was
    fitted to are in a group of their own. Raises ScenarioError."""
    cases = []
    for line, row in enumerate(read_table(path, Sync), start=2):
        where = f"{path.name}, line {line}"
        options = {"mechanism": row.mechanism, **row.options}
        sync = read_options(WeightSync, options, f"{where}, options")
        if row.high_s < row.low_s:
            raise ScenarioError(f"{where}, high_s", "is less than low_s")
        gpus = (row.trainer_gpus, row.engine_gpus)
        if row.parameters:
            seconds = sync.seconds_of(2 * row.parameters, 0.0, 0, *gpus)
        else:
            seconds = sync.seconds(load_model(row.model), *gpus)
        group = f"{row.mechanism}, {UNFITTED}" if UNFITTED in row.name else row.mechanism
        name, measured_s = f"{row.name}: {row.model}", math.sqrt(row.low_s * row.high_s)
        cases.append(Case(group, name, "s", measured_s, seconds, row.role, *_ends(sync, seconds)))
    return cases


def off(case: Case) -> float:
    """The factor by which the forecast is off, up or down."""
    return max(case.forecast / case.measured, case.measured / case.forecast)


def judge(rows: Sequence[Row]) -> Judged:
    """Updates and syncs; by mechanism, the worst factor of the held-out cases, less one."""
    defaults, others = list(updates(rows)), syncs()
    grown = [case for case in defaults if case.group == "checkpoint_service"]
    checks = []
    for name, members in grouped(held_out([*grown, *others])).items():
        worst = max(members, key=off)
        label = f"{name}: worst factor of a held-out sync, less 1"
        checks.append(Check(label, off(worst) - 1, FACTOR - 1, len(members), worst.name))
    return Judged([*defaults, *others], checks, [spread_text(held_out(others))])
