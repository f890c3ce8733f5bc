"""The law of progress, fitted to learning curves: by least squares, towards what was known before.

Runs that begin with the same weights on the same task (one *origin*) share a speed and a slowing;
all share noise, power of the learning rate, and staleness. What one's own runs do not say (the
staleness, where all are synchronous) stays as the prior has it, as wide as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from rollcast.calibration.fits.learning_lengths import LengthPoints, fit_lengths
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.law import PARAMETERS, Domain, Law, lag_of
from rollcast.simulator.learning.progress import columns_of, progress
from rollcast.simulator.learning.signals import FloatArray, IntArray, Signals

CONCENTRATION = 3.0
"""Of the success probability over prompts; from 0.5 up the fit to our runs hardly depends on it."""
MODEL_SD = 0.02
"""What the law is not held to, in accuracy."""
LEAST_MOVE = 4.0
"""By so many standard errors an accuracy must have moved, or nothing is learned from it."""
LEAST_EVALUATIONS = 3
LEAST_POLICIES = 6
"""So many policies say how far policies are from the law; what was known before of how far runs
differ counts as so many runs."""
_OWN = 2  # parameters of an origin: log_speed, slowing
_STEPS = (0.4, 0.4, 1.0, 0.3, 1.0)  # typical sizes of a change, by parameter
_DIFFERENCE = float(np.sqrt(np.finfo(float).eps))

VAGUE_MEAN = np.array([-2.0, 0.5, 3.0, 0.8, 0.0])
VAGUE_SD = np.array([2.0, 0.5, 2.0, 0.4, 1.5])
"""What is known of `PARAMETERS` without any run."""


@dataclass(frozen=True, eq=False)
class LearningRun:
    """A run's learning curve.

    origin: what its first weights and its task are called. rate: its learning rate. updates,
    accuracy, answers: of its evaluations, each (evaluations,): after so many updates, the share of
    right answers of so many. right_tokens, wrong_tokens: mean lengths then, nan where not known.
    """

    name: str
    origin: str
    policy: str
    seed: int
    rate: float
    signals: Signals
    updates: IntArray
    accuracy: FloatArray
    answers: FloatArray
    right_tokens: FloatArray
    wrong_tokens: FloatArray


def log_odds(accuracy: FloatArray, answers: FloatArray) -> FloatArray:
    """log(p / (1 - p)), with half an answer added on both sides."""
    right = np.asarray(accuracy) * answers
    return np.asarray(np.log((right + 0.5) / (answers - right + 0.5)))


def check_runs(runs: Sequence[LearningRun], field: str) -> None:
    """Raises ScenarioError (``field``) for runs that say nothing of learning."""
    if not runs:
        raise ScenarioError(field, "no run was given")
    for run in runs:
        if len(run.updates) < LEAST_EVALUATIONS:
            raise ScenarioError(
                field,
                f"{run.name} has {len(run.updates)} evaluations; a curve needs at least "
                f"{LEAST_EVALUATIONS}: set engine.evaluation (every: 5) and run longer",
            )
        if np.nanmin(run.accuracy) < 0 or np.nanmax(run.accuracy) > 1:
            raise ScenarioError(
                field,
                f"{run.name}: its rewards go from {np.nanmin(run.accuracy):g} to "
                f"{np.nanmax(run.accuracy):g}; a law needs an accuracy, from 0 to 1",
            )
    origins = sorted({run.origin for run in runs})
    if len(origins) > 1:
        raise ScenarioError(
            field,
            f"the runs are of {len(origins)} tasks or models ({'; '.join(origins[:3])}); fit each "
            "by itself",
        )
    if len({run.seed for run in runs}) < 2:
        one = f"all runs have seed {runs[0].seed}" if len(runs) > 1 else "only one run was given"
        raise ScenarioError(
            field, f"{one}, so nothing says what chance alone does; add a run with another seed"
        )
    if not any(moved(run) for run in runs):
        raise ScenarioError(
            field,
            "the accuracy of no run moves by more than chance would move it, so there is no "
            "progress to fit; run longer, or evaluate on more prompts",
        )


def moved(run: LearningRun) -> bool:
    """Whether a run's accuracy rose by more than chance, between its first and last thirds."""
    third = max(len(run.updates) // 3, 1)
    first, last = run.accuracy[:third], run.accuracy[-third:]
    mean = float(np.mean(run.accuracy))
    spread = np.sqrt(max(mean * (1 - mean), 1e-4) / run.answers[0] * 2 / third)
    return bool(np.mean(last) - np.mean(first) > LEAST_MOVE * spread)


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit to runs. origins: names. own: log_speed and slowing by origin, (origins, 2); shared:
    the other parameters, (3,). covariance: of own (row by row), then shared. away: log speed of
    each run against the law, and its standard error by the noise of evaluations, (runs, 2).
    level_sd: standard deviation of the logarithm of the log-odds gained, over the law's, that speed
    does not explain; level_speed: log speed that such a level would be taken for, over it."""

    runs: Sequence[LearningRun]
    origins: tuple[str, ...]
    own: FloatArray
    shared: FloatArray
    covariance: FloatArray
    away: FloatArray
    level_sd: float
    level_speed: float
    rate: float

    def of(self, origin: str) -> tuple[FloatArray, FloatArray]:
        """Parameters of one origin in the order of `PARAMETERS`, and their covariance."""
        at = self.origins.index(origin)
        count = _OWN * len(self.origins)
        rows = [_OWN * at, _OWN * at + 1, count, count + 1, count + 2]
        return np.concatenate((self.own[at], self.shared)), self.covariance[np.ix_(rows, rows)]


def fit(
    runs: Sequence[LearningRun], mean: FloatArray = VAGUE_MEAN, covariance: FloatArray | None = None
) -> Fit:
    """Fits all runs. mean, covariance: what is known before, of `PARAMETERS`; default: next to
    nothing. The first evaluation of an origin's runs is their common start."""
    from scipy.optimize import least_squares

    before = np.diag(VAGUE_SD**2) if covariance is None else covariance
    whiten = np.linalg.inv(np.linalg.cholesky(before + 1e-9 * np.eye(len(mean))))
    origins = tuple(sorted({run.origin for run in runs}))
    origin = np.array([origins.index(run.origin) for run in runs])
    rate = float(np.median([run.rate for run in runs]))
    factors = np.log([run.rate / rate for run in runs])
    columns = columns_of([run.signals for run in runs], CONCENTRATION)
    start = _starts(runs, origin)
    at = np.concatenate([np.full(len(run.updates), i) for i, run in enumerate(runs)])
    updates = np.concatenate([run.updates for run in runs])
    measured = np.concatenate([run.accuracy for run in runs])
    answers = np.concatenate([run.answers for run in runs])
    count = _OWN * len(origins)
    several = columns.times(count + len(mean) - _OWN)

    def accuracies(sets: FloatArray, away: float = 0.0, level: float = 0.0) -> FloatArray:
        """Of each of several sets of parameters, each a row: shape (sets, answers)."""
        own, shared = sets[:, :count].reshape(len(sets), -1, _OWN), sets[:, count:]
        noise, power, staleness = (np.repeat(column, len(runs)) for column in shared.T)
        z = progress(
            columns if len(sets) == 1 else several,
            np.tile(start, len(sets)),
            np.exp(own[:, origin, 0] + shared[:, 1:2] * factors + away).ravel(),
            own[:, origin, 1].ravel(),
            np.exp(noise),
            power,
            np.exp(staleness),
        )
        gained = z.reshape(len(sets), len(runs), -1)[:, at, updates] - start[at]
        return np.asarray(1.0 / (1.0 + np.exp(-start[at] - gained * np.exp(level))))

    def residuals_of(p: FloatArray) -> FloatArray:
        return np.asarray((p - measured) / np.sqrt(p * (1.0 - p) / answers + MODEL_SD**2))

    def residuals(x: FloatArray, away: float = 0.0, level: float = 0.0) -> FloatArray:
        return residuals_of(accuracies(x[np.newaxis], away, level)[0])

    def from_before(x: FloatArray) -> FloatArray:
        """How far the parameters are from what was known before."""
        own = x[:count].reshape(-1, _OWN)
        each = [np.concatenate((row, x[count:])) for row in own]
        # What all share is known once, not once an origin.
        weight = np.array([1.0, 1.0, *[len(each) ** -0.5] * 3])
        return np.concatenate([whiten @ ((row - mean) * weight) for row in each])

    def before_too(x: FloatArray) -> FloatArray:
        return np.concatenate([residuals(x), from_before(x)])

    def slopes(x: FloatArray) -> FloatArray:
        """Of `before_too`, by differences; all runs under all changed parameters go on together."""
        by = np.copysign(_DIFFERENCE * np.maximum(1.0, np.abs(x)), x)
        changed = x + np.diag(by)
        found = residuals_of(accuracies(changed))
        known = np.array([from_before(each) for each in changed])
        differences = np.concatenate((found, known), axis=1) - before_too(x)
        return np.asarray(differences.T / by)

    first = np.concatenate((np.tile(mean[:_OWN], len(origins)), mean[_OWN:]))
    scale = np.concatenate((np.tile(_STEPS[:_OWN], len(origins)), _STEPS[_OWN:]))
    found = least_squares(before_too, first, slopes, x_scale=scale, loss="soft_l1")
    spread = np.linalg.pinv(found.jac.T @ found.jac)
    small, left, p = 1e-3, residuals(found.x), accuracies(found.x[np.newaxis])[0]
    noise = 1.0 / (1.0 + MODEL_SD**2 * answers / (p * (1.0 - p)))  # share of the variance
    slope, level = ((residuals(found.x, *by) - left) / small for by in ((small, 0), (0, small)))
    runs_ = partial(_of_runs, at=at, noise=noise, count=len(runs))
    away = runs_(slope, left)
    # What is left once a run has its own speed, along what its speed does not change.
    level_speed = float(slope @ level / (slope @ slope))
    apart = level - slope * runs_(slope, -level)[at, 0]
    gained, error = runs_(apart, left).T
    weights = np.bincount(at, apart**2, len(runs))
    level_sd = float(np.sqrt(max(float(np.average(gained**2 - error**2, weights=weights)), 0.0)))
    own = found.x[:count].reshape(-1, _OWN)
    return Fit(runs, origins, own, found.x[count:], spread, away, level_sd, level_speed, rate)


def _of_runs(
    slope: FloatArray, left: FloatArray, at: IntArray, noise: FloatArray, count: int
) -> FloatArray:
    """By run, the change along ``slope`` that takes most away from what is left, and its standard
    error by the noise of evaluations, whose share of the variance of what is left is ``noise``;
    shape (count, 2)."""
    square = np.bincount(at, slope**2, count) + 1e-12
    change = -np.bincount(at, slope * left, count) / square
    return np.stack((change, np.sqrt(np.bincount(at, noise * slope**2, count)) / square), axis=1)


def _starts(runs: Sequence[LearningRun], origin: IntArray) -> FloatArray:
    """Log-odds at the first update: of all evaluations of an origin's first weights together."""
    right, asked = np.zeros(origin.max() + 1), np.zeros(origin.max() + 1)
    for run, at in zip(runs, origin.tolist(), strict=True):
        right[at] += run.accuracy[0] * run.answers[0]
        asked[at] += run.answers[0]
    return log_odds(right / asked, asked)[origin]


@dataclass(frozen=True)
class Deviations:
    """Standard deviations of log speed, without the noise of evaluations. run_sd: of runs of one
    policy and origin (0 where no policy ran twice), known from so many degrees of ``freedom``.
    policy_sd: of policies about the law."""

    run_sd: float
    policy_sd: float
    freedom: int


def deviations(fitted: Fit) -> Deviations:
    """How far runs and policies are from the law."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, run in enumerate(fitted.runs):
        groups.setdefault((run.origin, run.policy), []).append(i)
    away, error = fitted.away.T
    again = [rows for rows in groups.values() if len(rows) > 1]
    freedom = sum(len(rows) - 1 for rows in again)
    squares = sum(float(np.var(away[rows]) * len(rows)) for rows in again)
    seen = squares / max(freedom, 1)
    noise = float(np.mean(error[np.concatenate(again)] ** 2)) if again else 0.0
    means = np.array([away[rows].mean() for rows in groups.values()])
    chance = np.array([seen / len(rows) for rows in groups.values()])
    policies = float(np.mean(means**2 - chance))
    return Deviations(max(seen - noise, 0.0) ** 0.5, max(policies, 0.0) ** 0.5, freedom)


def known_from(law: Law) -> tuple[FloatArray, FloatArray]:
    """A law as what is known before a fit: mean and covariance."""
    return np.array([law.parameters[name] for name in PARAMETERS]), np.array(law.covariance)


def law_of(fitted: Fit, origin: str, source: str, before: Law) -> Law:
    """The law of one origin's runs. before: the law that the fit began with, whose policies differ
    from it where these runs are of few."""
    mean, covariance = fitted.of(origin)
    found = deviations(fitted)
    policy_sd, level = found.policy_sd, (fitted.level_sd, fitted.level_speed)
    # Few runs tell little of how far runs differ.
    squares = found.freedom * found.run_sd**2 + LEAST_POLICIES * before.run_sd**2
    runs = [run for run in fitted.runs if run.origin == origin]
    if len({run.policy for run in runs}) < LEAST_POLICIES:
        policy_sd = max(policy_sd, before.policy_sd)
        level = max(level, (before.level_sd, before.level_speed))
    return Law(
        parameters=dict(zip(PARAMETERS, mean.tolist(), strict=True)),
        covariance=tuple(map(tuple, covariance.tolist())),
        run_sd=math.sqrt(squares / (found.freedom + LEAST_POLICIES)),
        policy_sd=policy_sd,
        level_sd=level[0],
        level_speed=level[1],
        concentration=CONCENTRATION,
        domain=joined(domain_of(runs, fitted.rate, fitted), before.domain),
        source=source,
        lengths=fit_lengths([points(run) for run in runs]) or before.lengths,
        learning_rate=fitted.rate,
    )


def points(run: LearningRun) -> LengthPoints:
    """Log-odds and lengths of a run's evaluations."""
    return LengthPoints(log_odds(run.accuracy, run.answers), run.right_tokens, run.wrong_tokens)


def domain_of(runs: Sequence[LearningRun], rate: float, *fits: Fit) -> Domain:
    """Where these runs were. rate: learning rate that counts as 1. fits: to them."""

    def span(values: Sequence[float]) -> tuple[float, float]:
        return float(min(values)), float(max(values))

    def middle(column: str) -> tuple[float, float]:
        return span([float(np.median(getattr(run.signals, column))) for run in runs])

    return Domain(
        start=span([float(run.accuracy[0]) for run in runs]),
        reached=max(float(np.sort(run.accuracy)[-2:].mean()) for run in runs),
        updates=max(int(run.updates[-1]) for run in runs),
        rollouts=middle("rollouts"),
        group_size=middle("group_size"),
        kept=middle("kept"),
        age=middle("age"),
        minibatches=middle("minibatches"),
        learning_rate=span([run.rate / rate for run in runs]),
        selections=tuple(sorted({run.signals.selection for run in runs})),
        filtered=any(run.signals.filtered for run in runs),
        lag=max((_lag(fitted, run) for fitted in fits for run in fitted.runs), default=None),
    )


def _lag(fitted: Fit, run: LearningRun) -> float:
    (log_speed, _, _, power, _), _ = fitted.of(run.origin)
    return lag_of(run.signals, math.exp(log_speed), power, run.rate / fitted.rate)


def joined(own: Domain, before: Domain) -> Domain:
    """Where a law may be asked that was fitted to own runs, from what is known before: where either
    was; but the start, and what was reached, are of the own ones."""

    def span(name: str) -> tuple[float, float]:
        (a, b), (c, d) = getattr(own, name), getattr(before, name)
        return min(a, c), max(b, d)

    return replace(
        own,
        rollouts=span("rollouts"),
        group_size=span("group_size"),
        kept=span("kept"),
        age=span("age"),
        minibatches=span("minibatches"),
        learning_rate=span("learning_rate"),
        selections=tuple(sorted({*own.selections, *before.selections})),
        filtered=own.filtered or before.filtered,
        lag=max((lag for lag in (own.lag, before.lag) if lag is not None), default=None),
    )
