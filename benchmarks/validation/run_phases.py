"""Seconds of the phases of a published run: forecast, and drawn anew over all that is uncertain."""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.validation.published_runs import PublishedRun, put
from benchmarks.validation.stack_effects import Effect
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.values.chance import Drawn

MERGED = {"optimiser": "update"}  # by every source
GROUP: Mapping[str, str] = {
    "generation": "generation",
    "log_prob": "log_prob",
    "reference": "log_prob",
    "values": "log_prob",
    "update": "update",
    "sync": "sync",
    "switch": "sync",
    "other": "other",
}
"""Phases that a stack makes longer or shorter together."""
FACTORS: Mapping[str, tuple[str, ...]] = {
    "generation": ("decode", "prefill"),
    "log_prob": ("log_prob", "reference"),
    "update": ("update",),
}
"""Keys of ``cost.roofline.phase_factors`` of each group."""
SCALED: Mapping[str, tuple[str, ...]] = {"sync": ("sync", "switch"), "other": ("rest",)}
"""Keys of ``cost.scale`` of the others."""
AS_IT_IS = Effect(1.0, 0.0)
STEPS, SEEDS = 12, 3
DRAWS = 24
DRAWN_ROLLOUTS = 256  # of a draw's steps: how far a draw moves a step hangs little on its size
DRAWN_STEPS = {"colocated": 1, "disaggregated": 6}

Seconds = Mapping[str, float]
Effects = Mapping[str, Effect]


@dataclass(frozen=True)
class Forecast:
    """seconds: of a step by phase, with the best guesses. draws: the same times a draw's factors,
    one a draw."""

    seconds: Seconds
    draws: tuple[Seconds, ...]


def forecast(
    run: PublishedRun,
    effects: Effects | None = None,
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    draws: int = DRAWS,
) -> Forecast:
    """A run's phases over ``steps`` of each of ``seeds``, and over draws of its costs and of what
    the source leaves open. effects: of its stack, by group; none: as the roofline has it."""
    effects = dict.fromkeys(GROUP.values(), AS_IT_IS) if effects is None else effects
    found: dict[str, float] = defaultdict(float)
    for seed in range(seeds):
        keys = {**run.keys(), "steps": steps, "seed": seed}
        for phase, seconds in phases_s(with_effects(keys, effects)).items():
            found[phase] += seconds / seeds
    base = phases_s(with_effects(_small(run, {}), effects)) if draws else {}
    drawn = []
    for number in range(draws):
        rng = np.random.default_rng(number)
        chosen = {
            key: guesses[int(rng.integers(len(guesses)))] for key, guesses in run.unknown.items()
        }
        small = phases_s(with_effects(_small(run, chosen), effects, rng), rng)
        drawn.append({p: found[p] * small.get(p, 0.0) / base[p] for p in found if base.get(p)})
    return Forecast(dict(found), tuple(drawn))


def phases_s(keys: Mapping[str, Any], rng: np.random.Generator | None = None) -> dict[str, float]:
    """Mean seconds of a step by phase, and of the step; rng: draws its costs anew."""
    scenario = from_raw(RawScenario(dict(keys)))
    if rng is not None:
        scenario = replace(scenario, cost=scenario.cost.drawn(Drawn(rng)))
    result = simulate(scenario)
    found: dict[str, float] = defaultdict(float)
    for name, entry in result.summary["phases"].items():
        found[MERGED.get(name, name)] += entry["s"]
    return {**found, "step": result.summary["step_s"]}


def with_effects(
    keys: Mapping[str, Any], effects: Effects, rng: np.random.Generator | None = None
) -> dict[str, Any]:
    """The scenario with these effects on its phases; rng: draws those of ``cost.scale``."""
    content = copy.deepcopy(dict(keys))
    own = content.get("cost", {}).get("scale", {})
    for group, effect in effects.items():
        for key in FACTORS.get(group, ()):
            put(content, f"cost.roofline.phase_factors.{key}", effect.factor)
            put(content, f"cost.roofline.phase_factors.{key}_sd", effect.sd)
        log = effect.sd * rng.standard_normal() if rng is not None else 0.0
        for key in SCALED.get(group, ()):
            factor = own.get(key, 1.0) * effect.factor * math.exp(log)
            put(content, f"cost.scale.{key}", factor)
    return content


def _small(run: PublishedRun, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario of a few small steps."""
    keys = run.keys(chosen)
    work = keys["workload"]
    groups = max(DRAWN_ROLLOUTS // work.get("group_size", 1), 1)
    work["batch_groups"] = min(work["batch_groups"], groups)
    placement = keys.get("cluster", {}).get("placement", "colocated")
    return {**keys, "steps": DRAWN_STEPS[placement], "seed": 0}
