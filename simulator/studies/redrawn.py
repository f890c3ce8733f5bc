"""A scenario drawn anew from what is not known of it, and how far that moves its run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rollcast.simulator.scenario.file import RawScenario, override
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.simulate import Result, from_raw, simulate
from rollcast.simulator.values import read
from rollcast.simulator.values.chance import Chance, Drawn
from rollcast.simulator.workload.length_specs import PresetLengths

LEAST_DRAWS = 10
"""Fewer say nothing about the ends of a 90 % interval."""

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
DRIFT_SD = 0.5
"""Of how lengths go on drifting, as a share of what a scenario says: assumed. Nine of ten runs then
drift by 0.18 to 1.82 times as much."""


def redrawn(scenario: Scenario, draw: int) -> Scenario:
    """The scenario with other lengths and rewards, its length preset drawn by its standard errors,
    and other costs where a fit, a scale or the roofline says how far they may be off. draw: from 1;
    scenarios that differ in their policy alone meet the same in the same draw."""
    seed = scenario.seed + _SEED_STRIDE * draw
    rng = np.random.default_rng(seed)
    chance = Drawn(rng)
    raw = lengths_drawn(override(scenario.raw, (), seed), chance)
    return replace(scenario, workload=from_raw(raw).workload, cost=scenario.cost.drawn(chance))


def reseeded(scenario: Scenario, number: int) -> Scenario:
    """The scenario with other lengths and rewards of the same kind. number: from 1."""
    seed = scenario.seed + _SEED_STRIDE * number
    return replace(scenario, workload=from_raw(override(scenario.raw, (), seed)).workload)


def lengths_drawn(raw: RawScenario, chance: Chance) -> RawScenario:
    """The scenario with its length preset drawn by its standard errors, and what its lengths drift
    by within `DRIFT_SD`; the same one where it has neither."""
    lengths = raw.data["workload"].get("lengths")
    if not isinstance(lengths, dict):
        return raw
    parameters: dict[str, float] = {}
    if "preset" in lengths:
        drawn = read(PresetLengths, lengths, PresetLengths.FIELD).drawn(chance)
        keys = ("median_tokens", "between_sd", "within_sd", "runaway")
        parameters = {key: getattr(drawn, key) for key in keys if getattr(drawn, key) is not None}
    drift = drift_of(raw)
    if drift:
        further = drift * (1.0 + DRIFT_SD * chance.normal(DRIFT))
        parameters["drift_per_step"] = min(max(further, -1.0), 1.0)
    return override(raw, [f"workload.lengths.{key}={value!r}" for key, value in parameters.items()])


def drift_of(raw: RawScenario) -> float:
    """What a step adds to the log of every length."""
    lengths = raw.data["workload"].get("lengths")
    return float(lengths.get("drift_per_step") or 0.0) if isinstance(lengths, dict) else 0.0


def intervals(
    result: Result, draws: int, on_step: Callable[[StepRecord], None] | None = None
) -> dict[str, list[float]]:
    """The 90 % intervals of a finished run's figures (`UNCERTAIN`, those that it has), by ``draws``
    further runs. Raises ScenarioError or RunError where one of them cannot be run."""
    summaries = [simulate(redrawn(result.scenario, d + 1), on_step).summary for d in range(draws)]
    return {
        key: ends([summary[key] for summary in summaries]).tolist()
        for key in UNCERTAIN
        if key in result.summary
    }
