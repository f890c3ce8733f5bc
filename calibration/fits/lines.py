"""Straight lines through the steps of a log whose model or GPU nobody names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rollcast.calibration.fits.batches import Batch
from rollcast.calibration.fits.generation import Engines, iterations_and_running
from rollcast.calibration.fits.levels import FLOOR, PRIOR_SD, Figure
from rollcast.calibration.fits.opening import opening_of
from rollcast.calibration.fits.robust import FloatArray, fit, median_error, needed
from rollcast.calibration.fits.steps import Flags
from rollcast.simulator.costs.opening import Opening

_SPLIT = 0.5
"""Of a step whose phases were not timed apart, what is taken to be generation."""
_LEAST_S = 1e-7
_LEAST_SHARE = 0.05
"""Of a step's generation, what its iterations are taken for at least."""
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
    from, what was assumed in words, and the opening of generation where that is timed."""

    coefficients: dict[str, float]
    spreads: dict[str, float]
    seen: dict[str, str]
    assumed: tuple[str, ...]
    opening: Opening | None = None


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
    late_s: float = 0.0,
) -> LinearFit | None:
    """None where nothing was timed that an iteration could be priced from. padded: whether updates
    pad each rollout to the longest of the batch. times: GPUs of the trainer over those of a
    replica. late_s: the pause after which the end of a generation is seen."""
    by = {phase: figure for figure in timed for phase in figure.phases}
    generation, update = by.get("decode"), by.get("update")
    if generation is None and update is None:
        return None
    work = _Work(engines, batches, quiet, padded)
    coefficients = dict.fromkeys(_COEFFICIENTS, 0.0)
    spreads = dict.fromkeys(("decode", "log_prob", "update", "sync", "switch"), FLOOR)
    spreads["prefill"] = 2 * PRIOR_SD["prefill"]
    assumed: list[str] = []
    opening = None
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
        if generation is not update:
            begun = round(float(np.mean(work.rollouts)))
            opening = opening_of(terms, seconds, quiet, begun, engines.replicas, late_s)
        known_s = opening.seconds if opening else 0.0
        values, spreads["decode"] = _fitted(terms, seconds, quiet, known_s)
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
    return LinearFit(rounded, spreads, seen, tuple(assumed), opening)


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
    """Seconds a token of a forward pass of the trainer: a third of an update's, or what all passes
    over the log-probabilities take, which may be several and load weights, if that is less."""
    per_rollout = coefficients["train_per_rollout_s"] * work.rollouts.sum() / work.tokens.sum()
    update = coefficients["train_per_token_s"] + per_rollout
    return min(filter(None, (update / 3, coefficients["log_prob_per_token_s"])), default=0.0)


def _sampled_s(seconds: FloatArray, running: FloatArray, quiet: Flags) -> float:
    """Seconds a sampled token of a replica, of the median step; infinite where none is timed."""
    kept = quiet & np.isfinite(seconds) & (seconds > 0) & (running > 0)
    return float(np.median(seconds[kept] / running[kept])) if kept.any() else float("inf")


def middle(seconds: FloatArray, quiet: Flags) -> float:
    """The median of the quiet steps that have it, at least 0; 0 where none has."""
    kept = seconds[quiet & np.isfinite(seconds)]
    return max(float(np.median(kept)), 0.0) if len(kept) else 0.0


def _fitted(
    terms: dict[str, FloatArray], seconds: FloatArray, quiet: Flags, known_s: float = 0.0
) -> tuple[list[float], float]:
    """A coefficient a term, and how far the level of the whole is off (standard deviation of the
    log). known_s: that every step has beside the terms."""
    kept = quiet & np.isfinite(seconds) & (seconds > 0)
    if not kept.any():
        return [0.0] * len(terms), PRIOR_SD["update"]
    whole, columns = seconds[kept], {name: term[kept] for name, term in terms.items()}
    y = np.maximum(whole - known_s, _LEAST_SHARE * whole)
    if kept.sum() < 3 * len(terms) or all(np.ptp(term) == 0 for term in columns.values()):
        share = 1.0 / len(terms)
        values = [share * float(np.median(y / term)) for term in columns.values()]
        return values, max(median_error(np.log(whole)), 0.1)
    names = needed(columns, y, list(columns)[:-1])
    fitted = fit({name: columns[name] for name in names}, y, np.arange(len(y)))
    level = float(np.median(fitted.ratios))
    ratios = whole / (known_s + level * y / fitted.ratios)
    spread = float(np.hypot(median_error(np.log(np.maximum(ratios, 1e-3))), FLOOR))
    return [level * fitted[name] for name in terms], spread


def _counted(engines: Engines, batches: Sequence[Batch]) -> tuple[FloatArray, FloatArray]:
    """Iterations of the replica that ends last, and rollouts running in them, by step."""
    counted = [iterations_and_running(engines, b.prompt_tokens, b.groups) for b in batches]
    iterations, running = np.array(counted, dtype=float).T
    return iterations, running
