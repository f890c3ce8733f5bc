"""The uncertainty of a run's figures and its sources, for about the cost of the run.

Drawn are the costs (`CostModel.drawn`, a Latin hypercube: McKay, Beckman and Conover, Technometrics
21, 1979), the lengths within a preset's errors or within what figures of them leave open, their
drift, and the sampling error. No draw is a run: costs reprice the run's work
(`simulator.studies.work`), lengths respond as in a few short runs (`simulator.studies.short_runs`),
sampling error is a bootstrap. ``--draws N`` makes whole runs instead;
`benchmarks/interval_quality.py` compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.spans import StepRecord
from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.results.phases import PHASES, PhaseName
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.studies.drawn import ends
from rollcast.simulator.studies.redrawn import UNCERTAIN, add_phases, from_whole_runs, whole_runs
from rollcast.simulator.studies.sampling_error import (
    DRAWS,
    LEAST_ROLLOUTS,
    SamplingError,
    sampling_error_of,
    work_of_a_step,
)
from rollcast.simulator.studies.short_runs import (
    FIGURES,
    Kind,
    figures_of,
    kind_of,
    least_work,
    length_inputs,
    respond,
)
from rollcast.simulator.studies.simulate import Result
from rollcast.simulator.studies.surrogate import Drawn, Surrogate, by_tokens, refills
from rollcast.simulator.studies.work import SAME, Prices, Work
from rollcast.simulator.values.chance import Levels
from rollcast.simulator.workload.length_specs import length_presets

FloatArray = NDArray[np.float64]
OnStep = Callable[[StepRecord], None] | None

COST_DRAWS = 64  # each meets `DRAWS` / `COST_DRAWS` draws of the rest
MODEST_ROLLOUTS = 12_000  # budget of short runs for the response to lengths: a second's work
SEEDS = "seeds"
SAID, MOST_SAID = 0.05, 3  # least share and number of sources in the note
_GAUSS = 3.0**0.5  # nodes of Gauss-Hermite of three points: 0 and these, at 2/3 and 1/6 each
_NOTHING = 1e-9  # of a variance: rounding


@dataclass(frozen=True)
class Uncertainty:
    """Of one run. draws: `redrawn.UNCERTAIN` figures by draw, shape (draws,); equal ``costs`` and
    seeds are drawn alike. shares: of the variance of the log step time by source, largest first.
    left_out: inputs that could not be varied. figures: of the run. step: draws of its phases; None
    without steps."""

    draws: Mapping[str, FloatArray]
    shares: Mapping[str, float]
    left_out: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    sampling_error: SamplingError = field(default_factory=SamplingError)
    step: Drawn | None = None

    def note(self, scenario: Scenario) -> str:
        """The largest sources and their shares of the variance, in a line."""
        most = [pair for pair in self.shares.items() if pair[1] >= SAID][:MOST_SAID]
        return ", ".join(
            f"{100 * share:.0f} % {source_name(source, scenario)}" for source, share in most
        )

    @property
    def intervals(self) -> dict[str, list[float]]:
        """90 % intervals that include the run's own figures."""
        intervals = {}
        for key, values in self.draws.items():
            low, high = ends(values).tolist()
            point = self.figures.get(key, low)
            intervals[key] = [min(low, point), max(high, point)]
        return intervals


