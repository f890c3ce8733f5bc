"""Costs of a log's steps: the roofline of a known model and GPU with a factor per phase, or
straight lines where either is not known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rollcast.calibration.fits import placeholders
from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.generation import Engines, iterations_and_running
from rollcast.calibration.fits.levels import (
    FLOOR,
    PRIOR_SD,
    Figure,
    Levels,
    fit_levels,
    fixed_update_s,
)
from rollcast.calibration.fits.log_scenario import (
    built,
    cost_parts,
    engines_of,
    kv_part,
    mapping,
    setting,
)
from rollcast.calibration.fits.phases import Phases, level, phases_of
from rollcast.calibration.fits.robust import FloatArray, fit, median_error, needed
from rollcast.calibration.fits.steps import LEAST_STEPS, Flags, Steps
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.costs.scaled import PHASES
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.launches.costs import TRAINER
from rollcast.simulator.launches.parts import Part, replaced
from rollcast.simulator.scenario.scenario import Scenario

_SPLIT = 0.5
"""Of a step whose phases were not timed apart, what is taken to be generation."""
_LEAST_S = 1e-7
_COEFFICIENTS = (
    "iteration_s",
    "per_rollout_s",
    "per_context_token_s",
    "per_prefill_token_s",
    "train_per_token_s",
    "train_per_rollout_s",
    "log_prob_per_token_s",
    "train_fixed_s",
    "sync_s",
    "switch_to_train_s",
    "switch_to_rollout_s",
)


@dataclass(frozen=True)
class LinearFit:
    """Coefficients of ``cost.linear``, the spreads of the phases' factors, which figure each came
    from, and what was assumed in words."""

    coefficients: dict[str, float]
    spreads: dict[str, float]
    seen: dict[str, str]
    assumed: tuple[str, ...]


@dataclass(frozen=True)
class _Work:
    """What is fitted to: the batch of each step, and which steps are quiet."""

    engines: Engines
    batches: Sequence[Batch]
    quiet: Flags
    padded: bool

    @property
    def rollouts(self) -> FloatArray:
        """Of each step."""
        return np.array([batch.rollouts for batch in self.batches], dtype=float)

    @property
    def tokens(self) -> FloatArray:
        """That the trainer computes in each step."""
        counts = [b.padded_tokens if self.padded else b.tokens for b in self.batches]
        return np.array(counts, dtype=float)

    @property
    def prompt_tokens(self) -> FloatArray:
        """That each replica prefills in a step."""
        cached = self.engines.prefix_caching
        counts = [b.prompt_tokens * (len(b.groups) if cached else b.rollouts) for b in self.batches]
        return np.array(counts) / self.engines.replicas


def fit_linear(
    engines: Engines,
    colocated: bool,
    batches: Sequence[Batch],
    timed: Sequence[Figure],
    quiet: Flags,
    padded: bool = False,
    times: float = 1.0,
) -> LinearFit | None:
    """None where nothing was timed that an iteration could be priced from. padded: whether updates
    pad each rollout to the longest of the batch. times: GPUs of the trainer over those of a
    replica."""
    by = {phase: figure for figure in timed for phase in figure.phases}
    generation, update = by.get("decode"), by.get("update")
    if generation is None and update is None:
        return None
    work = _Work(engines, batches, quiet, padded)
    coefficients = dict.fromkeys(_COEFFICIENTS, 0.0)
    spreads = dict.fromkeys(("decode", "log_prob", "update", "sync", "switch"), FLOOR)
    spreads["prefill"] = 2 * PRIOR_SD["prefill"]
    assumed: list[str] = []
    of_generation = of_update = 1.0  # shares of their figures
    if generation is not None and generation is update:
        of_generation, of_update = _SPLIT, 1 - _SPLIT
        assumed.append(
            f"half of each step is assumed to be generation: only {generation.name} was timed"
        )
    _fit_trainer(work, by, of_update, coefficients, spreads)
    per_token = times * _forward_s(work, coefficients)
    if generation is not None:
        iterations, running = _counted(engines, batches)
        seconds = of_generation * generation.seconds
        per_token = min(per_token, _sampled_s(seconds, running, quiet))
        seconds = np.maximum(seconds - per_token * work.prompt_tokens, 0.2 * seconds)
        terms = {"iterations": iterations, "running": running}
        values, spreads["decode"] = _fitted(terms, seconds, quiet)
        coefficients["iteration_s"], coefficients["per_rollout_s"] = values
    if per_token:
        coefficients["per_prefill_token_s"] = per_token
        assumed.append(
            "a prompt token is assumed to cost a replica what a forward costs the trainer's GPUs, "
            "and at most what a sampled token costs it"
        )
    if coefficients["iteration_s"] + coefficients["per_rollout_s"] == 0:
        coefficients["iteration_s"] = _LEAST_S
        spreads["decode"] = 3.0
        assumed.append("the log does not time generation: its cost is not known")
    for phase, name in (("sync", "sync_s"), ("rest", "train_fixed_s")):
        figure = by.get(phase)
        if figure is not None and figure is not generation:
            coefficients[name] = middle(figure.seconds, quiet)
    switch = by.get("switch")
    if switch is not None and colocated and switch.name == "switch_s":
        coefficients["switch_to_rollout_s"] = middle(switch.seconds, quiet)
    seen = {phase: figure.name for phase, figure in by.items() if phase not in ("prefill", "rest")}
    rounded = {name: float(f"{value:.6g}") for name, value in coefficients.items()}
    return LinearFit(rounded, spreads, seen, tuple(assumed))


def _fit_trainer(
    work: _Work,
    by: Mapping[str, Figure],
    share: float,
    coefficients: dict[str, float],
    spreads: dict[str, float],
) -> None:
    """Adds what updates and grading passes cost. share: of the update's figure that is update."""
    update, grade = by.get("update"), by.get("log_prob")
    if update is not None:
        terms = {"rollouts": work.rollouts, "tokens": work.tokens}
        values, spreads["update"] = _fitted(terms, share * update.seconds, work.quiet)
        coefficients["train_per_rollout_s"], coefficients["train_per_token_s"] = values
    if grade is not None and grade is not update:
        values, spreads["log_prob"] = _fitted({"tokens": work.tokens}, grade.seconds, work.quiet)
        coefficients["log_prob_per_token_s"] = values[0]


