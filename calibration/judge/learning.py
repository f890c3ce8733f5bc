"""The law of learning against runs that it has not seen: time to targets, area and last value of a
curve, each with the interval of what would be measured, the noise of evaluations included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rollcast.calibration.fits.learning import LearningRun
from rollcast.simulator.learning.law import Law
from rollcast.simulator.learning.lengths import drawn_lengths, lengths_of, mean_length
from rollcast.simulator.learning.signals import FloatArray

DRAWS = 200
LEVEL = 0.9
_WAYS = (0.25, 0.5, 0.75)  # of a curve's rise, at which targets lie unless they are given
_PARTS = 4  # of the evaluations; the last is where lengths are judged
_CLEAR = 0.05  # a target must lie so far above the start


@dataclass(frozen=True)
class Judged:
    """A figure of one run: measured, predicted, and the ends of the interval. what: ``time`` to the
    target, updates (infinite: not reached); ``area``, the mean accuracy of its evaluations;
    ``last``, the mean of its last three; or ``tokens``, the mean length of all answers in the last
    quarter of them, where the run and the law know lengths. said: why the law abstains, or None."""

    run: LearningRun
    what: str
    target: float
    measured: float
    predicted: float
    low: float
    high: float
    said: str | None

    @property
    def inside(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low - 1e-9 <= self.measured <= self.high + 1e-9


def rising(curve: FloatArray) -> FloatArray:
    """The rising curve nearest to one that goes up and down (least squares; pooled neighbours)."""
    levels: list[list[float]] = []
    for value in curve:
        levels.append([float(value), 1.0])
        while len(levels) > 1 and levels[-2][0] > levels[-1][0]:
            last, weight = levels.pop()
            mean, count = levels[-1]
            total = count + weight
            levels[-1] = [(mean * count + last * weight) / total, total]
    return np.repeat([mean for mean, _ in levels], [int(count) for _, count in levels])


def time_to(updates: Any, accuracy: FloatArray, target: float) -> float:
    """Updates until the rising curve nearest to these evaluations reaches a target, linear between
    two of them; infinite where it does not."""
    curve = rising(accuracy)
    reached = np.flatnonzero(curve >= target)
    if not len(reached):
        return float("inf")
    i = int(reached[0])
    if i == 0:
        return float(updates[0])
    part = (target - curve[i - 1]) / (curve[i] - curve[i - 1])
    return float(updates[i - 1] + part * (updates[i] - updates[i - 1]))


def judge(
    law: Law, run: LearningRun, start: float, factor: float, targets: Sequence[float] | None = None
) -> list[Judged]:
    """A run's figures, as the law says them and as they were. start: accuracy of its first weights.
    factor: its learning rate over the law's. targets: those above the start; default: a quarter,
    half and three quarters of the way up."""
    forecast = _Forecast(law, run, start, factor)
    if targets is None:
        top = float(rising(run.accuracy)[-1])
        targets = [start + way * (top - start) for way in _WAYS]
    judged = []
    for target in targets:
        if target <= run.accuracy[0] + _CLEAR:
            continue
        times = [time_to(run.updates, curve, target) for curve in forecast.seen]
        predicted = time_to(np.arange(len(forecast.best)), forecast.best, target)
        measured = time_to(run.updates, run.accuracy, target)
        judged.append(forecast.judged("time", target, measured, predicted, times))
    own = forecast.best[run.updates]
    for what, rows in (("area", slice(None)), ("last", slice(-3, None))):
        drawn = forecast.seen[:, rows].mean(axis=1)
        measured, predicted = float(run.accuracy[rows].mean()), float(own[rows].mean())
        judged.append(forecast.judged(what, float("nan"), measured, predicted, drawn))
    return judged + forecast.tokens()


@dataclass(frozen=True, eq=False)
class _Forecast:
    """A law's forecast of a run."""

    law: Law
    run: LearningRun
    start: float
    factor: float

    @cached_property
    def best(self) -> FloatArray:
        """At the fitted parameters, by update."""
        return self.law.best(self.run.signals, self.start, learning_rate_factor=self.factor)

    @cached_property
    def seen(self) -> FloatArray:
        """Evaluations that would be measured, (draws, evaluations)."""
        run, law = self.run, self.law
        drawn = law.curves(
            run.signals, self.start, learning_rate_factor=self.factor, draws=DRAWS, seed=0
        )
        noise = np.random.default_rng(0)
        right = noise.binomial(run.answers.astype(int), drawn[:, run.updates])
        return np.asarray(right / run.answers)

    @cached_property
    def said(self) -> str | None:
        """Why the law abstains, or None."""
        return self.law.domain_reason(
            self.run.signals, self.start, learning_rate_factor=self.factor
        )

    def judged(
        self, what: str, target: float, measured: float, predicted: float, drawn: Any
    ) -> Judged:
        """One figure. drawn: of each draw."""
        ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        low, high = (float(end) for end in ends)
        return Judged(self.run, what, target, measured, float(predicted), low, high, self.said)

    def tokens(self) -> list[Judged]:
        """The mean length in the last quarter, as one figure; none where it is not known."""
        run, law = self.run, self.law.lengths
        tokens = mean_tokens(run)
        part = slice(-max(len(tokens) // _PARTS, 1), None)
        if law is None or not np.isfinite([tokens[0], *tokens[part]]).all():
            return []
        figures = drawn_lengths(law, len(self.seen), 0)
        left = np.exp(law.spread * np.random.default_rng(1).standard_normal(len(self.seen)))
        own, drawn = (
            tokens[0] * mean_length(shape, self.start, curve).T[part].mean(axis=0)
            for shape, curve in ((lengths_of(law), self.best[run.updates]), (figures, self.seen))
        )
        return [self.judged("tokens", float("nan"), float(tokens[part].mean()), own, drawn * left)]


def mean_tokens(run: LearningRun) -> FloatArray:
    """Mean length of all answers at each evaluation, nan where it is not known."""
    right, wrong = (
        np.where(share > 0, share * tokens, 0.0)
        for share, tokens in (
            (run.accuracy, run.right_tokens),
            (1 - run.accuracy, run.wrong_tokens),
        )
    )
    return np.asarray(right + wrong)
