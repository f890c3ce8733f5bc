"""One fit of a log: costs with their levels, lengths, and forecasts of steps made from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from rollcast.calibration.fits import log_responses as own_rollouts
from rollcast.calibration.fits import placeholders, polls
from rollcast.calibration.fits.batches import Batch, dealt, from_figures
from rollcast.calibration.fits.levels import (
    Figure,
    Levels,
    figures,
    fit_levels,
    fixed_update_s,
)
from rollcast.calibration.fits.linear import fit_linear
from rollcast.calibration.fits.log_scenario import (
    TRAINER,
    built,
    cost_parts,
    engines_of,
    kv_part,
    mapping,
    setting,
)
from rollcast.calibration.fits.noise import RandomWalk
from rollcast.calibration.fits.phases import Phases, phases_of
from rollcast.calibration.fits.robust import FloatArray
from rollcast.calibration.fits.step_lengths import FewFigures, LengthsFit, Spread, fit_few
from rollcast.calibration.fits.steps import LEAST_STEPS, Steps
from rollcast.calibration.logs.draft import Part, replaced
from rollcast.calibration.logs.run_log import RunLog
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.scenario.scenario import Scenario
from rollcast.simulator.workload.draws import GroupDraw
from rollcast.simulator.workload.measured import ResampledWorkload

Shape = Literal["roofline", "linear", "none"]
Drift = Literal["freeze", "extrapolate"]
_PROMPTS_SD = 0.3
"""Of the log of an update's tokens, where its prompts are assumed."""
MOST_PRICED = 120_000
"""Rollouts of the steps that costs are held against; of longer logs, steps evenly over them."""


@dataclass(frozen=True)
class Counts:
    """What of a scenario's workload and cluster the fits need. cap: at which responses are cut."""

    batch_groups: int
    group_size: int
    cap: int
    prompt_tokens: int

    @classmethod
    def of(cls, parts: Sequence[Part], steps: Steps) -> Counts:
        """From the parts, and the logged prompts where lengths bring theirs."""
        prompt = steps.median("mean_prompt_tokens")
        given = setting(parts, "workload.prompt_tokens")
        return cls(
            int(setting(parts, "workload.batch_groups")),
            int(setting(parts, "workload.group_size")),
            int(setting(parts, "workload.max_new_tokens")),
            int(given) if given else (max(round(prompt), 1) if math.isfinite(prompt) else 512),
        )