def uncertainty(
    result: Result,
    on_step: OnStep = None,
    costs: Sequence[CostModel] | None = None,
    alike: Kind | None = None,
    steps: int | None = None,
    sources: bool = True,
) -> Uncertainty:
    """The uncertainty of a finished run.

    costs, alike: draws of the costs (`cost_draws`) and kind of steps (`widest`) for runs that are
    drawn alike. steps: of the whole run, if longer than simulated. sources: whether shares are
    wanted, which take as long as the draws.
    """
    scenario, records = result.scenario, result.run.steps
    if not records:
        return Uncertainty({}, {})
    costs = cost_draws(scenario) if costs is None else costs
    work = Work(scenario, result.run)
    rows = figures_of(result.run, work.by)
    kind = kind_of(records)
    error = sampling_error_of(
        scenario, result.run, alike or kind, on_step, steps, rows, result.again
    )
    errors, inputs = error.ratios, length_inputs(scenario)
    left = work_of_a_step(result.run) * len(records) - error.spent
    dear = least_work(records, inputs, alike or kind) > max(left, MODEST_ROLLOUTS)
    flows = kind == "beside" and (dear or not result.again or refills(scenario))
    if dear or flows or kind == "carried" or not result.again:
        responses = by_tokens(scenario, work, inputs)
    else:
        responses = respond(scenario, records, rows, max(left, LEAST_ROLLOUTS), on_step, alike)
    run = Surrogate(result.summary, responses, flows)
    levels = {name: _column(name, scenario.seed, DRAWS) for name in responses.lengths}
    prices = _table([work.prices(cost) for cost in costs] or [SAME], DRAWS)
    drawn = run.drawn(prices, levels, errors)
    shares = _shares(scenario, work, run, errors, drawn.step_s) if sources else {}
    return Uncertainty(
        _figures(result.summary, drawn),
        shares,
        responses.left_out,
        {key: result.summary[key] for key in UNCERTAIN if result.summary.get(key) is not None},
        error,
        drawn,
    )


def _figures(summary: Mapping[str, Any], drawn: Drawn) -> dict[str, FloatArray]:
    """Draws of the figures of `redrawn.UNCERTAIN` that a run has."""
    step = drawn.step_s / summary["step_s"]
    ratios = {
        **dict.fromkeys(("step_s", "makespan_s", "gpu_hours", "cost_usd"), step),
        "rollout_s": drawn.rollout,
        "train_s": drawn.train,
        "rollout_tokens_per_s": drawn.tokens / drawn.rollout,
    }
    for name in ("sync", "switch"):
        own_s = summary["phases"][name]["s"]
        ratios[f"{name}_s"] = drawn.phases[name] / own_s if own_s > 0 else np.ones_like(step)
    return {key: summary[key] * ratios[key] for key in UNCERTAIN if summary.get(key) is not None}


def add_intervals(
    result: Result,
    draws: int | None = None,
    on_step: OnStep = None,
    on_short_step: OnStep = None,
    costs: Sequence[CostModel] | None = None,
    alike: Kind | None = None,
    sources: bool = True,
) -> Uncertainty:
    """Adds to a run's summary its 90 % ``intervals``, those of its phases (`add_phases`),
    ``intervals_from``, ``interval_shares`` by source, ``interval_note``; ``sampling_error``: of a
    mean step, as a ``share`` of it, and the steps for an error of `sampling_error.CLOSE`
    (``enough_steps``).

    draws: whole runs for the intervals; None for short ones. on_step, on_short_step: called after
    each of their steps. costs, alike, sources: see `uncertainty`, which is returned. Raises
    ScenarioError or RunError for a whole run that cannot be made.
    """
    summary = result.summary
    quick = uncertainty(result, on_short_step, costs, alike, sources=sources)
    if draws:
        from_whole_runs(summary, whole_runs(result.scenario, draws, on_step))
    else:
        source = "short runs" if result.again else "its own work"
        summary |= {"intervals_from": source, "intervals": quick.intervals}
        if quick.step is not None:
            add_phases(summary, quick.step.phases, quick.step.bound_by)
    learns = result.scenario.learning is not None
    if learns and "step_s" in quick.draws and alike is None:  # who draws several alike adds it
        from rollcast.simulator.studies.learned import add_learning

        factors = quick.draws["step_s"] / summary["step_s"]
        add_learning({summary["policy"]: result}, {summary["policy"]: factors})
    summary["interval_shares"] = dict(quick.shares)
    summary["interval_note"] = quick.note(result.scenario)
    error = quick.sampling_error
    summary["sampling_error"] = {"share": error.share, "enough_steps": error.enough}
    if error.warning:
        summary["warnings"].append(error.warning)
    if not result.again:
        summary["warnings"].append(
            f"the intervals of {summary['policy']} reprice its one run: its code was not run "
            "again, so they leave out what it would do otherwise under other lengths or costs, and "
            "rare rollouts longer than any it met"
        )
    if quick.left_out:
        summary["warnings"].append(
            f"intervals leave out what could not be varied: {', '.join(quick.left_out)}"
        )
    return quick