def _forward_s(work: _Work, coefficients: Mapping[str, float]) -> float:
    """Seconds a token of a forward pass of the trainer: a third of an update's, if not timed."""
    per_rollout = coefficients["train_per_rollout_s"] * work.rollouts.sum() / work.tokens.sum()
    whole = coefficients["train_per_token_s"] + per_rollout
    return coefficients["log_prob_per_token_s"] or whole / 3


def _sampled_s(seconds: FloatArray, running: FloatArray, quiet: Flags) -> float:
    """Seconds a sampled token of a replica, of the median step; infinite where none is timed."""
    kept = quiet & np.isfinite(seconds) & (seconds > 0) & (running > 0)
    return float(np.median(seconds[kept] / running[kept])) if kept.any() else float("inf")


def middle(seconds: FloatArray, quiet: Flags) -> float:
    """The median of the quiet steps that have it, at least 0; 0 where none has."""
    kept = seconds[quiet & np.isfinite(seconds)]
    return max(float(np.median(kept)), 0.0) if len(kept) else 0.0


def _fitted(
    terms: dict[str, FloatArray], seconds: FloatArray, quiet: Flags
) -> tuple[list[float], float]:
    """A coefficient a term, and how far their level is off (standard deviation of the log)."""
    kept = quiet & np.isfinite(seconds) & (seconds > 0)
    if not kept.any():
        return [0.0] * len(terms), PRIOR_SD["update"]
    y, columns = seconds[kept], {name: term[kept] for name, term in terms.items()}
    if kept.sum() < 3 * len(terms) or all(np.ptp(term) == 0 for term in columns.values()):
        share = 1.0 / len(terms)
        values = [share * float(np.median(y / term)) for term in columns.values()]
        return values, max(median_error(np.log(y)), 0.1)
    names = needed(columns, y, list(columns)[:-1])
    fitted = fit({name: columns[name] for name in names}, y, np.arange(len(y)))
    level = float(np.median(fitted.ratios))
    spread = float(np.hypot(median_error(np.log(np.maximum(fitted.ratios, 1e-3))), FLOOR))
    return [level * fitted[name] for name in terms], spread


def _counted(engines: Engines, batches: Sequence[Batch]) -> tuple[FloatArray, FloatArray]:
    """Iterations of the replica that ends last, and rollouts running in them, by step."""
    counted = [iterations_and_running(engines, b.prompt_tokens, b.groups) for b in batches]
    iterations, running = np.array(counted, dtype=float).T
    return iterations, running


