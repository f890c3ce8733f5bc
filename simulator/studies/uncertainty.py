"""The uncertainty of a run's figures and its sources, for about the cost of the run.

Drawn are the costs (`CostModel.drawn`, a Latin hypercube: McKay, Beckman and Conover, Technometrics
21, 1979), the lengths within a preset's errors or within what figures of them leave open, their
drift, and the sampling error. No draw is a run: costs reprice the run's work
(`simulator.studies.work`), lengths respond as in a few short runs (`simulator.studies.short_runs`),
sampling error is a bootstrap. ``--draws N`` makes whole runs instead;
`benchmarks/interval_quality.py` compares both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.costs.base import CostModel
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.spans import StepRecord
from rollcast.simulator.studies.flowing import Sides, by_tokens, refills
from rollcast.simulator.studies.interval import ends
from rollcast.simulator.studies.redrawn import UNCERTAIN, intervals
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
    Responses,
    in_turns,
    kind_of,
    least_work,
    length_inputs,
    respond,
)
from rollcast.simulator.studies.simulate import Result
from rollcast.simulator.studies.work import Prices, Work
from rollcast.simulator.values.chance import Levels
from rollcast.simulator.workload.length_specs import length_presets

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
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
    left_out: inputs that could not be varied. figures: of the run."""

    draws: Mapping[str, FloatArray]
    shares: Mapping[str, float]
    left_out: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    sampling_error: SamplingError = field(default_factory=SamplingError)

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
) -> Uncertainty:
    """The uncertainty of a finished run.

    costs, alike: draws of the costs (`cost_draws`) and kind of steps (`widest`) for runs that are
    drawn alike. steps: of the whole run, if longer than simulated.
    """
    scenario, records = result.scenario, result.run.steps
    if not records:
        return Uncertainty({}, {})
    drawn = cost_draws(scenario) if costs is None else costs
    work = Work(scenario, result.run)
    kind = kind_of(records)
    error = sampling_error_of(scenario, result.run, alike or kind, on_step, steps)
    errors, inputs = error.ratios, length_inputs(scenario)
    left = work_of_a_step(result.run) * len(records) - error.spent
    dear = least_work(records, inputs, alike or kind) > max(left, MODEST_ROLLOUTS)
    flows = kind == "beside" and (dear or refills(scenario))
    if dear or flows or kind == "carried":
        responses = by_tokens(scenario, work, inputs)
    else:
        responses = respond(scenario, records, max(left, LEAST_ROLLOUTS), on_step, alike)
    shape = result.run.shape
    sides = Sides.of(result.summary, shape.replicas * shape.gpus_per_replica, flows)
    run = _Surrogate(records, responses, sides, flows)
    levels = {name: _column(name, scenario.seed, DRAWS) for name in responses.lengths}
    cycle = np.arange(DRAWS) % max(len(drawn), 1)
    prices = _table([work.prices(cost) for cost in drawn] or [Prices()])[:, cycle]
    figures = run.figures(prices, levels, errors)
    shares = _shares(scenario, work, run, errors, figures["step_s"])
    ratio = {
        name: values / run.base[name] if run.base[name] > 0 else np.ones(DRAWS)
        for name, values in figures.items()
    }
    ratio["makespan_s"] = ratio["gpu_hours"] = ratio["cost_usd"] = ratio["step_s"]
    ratio["rollout_tokens_per_s"] = ratio["tokens"] / ratio["rollout_s"]
    summary = result.summary
    points = {key: summary[key] for key in UNCERTAIN if summary.get(key) is not None}
    kept = {key: value * ratio[key] for key, value in points.items()}
    return Uncertainty(kept, shares, responses.left_out, points, error)


def add_intervals(
    result: Result,
    draws: int | None = None,
    on_step: OnStep = None,
    on_short_step: OnStep = None,
    costs: Sequence[CostModel] | None = None,
    alike: Kind | None = None,
) -> Uncertainty:
    """Adds to a run's summary its 90 % ``intervals``, ``intervals_from``, ``interval_shares`` by
    source, ``interval_note``; ``sampling_error``: of a mean step, as a ``share`` of it, and the
    steps for an error of `sampling_error.CLOSE` (``enough_steps``).

    draws: whole runs for the intervals; None for short ones. on_step, on_short_step: called after
    each of their steps. costs, alike: see `uncertainty`, which is returned. Raises ScenarioError or
    RunError for a whole run that cannot be made.
    """
    summary, quick = result.summary, uncertainty(result, on_short_step, costs, alike)
    summary["intervals_from"] = "whole runs" if draws else "short runs"
    if draws:
        summary["draws"] = draws
    summary["intervals"] = intervals(result, draws, on_step) if draws else quick.intervals
    summary["interval_shares"] = dict(quick.shares)
    summary["interval_note"] = quick.note(result.scenario)
    error = quick.sampling_error
    summary["sampling_error"] = {"share": error.share, "enough_steps": error.enough}
    if error.warning:
        summary["warnings"].append(error.warning)
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


def cost_draws(scenario: Scenario, draws: int = COST_DRAWS) -> list[CostModel]:
    """Draws of the costs, stratified by input; none without uncertain inputs."""
    asked = Levels()
    scenario.cost.drawn(asked)
    names = list(asked.names)
    if not names:
        return []
    levels = np.column_stack([_column(name, scenario.seed, draws) for name in names])
    return [
        scenario.cost.drawn(Levels(dict(zip(names, row, strict=True)))) for row in levels.tolist()
    ]