def source_name(source: str, scenario: Scenario) -> str:
    """A source as a sentence has it: of a length preset, with how many prompts it was fitted to."""
    if source == "seeds":
        return "the run's own sampling error"
    if source != "lengths":
        return source
    lengths = scenario.raw.data["workload"]["lengths"]
    if "preset" not in lengths:
        return "what is not known of the lengths"
    preset = length_presets()[lengths["preset"]]
    prompts = preset.details.get("prompts")
    return "the lengths preset" + (f" ({prompts} prompts)" if prompts else "")


def cost_draws(scenario: Scenario) -> list[CostModel]:
    """Draws of the costs, stratified by input; none without uncertain inputs."""
    names = _uncertain(scenario)
    rows = range(COST_DRAWS) if names else ()
    return [_drawn(scenario, names, number, COST_DRAWS) for number in rows]


def cost_draw(scenario: Scenario, number: int, draws: int) -> CostModel:
    """The one at place ``number`` of so many draws."""
    return _drawn(scenario, _uncertain(scenario), number, draws)


def _drawn(scenario: Scenario, names: Sequence[str], number: int, draws: int) -> CostModel:
    levels = {name: float(_column(name, scenario.seed, draws)[number]) for name in names}
    return scenario.cost.drawn(Levels(levels))


def _uncertain(scenario: Scenario) -> list[str]:
    """The names of the costs' inputs that have a spread."""
    asked = Levels()
    scenario.cost.drawn(asked)
    return list(asked.names)


@lru_cache(maxsize=512)
def _column(name: str, seed: int, draws: int) -> FloatArray:
    """Stratified normals of an input, shape (draws,), independent of other inputs."""
    from scipy.special import ndtri

    rng = np.random.default_rng([seed, *name.encode()])
    return np.asarray(ndtri((rng.permutation(draws) + rng.random(draws)) / draws))


def _table(prices: Sequence[Prices], draws: int) -> dict[PhaseName, FloatArray]:
    """By phase, shape (draws,): in turn, as often as it takes."""
    return {name: np.resize(np.array([price[name] for price in prices]), draws) for name in PHASES}


# Shares


def _shares(
    scenario: Scenario, work: Work, run: Surrogate, errors: FloatArray, step_s: FloatArray
) -> dict[str, float]:
    """First-order shares of the variance of the log step time (Sobol', Mathematics and Computers in
    Simulation 55, 2001) by source, by three-point Gauss-Hermite quadrature."""
    variances: dict[str, float] = {}

    def add(name: str, prices: Sequence[Prices], levels: Mapping[str, FloatArray]) -> None:
        still = np.ones((2, len(FIGURES)))
        logs = np.log(run.drawn(_table(prices, 2), levels, still).step_s / run.step_s)
        mean = logs.sum() / 6
        source = name.partition("/")[0]
        share = float((logs**2).sum() / 6 - mean**2)
        variances[source] = variances.get(source, 0.0) + share

    asked = Levels()
    scenario.cost.drawn(asked)
    for name in asked.names:
        add(name, effects(scenario, work, name, _GAUSS), {})
    for name in run.lengths:
        add(name, [SAME], {name: np.array([-_GAUSS, _GAUSS])})
    variances[SEEDS] = float(np.var(np.log(errors[:, 0])))
    total = max(float(np.var(np.log(step_s))), sum(variances.values()))
    if total <= 1e-18:
        return {}
    shares = {
        source: value / total for source, value in variances.items() if value > _NOTHING * total
    }
    return dict(sorted(shares.items(), key=lambda pair: -pair[1]))


def effects(scenario: Scenario, work: Work, name: str, z: float) -> tuple[Prices, Prices]:
    """Prices with one input of the costs at -z and at z."""
    low, high = (work.prices(scenario.cost.drawn(Levels({name: level}))) for level in (-z, z))
    return low, high