Shape = Literal["roofline", "linear", "none"]
_PROMPTS_SD = 0.3
"""Of the log of an update's tokens, where its prompts are assumed."""
MOST_PRICED = 120_000
"""Rollouts of the steps that costs are held against; of longer logs, steps evenly over them."""


@dataclass(frozen=True)
class LogCosts:
    """shape: where the costs' shape is from. cost: ``cost`` of a scenario, levels included.
    coefficients: of ``cost.linear``. parts: further ones of the scenario. notes: for the user."""

    shape: Shape
    cost: dict[str, Any]
    levels: Levels
    coefficients: dict[str, float]
    parts: list[Part]
    notes: tuple[str, ...] = ()

    def slower(self, log: float) -> LogCosts:
        """With every phase ``exp(log)`` times as long: where the level at the end of a log is not
        that of its median step."""
        if not log or self.shape == "none":
            return self
        times = math.exp(log)
        factors = {phase: times * self.levels.factors.get(phase, 1.0) for phase in PHASES}
        levels = replace(self.levels, factors={**factors, "rest": 1.0})
        return replace(self, cost={**self.cost, "scale": _scale(levels)}, levels=levels)


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

    def seen_late(self, forecast: Phases, factors: dict[str, float]) -> tuple[float, float]:
        """Factor on generation whose end is seen late, and the sd of its log; 1 and 0 if not."""
        poll_s, measured = (self.steps.column(n)[self.places] for n in ("poll_s", "generation_s"))
        kept = np.isfinite(measured) & (measured > 0) & (poll_s > 0)
        if not kept.any():
            return 1.0, 0.0
        made = sum(factors.get(name, 1.0) * forecast[name][kept] for name in ("decode", "prefill"))
        return level(np.asarray(made), measured[kept], float(np.median(poll_s[kept])))


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
    scenario, levels = built(parts, cost), Levels.prior()
    if measured.enough:
        forecast = phases(scenario, batches)
        fixed_s = fixed_update_s(forecast, timed, quiet)
        if fixed_s:
            each_s = fixed_s / (setting(section, f"{TRAINER}.minibatches") or 1)
            source = "fitted: fixed time of an update"
            section.append(Part(f"{TRAINER}.step_fixed_s", float(f"{each_s:.4g}"), source))
            cost = mapping(section)["cost"]
            forecast = phases(built(parts, cost), batches)
        levels = fit_levels(forecast, timed, quiet)
    if not steps.has("mean_prompt_tokens") and setting(parts, "workload.prompt_tokens"):
        levels = levels.less_sure(("log_prob", "update"), _PROMPTS_SD)
        measured.notes.append(
            "the log has no prompt lengths: one was assumed, and the trainer's factors "
            "include its error"
        )
    levels = levels.less_sure(("decode",), measured.longest_sd)
    if measured.enough:
        late, sd = measured.seen_late(forecast, levels.factors)
        both = {p: late * levels.factors[p] for p in ("decode", "prefill")}
        levels = replace(levels, factors={**levels.factors, **both}).less_sure(("decode",), sd)
    return LogCosts("roofline", {**cost, "scale": _scale(levels)}, levels, {}, section)


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
    )
    if linear is None:
        measured.notes.append(
            "neither generation nor update nor whole steps are timed: nothing is priced"
        )
        return nothing
    measured.notes.extend(linear.assumed)
    levels = Levels(dict.fromkeys(linear.spreads, 1.0), linear.spreads, linear.seen)
    levels = levels.less_sure(("decode",), measured.longest_sd)
    layout = {"padded": True} if log.pads else {}
    coefficients = dict(linear.coefficients)
    forecast = phases(built(whole, {"linear": {**coefficients, **layout}}), measured.batches)
    late, sd = measured.seen_late(forecast, {})
    for name in ("iteration_s", "per_rollout_s"):
        coefficients[name] = float(f"{late * coefficients[name]:.6g}")
    levels = levels.less_sure(("decode",), sd)
    cost = {"linear": {**coefficients, **layout}, "scale": _scale(levels)}
    return LogCosts("linear", cost, levels, coefficients, further)


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


def _scale(levels: Levels) -> dict[str, float]:
    """``cost.scale`` of a scenario."""
    factors: dict[str, float] = {}
    for phase, sd in levels.spreads.items():
        if phase == "rest":
            continue
        factor = levels.factors.get(phase, 1.0)
        if factor != 1.0:
            factors[phase] = float(f"{factor:.4g}")
        factors[f"{phase}_sd"] = float(f"{min(max(sd, 0.005), 3.0):.3g}")
    return factors
