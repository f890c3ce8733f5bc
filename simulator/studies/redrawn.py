"""Scenarios redrawn within their uncertainty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.results.phases import PhaseName
from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values import given, read
from rollcast.simulator.values.chance import Chance, Drawn
from rollcast.simulator.workload.known_lengths import KnownLengths
from rollcast.simulator.workload.length_problem import drawn
from rollcast.simulator.workload.length_specs import PresetLengths
from rollcast.simulator.workload.section import WorkloadSection

LEAST_DRAWS = 10  # for the ends of a 90 % interval
MOST_DRAWS = 10_000  # which tell those ends to 1 % of the spread

UNCERTAIN = (
    "step_s",
    "rollout_s",
    "train_s",
    "sync_s",
    "switch_s",
    "rollout_tokens_per_s",
    "makespan_s",
    "gpu_hours",
    "cost_usd",
)
_SEED_STRIDE = 1009

DRIFT = "drift/drift_per_step"
DRIFT_SD = 0.5  # of the drift of lengths, as a share of it; assumed


def redrawn(scenario: Scenario, draw: int) -> Scenario:
    """The scenario with other lengths and rewards, and with its length preset and costs drawn
    within their errors. draw: from 1; equal draws are alike for all policies."""
    seed = scenario.seed + _SEED_STRIDE * draw
    rng = np.random.default_rng(seed)
    chance = Drawn(rng)
    raw = lengths_drawn(override(scenario.raw, (), seed), chance)
    return replace(
        scenario, workload=from_raw(raw).workload, cost=scenario.cost.drawn(chance), learning=None
    )


def reseeded(scenario: Scenario, number: int) -> Scenario:
    """The scenario with other lengths and rewards. number: from 1."""
    seed = scenario.seed + _SEED_STRIDE * number
    return replace(scenario, workload=from_raw(override(scenario.raw, (), seed)).workload)


def lengths_drawn(raw: RawScenario, chance: Chance) -> RawScenario:
    """The scenario with its lengths drawn: a preset's within its errors, what figures of the
    lengths leave open, and their drift."""
    lengths = raw.data["workload"].get("lengths")
    if not isinstance(lengths, dict):
        return raw
    section = read(WorkloadSection, raw.data["workload"], WorkloadSection.FIELD)
    parameters: dict[str, float] = {}
    if isinstance(section.lengths, PresetLengths):
        parameters = _different(section.lengths, section.lengths.drawn(chance))
    elif isinstance(section.lengths, KnownLengths):
        parameters = _different(section.lengths, drawn(section.lengths, chance, section.sampled))
    drift = drift_of(raw)
    if drift:
        further = drift * (1.0 + DRIFT_SD * chance.normal(DRIFT))
        parameters["drift_per_step"] = min(max(further, -1.0), 1.0)
    return override(raw, [f"workload.lengths.{key}={value!r}" for key, value in parameters.items()])


def _different(lengths: object, drawn: object) -> dict[str, float]:
    """The options that were drawn."""
    before = given(lengths)
    return {key: value for key, value in given(drawn).items() if value != before[key]}


def drift_of(raw: RawScenario) -> float:
    """What a step adds to the log of every length."""
    lengths = raw.data["workload"].get("lengths")
    return float(lengths.get("drift_per_step") or 0.0) if isinstance(lengths, dict) else 0.0


def whole_runs(
    scenario: Scenario, draws: int, on_step: Callable[[StepRecord], None] | None = None
) -> list[Mapping[str, Any]]:
    """Summaries of ``draws`` further runs. Raises ScenarioError or RunError."""
    return [simulate(redrawn(scenario, d + 1), on_step).summary for d in range(draws)]


def from_whole_runs(summary: dict[str, Any], drawn: Sequence[Mapping[str, Any]]) -> None:
    """Adds to a run's summary 90 % ``intervals`` of `UNCERTAIN` figures and of its phases, by the
    summaries of further runs."""
    summary["intervals_from"] = "whole runs"
    summary["draws"] = len(drawn)
    summary["intervals"] = {
        key: ends([run[key] for run in drawn]).tolist() for key in UNCERTAIN if key in summary
    }
    seconds = {
        name: np.array([run["phases"][name]["s"] for run in drawn]) for name in summary["phases"]
    }
    add_phases(summary, seconds, [run["bound_by"] for run in drawn])


def add_phases(
    summary: dict[str, Any],
    seconds: Mapping[PhaseName, NDArray[np.float64]],
    bound_by: Sequence[str] | NDArray[np.str_],
) -> None:
    """Adds to each of a summary's ``phases`` its 90 % interval, ``low_s`` and ``high_s``, which
    holds the run's own; and ``bound_by_share``, the share of the draws in which each side bounds
    the step, largest first. seconds: draws by phase; bound_by: of each draw."""
    for name, phase in summary["phases"].items():
        low, high = ends(seconds[name]).tolist()
        phase |= {"low_s": min(low, phase["s"]), "high_s": max(high, phase["s"])}
    counts = Counter(map(str, bound_by)).most_common()
    summary["bound_by_share"] = {side: count / len(bound_by) for side, count in counts}