@dataclass(frozen=True)
class Fit:
    """What a part of a log says. parts: of the scenario, with its costs. cost: ``cost`` of a
    scenario. shape: where the costs' shape is from. levels: factors on them (already in ``cost``)
    and how sure. steps: that were fitted, of those logged. few: lengths from figures a step;
    rollouts: from the rollouts themselves. ratios: measured over forecast of the fitted steps.
    figures: what was timed. speed, length: how the level of a step's seconds at its tokens, and of
    the mean length, walk on at random.
    """

    parts: tuple[Part, ...]
    counts: Counts
    cost: dict[str, Any]
    shape: Shape
    levels: Levels
    few: LengthsFit | None
    rollouts: own_rollouts.Fitted | None
    tokens_from: str
    steps: int
    logged: int
    ratios: FloatArray
    figures: tuple[Figure, ...]
    speed: RandomWalk
    length: RandomWalk
    coefficients: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def scenario(self) -> Scenario:
        """With placeholders for the lengths. Raises ScenarioError."""
        return built(self.parts, self.cost)

    def spreads(self) -> dict[str, float]:
        """Of the factors in ``cost``."""
        return self.levels.spreads

    def lengths(self, drift: Drift) -> dict[str, float]:
        """``workload.lengths`` at the end of the log."""
        if self.rollouts is not None and "between_sd" in self.rollouts.lengths["lengths"]:
            keys = {k: v for k, v in self.rollouts.lengths["lengths"].items() if k != "family"}
        elif self.few is not None:
            keys = self.few.lengths()
        else:
            return {}
        slope = keys["drift_per_step"]
        longer = math.exp(self.length.shift + self._back(slope, drift))
        return {
            **keys,
            "median_tokens": min(max(keys["median_tokens"] * longer, 1.0), float(self.counts.cap)),
            "drift_per_step": slope if drift == "extrapolate" else 0.0,
        }

    def _back(self, slope: float, drift: Drift) -> float:
        """Log of the mean lengths of the log's last quarter over those of its end: what does not
        drift on stays as it was there."""
        return -slope * self.logged / 8 if drift == "freeze" else 0.0

    def batches_ahead(
        self, ahead: Sequence[int], drift: Drift, rng: np.random.Generator, sampled: bool
    ) -> list[Batch]:
        """Batches of the steps so many after the last. sampled: whether the lengths' parameters are
        drawn too."""
        draw = self._drawer(drift, rng, sampled)
        walk = self.length.drawn(list(ahead), rng) if sampled else np.zeros(len(ahead))
        longer = np.exp(np.clip(self.length.shift + walk, -1.5, 1.5))
        return [draw(step, factor) for step, factor in zip(ahead, longer.tolist(), strict=True)]

    def _drawer(
        self, drift: Drift, rng: np.random.Generator, sampled: bool
    ) -> Callable[[int, float], Batch]:
        counts = self.counts
        if self.rollouts is not None:
            some = self.rollouts.some
            groups = some.drawn(rng) if sampled else some
            workload = ResampledWorkload(groups, counts.cap, int(rng.integers(1 << 30)))
            slope = self.rollouts.lengths["lengths"]["drift_per_step"]
            back = math.exp(self._back(slope, drift))

            def resampled(step: int, longer: float) -> Batch:
                first = step * counts.batch_groups
                factor = back * longer * math.exp(slope * step if drift == "extrapolate" else 0.0)
                drawn: list[GroupDraw] = [
                    workload.draw(first + i, counts.group_size, version=step % 64)
                    for i in range(counts.batch_groups)
                ]
                prompt = round(float(np.mean([draw.prompt_tokens for draw in drawn])))
                return Batch(
                    max(prompt, 1),
                    tuple(
                        tuple(_scaled(n, factor, counts.cap) for n in draw.new_tokens)
                        for draw in drawn
                    ),
                )

            return resampled
        few = self.few
        assert few is not None
        theta = few.drawn(rng) if sampled else few.values
        lengths = few.lengths(theta, drift == "extrapolate")
        back = math.exp(self._back(few.lengths(theta)["drift_per_step"], drift))

        def from_model(step: int, longer: float) -> Batch:
            shape = (counts.batch_groups, counts.group_size)
            level = (
                math.log(lengths["median_tokens"] * back * longer)
                + lengths["drift_per_step"] * step
            )
            logs = level + lengths["between_sd"] * rng.standard_normal((shape[0], 1))
            logs = logs + lengths["within_sd"] * rng.standard_normal(shape)
            tokens = np.clip(np.ceil(np.exp(np.minimum(logs, 20.0))), 1, counts.cap)
            tokens = np.where(rng.random(shape) < lengths["runaway"], counts.cap, tokens)
            return dealt(
                tokens.astype(np.int64).ravel().tolist(), counts.group_size, counts.prompt_tokens
            )

        return from_model


def _scaled(tokens: int, factor: float, cap: int) -> int:
    return min(max(round(tokens * factor), 1), cap) if factor != 1.0 and tokens < cap else tokens