def _column(name: str, seed: int, draws: int) -> FloatArray:
    """Stratified normals of an input, shape (draws,), independent of other inputs."""
    from scipy.special import ndtri

    rng = np.random.default_rng([seed, *name.encode()])
    return np.asarray(ndtri((rng.permutation(draws) + rng.random(draws)) / draws))


def _table(prices: Sequence[Prices]) -> FloatArray:
    """Shape (4, draws)."""
    return np.array([astuple(price) for price in prices]).T


# What a run's figures become


class _Surrogate:
    """Figures of a run as functions of prices, levels of the lengths and sampling error."""

    def __init__(
        self, records: Sequence[StepRecord], responses: Responses, sides: Sides, flows: bool
    ) -> None:
        self._responses, self._sides, self._flows = responses, sides, flows
        self.in_turns = in_turns(records)
        steps = len(records)
        mean = {
            name: math.fsum(getattr(record, name) for record in records) / steps
            for name in ("step_s", "rollout_s", "train_s", "sync_s", "switch_s")
        }
        self.base = {**mean, "tokens": 1.0}

    @property
    def lengths(self) -> list[str]:
        """Inputs of the lengths."""
        return list(self._responses.lengths)

    def figures(
        self, prices: FloatArray, levels: Mapping[str, FloatArray], errors: FloatArray
    ) -> dict[str, FloatArray]:
        """prices: shape (4, draws). levels: by input, shape (draws,). errors: shape (draws,
        figures)."""
        base = self.base
        moved = {
            figure: errors[:, k] * np.exp(self._longer(figure, levels, prices.shape[1]))
            for k, figure in enumerate(FIGURES)
        }
        rollout, train, sync, switch = prices
        figures = {
            "train_s": base["train_s"] * train * moved["train_s"],
            "sync_s": base["sync_s"] * sync,
            "switch_s": base["switch_s"] * switch,
            "tokens": moved["tokens"],
        }
        if self.in_turns:
            figures["rollout_s"] = base["rollout_s"] * rollout * moved["rollout_s"]
            phases_s = math.fsum(
                base[name] for name in ("rollout_s", "train_s", "sync_s", "switch_s")
            )
            parts = (
                figures["rollout_s"] + figures["train_s"] + figures["sync_s"] + figures["switch_s"]
            )
            scale = base["step_s"] / phases_s if phases_s > 0 else 1.0
            figures["step_s"] = parts * scale
            return figures
        # A step that is one side's as a whole answers to lengths as such; else each side does.
        # Sampling error is of either side too, which is what policies of a comparison have in
        # common; where rollouts flow from step to step it is of the steps.
        flows = self._flows
        if flows:
            longer = errors[:, 0]
            sides = [moved["rollout_s"] / errors[:, 1], moved["train_s"] / errors[:, 2]]
        else:
            longer = moved["step_s"] / errors[:, 0]
            sides = [errors[:, 1], errors[:, 2]]
        grown = self._sides.step(rollout * sides[0], train * sides[1])
        between = base["sync_s"] + base["switch_s"]
        share = min(between / base["step_s"], 0.9)
        waited = base["sync_s"] * sync + base["switch_s"] * switch
        waits = waited / between if between > 0 else np.ones_like(waited)
        figures["step_s"] = base["step_s"] * longer * ((1.0 - share) * grown + share * waits)
        figures["rollout_s"] = base["rollout_s"] * (
            grown * errors[:, 1] if flows else rollout * moved["rollout_s"]
        )
        return figures

    def _longer(self, figure: str, levels: Mapping[str, FloatArray], draws: int) -> FloatArray:
        """The log of what the lengths do to a figure, shape (draws,)."""
        total = np.zeros(draws)
        for name, z in levels.items():
            total = total + self._responses.lengths[name].log(figure, z)
        return total


# Shares


def _shares(
    scenario: Scenario, work: Work, run: _Surrogate, errors: FloatArray, step_s: FloatArray
) -> dict[str, float]:
    """First-order shares of the variance of the log step time (Sobol', Mathematics and Computers in
    Simulation 55, 2001) by source, by three-point Gauss-Hermite quadrature."""
    still = np.ones((1, len(FIGURES)))
    nothing: dict[str, FloatArray] = {}
    variances: dict[str, float] = {}

    def add(name: str, low: FloatArray, high: FloatArray) -> None:
        logs = np.log([low[0] / run.base["step_s"], high[0] / run.base["step_s"]])
        mean = logs.sum() / 6
        source = name.partition("/")[0]
        share = float((logs**2).sum() / 6 - mean**2)
        variances[source] = variances.get(source, 0.0) + share

    asked = Levels()
    scenario.cost.drawn(asked)
    for name in asked.names:
        low, high = (
            run.figures(_table([prices]), nothing, still)["step_s"]
            for prices in effects(scenario, work, name, _GAUSS)
        )
        add(name, low, high)
    flat = _table([Prices()])
    for name in run.lengths:
        low, high = (
            run.figures(flat, {name: np.array([z])}, still)["step_s"] for z in (-_GAUSS, _GAUSS)
        )
        add(name, low, high)
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
