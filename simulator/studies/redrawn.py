"""Scenarios redrawn within their uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.values import given, read
from rollcast.simulator.values.chance import Chance, Drawn
from rollcast.simulator.workload.known_lengths import KnownLengths
from rollcast.simulator.workload.length_specs import PresetLengths
from rollcast.simulator.workload.section import WorkloadSection

LEAST_DRAWS = 10  # for the ends of a 90 % interval

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
    return replace(scenario, workload=from_raw(raw).workload, cost=scenario.cost.drawn(chance))


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
        parameters = _different(section.lengths, section.lengths.drawn(chance, section.sampled))
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


def intervals(
    result: Result, draws: int, on_step: Callable[[StepRecord], None] | None = None
) -> dict[str, list[float]]:
    """90 % intervals of a run's figures (`UNCERTAIN`) by ``draws`` further runs. Raises
    ScenarioError or RunError for one that cannot be made."""
    summaries = [simulate(redrawn(result.scenario, d + 1), on_step).summary for d in range(draws)]
    return {
        key: ends([summary[key] for summary in summaries]).tolist()
        for key in UNCERTAIN
        if key in result.summary
    }
