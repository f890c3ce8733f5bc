"""Costs of a log's steps: the roofline of a known model and GPU with a factor per phase, or
straight lines where either is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rollcast.calibration.fits import placeholders
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.levels import PRIOR_SD, Figure, Levels, fit_levels, fixed_update_s
from rollcast.calibration.fits.lines import fit_linear, middle
from rollcast.calibration.fits.log_scenario import (
    built,
    cost_parts,
    engines_of,
    kv_part,
    mapping,
    setting,
)
from rollcast.calibration.fits.opening import opening_of
from rollcast.calibration.fits.phases import Phases, level, phases_of
from rollcast.calibration.fits.steps import LEAST_STEPS, Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.costs.opening import Opening
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import TRAINER
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.scenario import Scenario

Shape = Literal["roofline", "linear", "none"]
_PROMPTS_SD = 0.3
"""Of the log of an update's tokens, where its prompts are assumed."""
MOST_PRICED = 120_000
"""Rollouts of the steps that costs are held against; of longer logs, steps evenly over them."""


@dataclass(frozen=True)
class LogCosts:
    """shape: where the costs' shape is from. cost: ``cost`` of a scenario, levels included.
    coefficients: of ``cost.linear``. parts: further ones of the scenario. notes: for the user.
    opening: of generation, also in ``cost``."""

    shape: Shape
    cost: dict[str, Any]
    levels: Levels
    coefficients: dict[str, float]
    parts: list[Part]
    notes: tuple[str, ...] = ()
    opening: Opening | None = None

    def slower(self, log: float) -> LogCosts:
        """With every phase ``exp(log)`` times as long: where the level at the end of a log is not
        that of its median step."""
        if not log or self.shape == "none":
            return self
        times = math.exp(log)
        factors = {phase: times * self.levels.factors.get(phase, 1.0) for phase in PHASES}
        levels = replace(self.levels, factors={**factors, "rest": 1.0})
        opening = self.opening and self.opening.times(times)
        cost = {**self.cost, "scale": _scale(levels, opening)}
        return replace(self, cost=cost, levels=levels, opening=opening)


