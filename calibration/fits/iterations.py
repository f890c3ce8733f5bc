"""What an engine iteration takes, from a run's iterations.

An iteration lasts until the next one begins, and the first of a step from the step's first submit:
the iterations of a step add up to its rollout time, less the time that all rollouts spent in their
environments. Times are at the machine's reference speed. The fit gives the typical iteration; a
step's *ratio* is its measured over its fitted rollout time, and costs are those of the median step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollcast.calibration.fits.robust import (
    SELECTION_ROWS,
    Fit,
    FloatArray,
    fit,
    loss_of,
    median_error,
    needed,
    quantiles,
    worth,
)
from rollcast.calibration.folder import RunFolder
from rollcast.simulator.errors import ScenarioError


class Idle:
    """The times in which an engine had no request. submitted_s, end_s: of segments."""

    def __init__(self, submitted_s: FloatArray, end_s: FloatArray) -> None:
        order = np.argsort(submitted_s, kind="stable")
        start, end = submitted_s[order], np.maximum.accumulate(end_s[order])
        gaps = start[1:] > end[:-1]
        self._start = np.asarray(end[:-1][gaps])
        self._end = np.asarray(start[1:][gaps])
        self._before = np.concatenate(([0.0], np.cumsum(self._end - self._start)))

    @classmethod
    def of(cls, segments: dict[str, NDArray[Any]]) -> Idle:
        """Of tables of segments by column, all replicas together."""
        there = (segments["replica"] >= 0) & (segments["end_s"] > segments["submitted_s"])
        return cls(segments["submitted_s"][there], segments["end_s"][there])

    def between(self, start_s: FloatArray, end_s: FloatArray) -> FloatArray:
        """Seconds of such times in each interval, shape (n,)."""
        return self._until(end_s) - self._until(start_s)

    def _until(self, at_s: FloatArray) -> FloatArray:
        """Seconds of such times before each instant."""
        if not len(self._start):
            return np.zeros_like(at_s)
        which = np.searchsorted(self._start, at_s, "right") - 1
        inside = np.minimum(at_s, self._end[which]) - self._start[which]
        idle_s = self._before[np.maximum(which, 0)] + np.maximum(inside, 0.0)
        return np.asarray(np.where(which < 0, 0.0, idle_s))


MIN_ITERATIONS = 200
MIN_STEPS = 5
_MIN_PREFILLS = 5
_ROUNDING_S = 2e-6  # tables may be kept to the microsecond

# Prompts that hardly vary in length cannot tell the cost of a token from that of an admission.
_LEAST_VARIATION = 0.1


@dataclass(frozen=True)
class Samples:
    """Iterations of several runs: counts and seconds, each of shape (n,); step numbers the steps of
    all runs through, and steps_s holds their rollout times."""

    counts: dict[str, FloatArray]
    seconds: FloatArray
    step: np.ndarray[Any, np.dtype[np.int64]]
    rollout_s: FloatArray

    @property
    def steps(self) -> int:
        """Steps in all."""
        return len(self.rollout_s)


_PREFILL = {
    "prefilling": "prefilling_s",
    "prefill": "per_prefill_token_s",
    "pairs": "per_prefill_pair_s",
}
"""Terms of prefilling beside the admission: an iteration that does it at all, each token, each pair
of a token and one that it attends to."""


@dataclass(frozen=True)
class Prefill:
    """Seconds of prefilling and their standard errors, by key of ``cost.iteration``."""

    cost: dict[str, float]
    errors: dict[str, float]

    @classmethod
    def of(cls, fit: Fit) -> Prefill:
        """Of its terms in a fit."""
        return cls(
            {key: fit[term] for term, key in _PREFILL.items()},
            {key: fit.error(term) for term, key in _PREFILL.items()},
        )

    def seconds(self, counts: dict[str, FloatArray]) -> FloatArray:
        """Of prefilling in each iteration."""
        return np.asarray(
            sum(self.cost[_PREFILL[name]] * term for name, term in _prefill_terms(counts).items())
        )


@dataclass(frozen=True)
class IterationFit:
    """The fit, the median step's ratio, every step's ratio to it, and the cost of prefilling."""

    fit: Fit
    knots: tuple[int, ...]
    step_ratio: float
    step_ratios: FloatArray
    assumed_prefill: bool
    prefill: Prefill

    def cost(self) -> dict[str, Any]:
        """The mapping ``cost.iteration`` of a fitted file: of the median step."""
        ratio = self.step_ratio
        pieces = [[knot, ratio * self.fit[piece_name(knot)]] for knot in self.knots]
        return {
            "fixed_s": ratio * self.fit["fixed"],
            "rollout_pieces": pieces,
            "per_context_token_s": ratio * self.fit["context"],
            **{key: ratio * seconds for key, seconds in self.prefill.cost.items()},
            "per_admission_s": ratio * self.fit["admission"],
        }


def piece_name(knot: int) -> str:
    """The term of the rollouts beyond ``knot``."""
    return f"rollouts>{knot}"


COUNTS = ("rollouts", "context_tokens", "prefill_tokens", "prefill_pairs", "prefill_rollouts")


def collect(runs: Sequence[RunFolder], pulses: Sequence[FloatArray]) -> Samples:
    """The iterations of ``runs``, each with the time until the next.

    pulses: of each run, over the reference; shape (steps, 2). Raises ScenarioError (``RUN_DIR``)
    for too few.
    """
    counts: dict[str, list[FloatArray]] = {name: [] for name in COUNTS}
    seconds, owner, rollout_s = [], [], []
    before = 0
    for run, pulse in zip(runs, pulses, strict=True):
        table, steps = run.iterations, run.steps
        start = table["start_s"]
        # loop and engine share a clock, but a first iteration may begin within rounding
        step = np.searchsorted(steps["rollout_start_s"], start + _ROUNDING_S, "right") - 1
        inside = (step >= 0) & (start <= steps["rollout_end_s"][np.maximum(step, 0)] + _ROUNDING_S)
        start, step = start[inside], step[inside]
        _check_enough(run, len(start), len(np.unique(step)))
        first = np.concatenate(([True], step[1:] != step[:-1]))
        last = np.concatenate((first[1:], [True]))
        begin = np.where(first, steps["rollout_start_s"][step], start)
        end = np.where(last, steps["rollout_end_s"][step], np.concatenate((start[1:], [0.0])))
        for name in COUNTS:
            counts[name].append(table[name][inside].astype(float))
        taken = end - begin
        if run.environments is not None:
            taken -= Idle.of(run.rollouts).between(begin, end)
        seconds.append(np.maximum(taken, 1e-9) / pulse[step, 0])
        _, dense = np.unique(step, return_inverse=True)
        owner.append(dense + before)
        before += int(dense.max()) + 1
        rollout_s.append(np.bincount(dense, weights=seconds[-1]))
    return Samples(
        {name: np.concatenate(parts) for name, parts in counts.items()},
        np.concatenate(seconds),
        np.concatenate(owner),
        np.concatenate(rollout_s),
    )


def _check_enough(run: RunFolder, iterations: int, steps: int) -> None:
    if iterations < MIN_ITERATIONS or steps < MIN_STEPS:
        raise ScenarioError(
            "RUN_DIR",
            f"{run.path}/iterations.csv: {iterations} iterations in {steps} steps are too few; a "
            f"calibration needs at least {MIN_ITERATIONS} in {MIN_STEPS}",
        )


def fit_iterations(samples: Samples, probed: Samples | None = None) -> IterationFit:
    """The iteration cost that explains ``samples``: fixed, per rollout (in as many pieces as the
    data ask for), context token and admission, and what prefilling costs.

    probed: iterations of a probe, with prompts of many lengths; they give the cost of prefilling.
    Without them the runs do, unless their prompts hardly vary: then tokens and admissions cannot be
    told apart. A further decoding rollout is one token through the network, as a prefill token is,
    and is sampled for besides; so a prefill token costs between nothing and that. The middle is
    assumed, with the standard error of that range, the rest goes to the admission, and
    ``assumed_prefill`` says so.
    """
    counts = samples.counts
    prefills = (counts["prefill_tokens"] > 0) & (counts["prefill_rollouts"] > 0)
    if prefills.sum() < _MIN_PREFILLS:
        raise ScenarioError(
            "RUN_DIR", f"only {int(prefills.sum())} iterations prefill; at least 5 are needed"
        )
    knots = _choose_knots(samples)
    terms = {**_terms(samples, knots), "admission": counts["prefill_rollouts"]}
    per_admission = counts["prefill_tokens"][prefills] / counts["prefill_rollouts"][prefills]
    alike = bool(np.std(per_admission) < _LEAST_VARIATION * np.mean(per_admission))
    assumed = alike and probed is None
    if probed is not None:
        prefill = _probed_prefill(probed)
    elif assumed:
        as_tokens = {**terms, "admission": counts["prefill_tokens"]}
        first = fit(as_tokens, samples.seconds, samples.step)
        bound_s = min(first[piece_name(knots[-1])], first["admission"])
        nothing = dict.fromkeys(_PREFILL.values(), 0.0)
        prefill = Prefill(
            {**nothing, "per_prefill_token_s": bound_s / 2},
            {**nothing, "per_prefill_token_s": bound_s / math.sqrt(12.0)},
        )
    else:
        terms |= {"prefill": counts["prefill_tokens"], "pairs": counts["prefill_pairs"]}
        kept = needed(terms, samples.seconds, ("pairs",))
        fitted = fit({name: terms[name] for name in kept}, samples.seconds, samples.step)
        fitted_s = samples.seconds / fitted.ratios
        return _fitted(samples, fitted, knots, fitted_s, Prefill.of(fitted), assumed=False)
    prefill_s = prefill.seconds(counts)
    rest = np.maximum(samples.seconds - prefill_s, 0.05 * samples.seconds)
    fitted = fit(terms, rest, samples.step)
    return _fitted(samples, fitted, knots, rest / fitted.ratios + prefill_s, prefill, assumed)


def _fitted(
    samples: Samples,
    fit: Fit,
    knots: tuple[int, ...],
    fitted_s: FloatArray,
    prefill: Prefill,
    assumed: bool,
) -> IterationFit:
    ratios = samples.rollout_s / np.bincount(samples.step, weights=fitted_s)
    ratio = float(np.median(ratios))
    return IterationFit(fit, knots, ratio, ratios / ratio, assumed, prefill)


def _probed_prefill(probed: Samples) -> Prefill:
    """What prefilling costs in a probe's iterations, all else fitted beside it."""
    counts = probed.counts
    extra = {"admission": counts["prefill_rollouts"], **_prefill_terms(counts)}
    terms = {**_terms(probed, _choose_knots(probed)), **extra}
    kept = needed(terms, probed.seconds, ("prefilling", "pairs"))
    fitted = fit({name: terms[name] for name in kept}, probed.seconds, probed.step)
    return Prefill.of(fitted)