def fit(
    log: RunLog,
    steps: Steps,
    parts: Sequence[Part],
    rollouts: own_rollouts.Rollouts | None,
    graded_too: bool = True,
) -> Fit:
    """Fits costs and lengths to ``steps`` of the log. parts: of its scenario, without costs.
    graded_too: whether rewards are wanted.

    Raises ScenarioError where the parts make no scenario.
    """
    counts = Counts.of(parts, steps)
    of_rollouts = few = None
    if rollouts is not None:
        collected = own_rollouts.as_responses(rollouts, steps, counts.cap, counts.prompt_tokens)
        of_rollouts = own_rollouts.fit_rollouts(collected, 60, graded_too)
    if of_rollouts is None:
        usual = counts.batch_groups * counts.group_size
        few = fit_few(FewFigures.of(steps, counts.group_size, counts.cap, usual))
    spread = Spread.assumed() if few is None else few.spread
    batches = batches_of(steps, rollouts, counts, spread)
    notes = list(() if of_rollouts is None else of_rollouts.notes)
    timed = figures(steps, log.overlapped)
    known = of_rollouts is not None or steps.has("max_new_tokens")
    longest_sd = 0.0 if known else spread.longest_sd(counts.batch_groups, counts.group_size)
    shape, cost, levels, coefficients, own_parts = _costs(
        log, steps, parts, batches, timed, longest_sd, notes
    )
    ratios = np.zeros(0)
    whole = replaced(parts, own_parts)
    if shape != "none" and not log.overlapped:
        kept = [i for i, b in enumerate(batches) if b is not None and steps.quiet[i]]
        kept = _thinned(kept, batches)
        chosen = [b for i in kept if (b := batches[i]) is not None]
        if chosen:
            forecast = phases(built(whole, cost), chosen).total()
            ratios = steps.whole_s[kept] / forecast
            ratios = ratios[np.isfinite(ratios)]
    return Fit(
        whole,
        counts,
        cost,
        shape,
        levels,
        few,
        of_rollouts,
        "" if rollouts is None else rollouts.tokens_from,
        int(steps.quiet.sum()),
        len(steps),
        ratios,
        timed,
        RandomWalk.of(np.log(ratios)),
        _length(steps, few, of_rollouts),
        coefficients,
        tuple(notes),
    )


def _length(
    steps: Steps, few: LengthsFit | None, of_rollouts: own_rollouts.Fitted | None
) -> RandomWalk:
    """Of the logs of the steps' mean lengths, beside their drift."""
    if of_rollouts is not None:
        slope = float(of_rollouts.lengths["lengths"]["drift_per_step"])
    elif few is not None:
        slope = few.lengths()["drift_per_step"]
    else:
        return RandomWalk.still()
    with np.errstate(invalid="ignore", divide="ignore"):
        logs = np.log(steps.column("mean_new_tokens"))
    return RandomWalk.of(logs - slope * np.arange(len(logs)))


def batches_of(
    steps: Steps, rollouts: own_rollouts.Rollouts | None, counts: Counts, spread: Spread
) -> list[Batch | None]:
    """Of each step: its own rollouts where the log holds them, else lengths with its figures."""
    if rollouts is not None:
        measured = own_rollouts.batches_of(rollouts, steps, counts.prompt_tokens)
        if all(measured):
            return measured
    usual = counts.batch_groups * counts.group_size
    made = from_figures(steps, counts.group_size, usual, counts.cap, counts.prompt_tokens, spread)
    if rollouts is None:
        return made
    return [batch or other for batch, other in zip(measured, made, strict=True)]


def phases(scenario: Scenario, batches: Sequence[Batch]) -> Phases:
    """Of steps that train on ``batches`` one after another."""
    engines, colocated = engines_of(scenario), scenario.shape.colocated
    return phases_of(scenario.cost, engines, colocated, batches, scenario.poll_s)


def _thinned(places: list[int], batches: Sequence[Batch | None]) -> list[int]:
    batch_rollouts = max(float(np.mean([b.rollouts for b in batches if b is not None] or [1])), 1.0)
    most = max(int(MOST_PRICED / batch_rollouts), 4)
    if len(places) <= most:
        return places
    return [places[i] for i in np.linspace(0, len(places) - 1, most).round().astype(int)]


