"""Seconds of the phases of a published run: forecast, and drawn anew over all that is uncertain."""

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.validation.published_runs import PublishedRun, put
from benchmarks.validation.stack_effects import Effect
from rollcast.simulator.scenario.file import RawScenario
from rollcast.simulator.studies.simulate import from_raw, simulate
from rollcast.simulator.studies.uncertainty import COST_DRAWS, cost_draw

MERGED = {"optimiser": "update"}  # by every source
GROUP: Mapping[str, str] = {
    "generation": "generation",
    "log_prob": "log_prob",
    "reference": "log_prob",
    "values": "log_prob",
    "update": "update",
    "sync": "sync",
    "switch": "sync",
}
"""Phases that a stack makes longer or shorter together."""
FACTORS: Mapping[str, tuple[str, ...]] = {
    "generation": ("decode", "prefill"),
    "log_prob": ("log_prob", "reference"),
    "update": ("update",),
    "sync": ("sync",),
}
"""Keys of ``cost.roofline.phase_factors`` of each group."""
AS_IT_IS = Effect(1.0, 0.0)
STEPS, SEEDS = 12, 3
OVERLAPPED_STEPS = 24  # where the first steps fill a pipeline
DRAWS = COST_DRAWS  # as `rollcast simulate` has them: the ends of fewer draws lie further out
# Of a draw's steps. With 128, engines of a large batch decode so few at once that what hosts add
# counts for more than in the whole step: generation's intervals are up to 1.3 times as wide.
DRAWN_ROLLOUTS = 512
DRAWN_STEPS = 8  # where steps overlap

Seconds = Mapping[str, float]
Effects = Mapping[str, Effect]


@dataclass(frozen=True)
class Forecast:
    """seconds: of a step by phase, with the best guesses. draws: the same times a draw's factors,
    one a draw. bound: what bounds a step, of `simulator.results.phases.Side`."""

    seconds: Seconds
    draws: tuple[Seconds, ...]
    bound: str = ""


def forecast(
    run: PublishedRun,
    effects: Effects | None = None,
    *,
    steps: int | None = None,
    seeds: int = SEEDS,
    draws: int = DRAWS,
    seed_of_draws: int = 0,
) -> Forecast:
    """A run's phases over ``steps`` of each of ``seeds`` (None: `STEPS`, or more where steps
    overlap), and over draws of its costs and of what the source leaves open. effects: of its stack,
    by group; none: as the roofline has it."""
    # effects are fitted beside draws of one width, and narrowed with them
    known = effects is not None and not run.unknown
    effects = dict.fromkeys(GROUP.values(), AS_IT_IS) if effects is None else effects
    steps = steps or (OVERLAPPED_STEPS if run.scenario["policy"] else STEPS)
    found: dict[str, float] = defaultdict(float)
    bounds = []
    for seed in range(seeds):
        keys = {**run.keys(), "steps": steps, "seed": seed}
        summary = simulated(with_effects(keys, effects, known))
        bounds.append(str(summary["bound_by"]))
        for phase, seconds in phases_s(summary).items():
            found[phase] += seconds / seeds
    still = _small(run, {}, seed_of_draws)
    base = phases_s(simulated(with_effects(still, effects, known))) if draws else {}
    drawn = []
    for number in range(draws):
        rng = np.random.default_rng([seed_of_draws, number])
        chosen = {
            key: guesses[int(rng.integers(len(guesses)))] for key, guesses in run.unknown.items()
        }
        changed = with_effects(_small(run, chosen, seed_of_draws), effects, known)
        small = phases_s(simulated(changed, (number, draws)))
        phases = {p: found[p] * small.get(p, 0.0) / base[p] for p in found if base.get(p)}
        drawn.append({**phases, "step": step_s(run, phases, found)})
    return Forecast(dict(found), tuple(drawn), max(bounds, key=bounds.count))


def step_s(run: PublishedRun, drawn: Seconds, found: Seconds) -> float:
    """Seconds of a step whose phases take ``drawn`` rather than ``found``: they follow one another,
    or where rollouts have GPUs of their own the longer side decides. A small step is no measure of
    it: what a phase takes whatever its work is more of it."""
    overlapped = run.scenario["policy"] and run.scenario["cluster"]["placement"] != "colocated"

    def length(of: Seconds) -> float:
        beside = {"step", "wait", "tail", "generation"}  # the tail is part of the generation
        training = sum(seconds for phase, seconds in of.items() if phase not in beside)
        generation = of.get("generation", 0.0)
        return max(generation, training) if overlapped else generation + training

    return found["step"] * length(drawn) / length(found)


def simulated(keys: Mapping[str, Any], draw: tuple[int, int] | None = None) -> Mapping[str, Any]:
    """The summary of a scenario; draw: which of how many draws of its costs, as `compare` makes
    them."""
    scenario = from_raw(RawScenario(dict(keys)))
    if draw is not None:
        scenario = replace(scenario, cost=cost_draw(scenario, *draw))
    return simulate(scenario).summary


def phases_s(summary: Mapping[str, Any]) -> dict[str, float]:
    """Mean seconds of a step by phase, and of the step."""
    found: dict[str, float] = defaultdict(float)
    for name, entry in summary["phases"].items():
        found[MERGED.get(name, name)] += entry["s"]
    return {**found, "step": summary["step_s"]}


def with_effects(
    keys: Mapping[str, Any], effects: Effects, settings_known: bool = False
) -> dict[str, Any]:
    """The scenario with these effects on its phases."""
    content = copy.deepcopy(dict(keys))
    put(content, "cost.roofline.settings_known", settings_known)
    for group, effect in effects.items():
        for key in FACTORS[group]:
            put(content, f"cost.roofline.phase_factors.{key}", effect.factor)
            put(content, f"cost.roofline.phase_factors.{key}_sd", effect.sd)
    return content


def _small(run: PublishedRun, chosen: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """The scenario of a few small steps."""
    keys = run.keys(chosen)
    work = keys["workload"]
    groups = max(DRAWN_ROLLOUTS // work.get("group_size", 1), 1)
    work["batch_groups"] = min(work["batch_groups"], groups)
    return {**keys, "steps": DRAWN_STEPS if keys["policy"] else 1, "seed": seed}