@dataclass(frozen=True)
class Measured:
    """What costs are held against: quiet steps with a batch, at most `MOST_PRICED` rollouts.
    places: of the steps. timed: their figures. longest_sd: of the log of a batch's longest
    response, where it is not logged."""

    log: RunLog
    steps: Steps
    parts: Sequence[Part]
    places: list[int]
    batches: list[Batch]
    timed: tuple[Figure, ...]
    longest_sd: float
    notes: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        log: RunLog,
        steps: Steps,
        parts: Sequence[Part],
        batches: Sequence[Batch | None],
        timed: Sequence[Figure],
        longest_sd: float,
    ) -> Measured:
        """Of all steps."""
        known = {i: batch for i, batch in enumerate(batches) if batch is not None}
        places = _thinned([i for i in known if steps.quiet[i]], list(known.values()))
        kept = tuple(Figure(f.name, f.phases, f.seconds[places]) for f in timed)
        return cls(log, steps, parts, places, [known[i] for i in places], kept, longest_sd)

    @property
    def enough(self) -> bool:
        """Whether there are enough steps to price anything."""
        return len(self.batches) >= LEAST_STEPS

    @property
    def all_quiet(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """One flag a step."""
        return np.ones(len(self.places), dtype=bool)

    @property
    def late_s(self) -> float:
        """The pause after which the end of a generation is seen; 0 where there is none."""
        poll_s = self.steps.column("poll_s")[self.places]
        return float(np.median(poll_s[poll_s > 0])) if (poll_s > 0).any() else 0.0

    def seen_late(
        self, forecast: Phases, factors: dict[str, float], opening: Opening | None
    ) -> tuple[float, float]:
        """Factor on generation whose end is seen late, and the sd of its log; 1 and 0 if not."""
        poll_s, measured = (self.steps.column(n)[self.places] for n in ("poll_s", "generation_s"))
        kept = np.isfinite(measured) & (measured > 0) & (poll_s > 0)
        if not kept.any():
            return 1.0, 0.0
        made = np.full(int(kept.sum()), opening.seconds if opening else 0.0)
        for name in ("decode", "prefill"):
            made += factors.get(name, 1.0) * forecast[name][kept]
        return level(made, measured[kept], float(np.median(poll_s[kept])))


def fit_costs(measured: Measured) -> LogCosts:
    """The roofline's costs where model and GPU are known and take this run; else straight lines."""
    parts, notes = measured.parts, measured.notes
    if measured.longest_sd:
        notes.append(
            "the log has no longest responses: they were derived from the mean, and "
            "the factor on decode includes their error"
        )
    costs = None
    if setting(parts, "model") is not None and setting(parts, "gpu") is not None:
        try:
            costs = _roofline(measured)
        except ScenarioError as error:
            notes.append(f"the roofline cannot price this run ({error}) and is not used")
    return replace(costs or _lines(measured), notes=tuple(notes))


def _roofline(measured: Measured) -> LogCosts:
    """Raises ScenarioError where the roofline does not take the run."""
    steps, parts, batches = measured.steps, measured.parts, measured.batches
    timed, quiet = measured.timed, measured.all_quiet
    section = cost_parts(measured.log, steps, parts)
    rest_s = next((middle(f.seconds, quiet) for f in timed if f.phases == ("rest",)), 0.0)
    if rest_s:
        source = "median of the rest of a step"
        section.append(Part("cost.roofline.rest_s", round(rest_s, 4), source))
    cost = mapping(section).get("cost", {"roofline": {}})
    scenario, levels, opening = built(parts, cost), Levels.prior(), None
    if measured.enough:
        forecast = phases(scenario, batches)
        fixed_s = fixed_update_s(forecast, timed, quiet)
        if fixed_s:
            each_s = fixed_s / (setting(section, f"{TRAINER}.minibatches") or 1)
            source = "fitted: fixed time of an update"
            section.append(Part(f"{TRAINER}.step_fixed_s", float(f"{each_s:.4g}"), source))
            cost = mapping(section)["cost"]
            forecast = phases(built(parts, cost), batches)
        opening = _opening(measured, forecast, engines_of(scenario).replicas)
        levels = fit_levels(forecast, _without(timed, opening), quiet)
    if not steps.has("mean_prompt_tokens") and setting(parts, "workload.prompt_tokens"):
        levels = levels.less_sure(("log_prob", "update"), _PROMPTS_SD)
        measured.notes.append(
            "the log has no prompt lengths: one was assumed, and the trainer's factors "
            "include its error"
        )
    levels = levels.less_sure(("decode",), measured.longest_sd)
    if measured.enough:
        late, sd = measured.seen_late(forecast, levels.factors, opening)
        both = {p: late * levels.factors[p] for p in ("decode", "prefill")}
        levels = replace(levels, factors={**levels.factors, **both}).less_sure(("decode",), sd)
        opening = opening and opening.times(late)
    cost = {**cost, "scale": _scale(levels, opening)}
    return LogCosts("roofline", cost, levels, {}, section, opening=opening)


def _opening(measured: Measured, forecast: Phases, replicas: int) -> Opening | None:
    """Of a generation that the log times apart from all else; None where it does not."""
    figure = next((f for f in measured.timed if f.phases == _GENERATION), None)
    if figure is None:
        return None
    begun = round(float(np.mean([batch.rollouts for batch in measured.batches])))
    return opening_of(
        {"decode": forecast["decode"]},
        figure.seconds - forecast["prefill"],
        measured.all_quiet,
        begun,
        replicas,
        measured.late_s,
        PRIOR_SD["decode"],
    )


_GENERATION = ("decode", "prefill")


def _without(timed: Sequence[Figure], opening: Opening | None) -> tuple[Figure, ...]:
    """The figures, that of generation by its iterations alone."""
    if opening is None:
        return tuple(timed)
    return tuple(
        replace(f, seconds=np.maximum(f.seconds - opening.seconds, 0.05 * f.seconds))
        if f.phases == _GENERATION
        else f
        for f in timed
    )


def _lines(measured: Measured) -> LogCosts:
    parts, log = measured.parts, measured.log
    nothing = LogCosts("none", {}, Levels.prior(), {}, [])
    if not measured.enough:
        measured.notes.append("too few steps are timed: nothing is priced")
        return nothing
    further = [part for part in (kv_part(parts),) if part is not None]
    whole = replaced(parts, further)
    unpriced = built(whole, placeholders.COST)
    linear = fit_linear(
        engines_of(unpriced),
        setting(parts, "cluster.placement") != "disaggregated",
        measured.batches,
        measured.timed,
        measured.all_quiet,
        log.pads,
        unpriced.shape.trainer_gpus / unpriced.shape.gpus_per_replica,
        measured.late_s,
    )
    if linear is None:
        timed = math.isfinite(measured.steps.median_s)
        measured.notes.append(
            "of rollouts beside training whole steps alone are timed: with --model and --gpu "
            "their pace can be fitted"
            if timed
            else "neither generation nor update nor whole steps are timed: nothing is priced"
        )
        return nothing
    measured.notes.extend(linear.assumed)
    levels = Levels(dict.fromkeys(linear.spreads, 1.0), linear.spreads, linear.seen)
    levels = levels.less_sure(("decode",), measured.longest_sd)
    layout = {"padded": True} if log.pads else {}
    coefficients = dict(linear.coefficients)
    forecast = phases(built(whole, {"linear": {**coefficients, **layout}}), measured.batches)
    late, sd = measured.seen_late(forecast, {}, linear.opening)
    opening = linear.opening and linear.opening.times(late)
    for name in ("iteration_s", "per_rollout_s"):
        coefficients[name] = float(f"{late * coefficients[name]:.6g}")
    levels = levels.less_sure(("decode",), sd)
    cost = {"linear": {**coefficients, **layout}, "scale": _scale(levels, opening)}
    return LogCosts("linear", cost, levels, coefficients, further, opening=opening)


def phases(scenario: Scenario, batches: Sequence[Batch]) -> Phases:
    """Of steps that train on ``batches`` one after another."""
    engines, colocated = engines_of(scenario), scenario.shape.colocated
    return phases_of(scenario.cost, engines, colocated, batches, scenario.poll_s)


def _thinned(places: list[int], batches: Sequence[Batch]) -> list[int]:
    each = max(float(np.mean([batch.rollouts for batch in batches] or [1])), 1.0)
    most = max(int(MOST_PRICED / each), 4)
    if len(places) <= most:
        return places
    return [places[i] for i in np.linspace(0, len(places) - 1, most).round().astype(int)]


def _scale(levels: Levels, opening: Opening | None) -> dict[str, Any]:
    """``cost.scale`` of a scenario."""
    factors: dict[str, Any] = {}
    for phase, sd in levels.spreads.items():
        if phase == "rest":
            continue
        factor = levels.factors.get(phase, 1.0)
        if factor != 1.0:
            factors[phase] = float(f"{factor:.4g}")
        factors[f"{phase}_sd"] = float(f"{min(max(sd, 0.005), 3.0):.3g}")
    if opening is not None:
        factors["opening"] = {
            key: value if isinstance(value, int) else float(f"{value:.4g}")
            for key, value in asdict(opening).items()
        }
    return factors