def _costs(
    log: RunLog,
    steps: Steps,
    parts: Sequence[Part],
    batches: Sequence[Batch | None],
    timed: tuple[Figure, ...],
    longest_sd: float,
    notes: list[str],
) -> tuple[Shape, dict[str, Any], Levels, dict[str, float], list[Part]]:
    """Shape, ``cost``, levels, coefficients, and further parts of the scenario. longest_sd: of the
    log of each batch's longest response, where it is not logged."""
    places = [i for i, batch in enumerate(batches) if batch is not None and steps.quiet[i]]
    places = _thinned(places, batches)
    chosen = [batch for i in places if (batch := batches[i]) is not None]
    quiet = np.ones(len(places), dtype=bool)
    timed = tuple(Figure(f.name, f.phases, f.seconds[places]) for f in timed)
    if longest_sd:
        notes.append(
            "the log does not hold the longest responses: the factor on decoding holds "
            "whatever those made from the mean are off by"
        )
    known = setting(parts, "model") is not None and setting(parts, "gpu") is not None
    rest_s = _rest_s(timed)
    if known:
        cost_section = cost_parts(log, steps, parts)
        if rest_s:
            cost_section.append(
                Part("cost.roofline.rest_s", round(rest_s, 4), "median of what remains of a step")
            )
        section = mapping(cost_section).get("cost", {"roofline": {}})
        try:
            scenario = built(parts, section)
            levels = Levels.prior()
            if len(chosen) >= LEAST_STEPS:
                forecast = phases(scenario, chosen)
                fixed_s = fixed_update_s(forecast, timed, quiet)
                if fixed_s:
                    minibatches = setting(cost_section, f"{TRAINER}.minibatches") or 1
                    cost_section.append(
                        Part(
                            f"{TRAINER}.step_fixed_s",
                            float(f"{fixed_s / minibatches:.4g}"),
                            "fitted: what an update takes whatever its tokens",
                        )
                    )
                    section = mapping(cost_section)["cost"]
                    forecast = phases(built(parts, section), chosen)
                levels = fit_levels(forecast, timed, quiet)
            if not steps.has("mean_prompt_tokens") and setting(parts, "workload.prompt_tokens"):
                levels = levels.less_sure(("log_prob", "update"), _PROMPTS_SD)
                notes.append(
                    "the log does not hold how long prompts are: the trainer's factors "
                    "hold whatever the assumed length is off by"
                )
            levels = levels.less_sure(("decode",), longest_sd)
            if len(chosen) >= LEAST_STEPS:
                late, sd = _seen_late(steps, places, forecast, levels.factors)
                both = {p: late * levels.factors[p] for p in ("decode", "prefill")}
                levels = replace(levels, factors={**levels.factors, **both})
                levels = levels.less_sure(("decode",), sd)
        except ScenarioError as error:
            notes.append(f"the roofline does not take this run ({error}): its shape is not used")
        else:
            scale = _scale(levels)
            return "roofline", {**section, "scale": scale}, levels, {}, cost_section
    further = [part for part in (kv_part(parts),) if part is not None]
    if len(chosen) < LEAST_STEPS:
        notes.append("too few steps are timed to price anything")
        return "none", {}, Levels.prior(), {}, []
    engines = engines_of(built(replaced(parts, further), placeholders.COST))
    colocated = setting(parts, "cluster.placement") != "disaggregated"
    linear = fit_linear(engines, colocated, chosen, timed, quiet, log.pads)
    if linear is None:
        notes.append("neither generation nor update nor whole steps are timed: nothing is priced")
        return "none", {}, Levels.prior(), {}, []
    notes.extend(linear.assumed)
    levels = Levels(dict.fromkeys(linear.spreads, 1.0), linear.spreads, linear.seen)
    levels = levels.less_sure(("decode",), longest_sd)
    layout = {"padded": True} if log.pads else {}
    coefficients = dict(linear.coefficients)
    forecast = phases(
        built(replaced(parts, further), {"linear": {**coefficients, **layout}}), chosen
    )
    late, sd = _seen_late(steps, places, forecast, {})
    for name in ("iteration_s", "per_rollout_s"):
        coefficients[name] = float(f"{late * coefficients[name]:.6g}")
    levels = levels.less_sure(("decode",), sd)
    cost = {"linear": {**coefficients, **layout}, "scale": _scale(levels)}
    return "linear", cost, levels, coefficients, further


def _seen_late(
    steps: Steps, places: list[int], forecast: Phases, factors: dict[str, float]
) -> tuple[float, float]:
    """A factor on how long generation takes where the trainer sees its end late, and the standard
    deviation of its log; 1 and 0 where it is told at once."""
    poll_s, measured = steps.column("poll_s")[places], steps.column("generation_s")[places]
    kept = np.isfinite(measured) & (measured > 0) & (poll_s > 0)
    if not kept.any():
        return 1.0, 0.0
    made = sum(factors.get(name, 1.0) * forecast[name][kept] for name in ("decode", "prefill"))
    pause_s = float(np.median(poll_s[kept]))
    return polls.level(np.asarray(made), measured[kept], pause_s)


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


def _rest_s(timed: Sequence[Figure]) -> float:
    for figure in timed:
        if figure.phases == ("rest",):
            kept = figure.seconds[np.isfinite(figure.seconds)]
            return max(float(np.median(kept)), 0.0) if len(kept) else 0.0
    return 0.0