def _prefill_terms(counts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    return {
        "prefilling": (counts["prefill_tokens"] > 0).astype(float),
        "prefill": counts["prefill_tokens"],
        "pairs": counts["prefill_pairs"],
    }


def _terms(samples: Samples, knots: Sequence[int]) -> dict[str, FloatArray]:
    return {
        "fixed": np.ones(len(samples.seconds)),
        **_pieces(samples.counts["rollouts"], knots),
        "context": samples.counts["context_tokens"],
    }


def _pieces(rollouts: FloatArray, knots: Sequence[int]) -> dict[str, FloatArray]:
    """For each piece, how many of the rollouts fall into it."""
    ends = [*knots[1:], np.inf]
    return {
        piece_name(knot): np.clip(rollouts, knot, end) - knot
        for knot, end in zip(knots, ends, strict=True)
    }


def _choose_knots(samples: Samples) -> tuple[int, ...]:
    """The knots that the data ask for, added one by one, the most useful first."""
    rollouts = samples.counts["rollouts"]
    least, most = int(rollouts.min()), int(rollouts.max())
    candidates = [0] + [1 << k for k in range(20) if least < (1 << k) < 0.75 * most]
    every = max(1, len(samples.seconds) // SELECTION_ROWS)
    y = samples.seconds[::every]
    counts = {name: column[::every] for name, column in samples.counts.items()}
    base = {
        "fixed": np.ones(len(y)),
        "context": counts["context_tokens"],
        "admission": counts["prefill_rollouts"],
        "prefill": counts["prefill_tokens"],
    }

    def loss_of_knots(knots: Sequence[int], scale: float | None) -> tuple[float, float]:
        return loss_of({**base, **_pieces(counts["rollouts"], knots)}, y, scale)

    _, scale = loss_of_knots(candidates, None)
    knots: tuple[int, ...] = (0,)
    loss, _ = loss_of_knots(knots, scale)
    while left := [k for k in candidates if k not in knots]:
        trials = [(loss_of_knots(sorted((*knots, k)), scale)[0], k) for k in left]
        least_loss, knot = min(trials)
        if not worth(least_loss, loss):
            break
        loss, knots = least_loss, tuple(sorted((*knots, knot)))
    return knots


def describe(fit: IterationFit, samples: Samples) -> dict[str, Any]:
    """Standard errors, residuals and sample counts for the fitted file; errors are of the costs."""
    ratio = fit.step_ratio
    names = {"fixed": "fixed_s", "context": "per_context_token_s", "admission": "per_admission_s"}
    errors = {
        names.get(n, n): ratio * fit.fit.error(n)
        for n in fit.fit.names
        if n not in ("prefill", "pairs")
    }
    errors |= {key: ratio * error for key, error in fit.prefill.errors.items()}
    return {
        "standard_errors": errors,
        "residual_ratio": quantiles(fit.fit.ratios),
        "step_ratio": fit.step_ratio,
        "step_ratio_to_median": quantiles(fit.step_ratios),
        "step_ratio_standard_error": median_error(fit.step_ratios),
        "assumed_prefill_token": fit.assumed_prefill,
        "iterations": len(samples.seconds),
        "steps": samples.steps,
    }
