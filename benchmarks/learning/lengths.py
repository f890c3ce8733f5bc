"""How lengths react to what is chosen by length, at the accuracy that a run has reached.

A run's mean length is held against that of the synchronous run of the same warm start at the same
accuracy. Theory says that it moves by a share of accuracy gained times what the choice changes of
the log of right over wrong lengths that are trained on (`benchmarks.learning.push`); the fitted
share is that over runs of a task. And the law of lengths, fitted to a task's other policies, is
held against the last quarter of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.learning import tables
from benchmarks.learning.validation import task_of, within_reach
from rollcast.calibration.fits.learning import LearningRun, points
from rollcast.calibration.fits.learning_lengths import fit_lengths
from rollcast.calibration.judge.learning import mean_tokens
from rollcast.simulator.learning.lengths import lengths_of, mean_length
from rollcast.simulator.learning.signals import FloatArray

LEAST_RISE = 0.1
"""Of the accuracy; without it a run says nothing of lengths at an accuracy."""
OF_REWARDS = {
    "APRIL": ("april-1.5", "april-2"),
    "SAGC": ("sagc",),
    "PODS, greatest variance": ("pods-4-of-16", "pods-8-of-16", "pods-4-of-8", "pods-8-of-32"),
    "PODS, percentile or random": ("pods-4-of-16-percentile", "pods-4-of-16-random"),
}
"""Choices that do not look at length, of the campaign's runs."""
CHOICES = {
    "PODS, greatest reward": ("pods-4-of-16-reward",),
    "a cap that cuts": ("cap-5", "cap-6"),
    "a cap, cut ones masked": ("cap-5-masked", "cap-6-masked"),
    "tail batching": ("tail-batching",),
    "tail batching, more thrown away": (
        *("tail-batching-more", "tail-batching-groups"),
        *("tail-batching-rollouts", "tail-batching-most"),
    ),
}


def last_quarter(run: LearningRun) -> slice:
    """Its evaluations."""
    return slice(-max(len(run.updates) // 4, 1), None)


def longer(run: LearningRun, base: LearningRun) -> float:
    """Log of its mean length over that of ``base`` at the same accuracy, in the last quarter."""
    rising = np.maximum.accumulate(base.accuracy) + 1e-6 * np.arange(len(base.accuracy))
    usual = np.interp(run.accuracy, rising, np.log(mean_tokens(base)))
    return float((np.log(mean_tokens(run)) - usual)[last_quarter(run)].mean())


def pushed(run: LearningRun, push: FloatArray) -> float:
    """Accuracy gained times the log of right over wrong lengths that was trained on, less that of
    the evaluated answers. push: of `tables.pushes`."""
    edges = zip(run.updates[:-1], run.updates[1:], strict=True)
    trained = [push[0, a:b].sum() / max(push[1, a:b].sum(), 1e-9) for a, b in edges]
    with np.errstate(divide="ignore", invalid="ignore"):
        sampled = np.log(run.right_tokens / run.wrong_tokens)
    sampled = np.nan_to_num((sampled[1:] + sampled[:-1]) / 2, posinf=0.0, neginf=0.0)
    gained = np.maximum(np.diff(run.accuracy), 0.0)
    return float(((np.array(trained) - sampled) * gained).sum())


def rows(runs: Sequence[LearningRun]) -> dict[str, Any]:
    """``chosen``: by choice and task, how much longer responses are at an accuracy (mean over runs
    and its standard error, or None for one run; None where accuracy does not rise). ``share``: by
    task, the fitted share, its standard error and its runs. ``forecast``: by task, median error of
    the last quarter's mean length of policies that the law of lengths had not seen, and of how
    many. runs: of the campaign."""
    packed = tables.rows(tables.LENGTHS)
    pairs = list(zip(tables.curves(packed), map(tables.pushes, packed), strict=True))
    base = {run.origin: (run, push) for run, push in pairs if run.policy == "sync"}
    found: dict[str, list[tuple[str, float, float]]] = {}
    for run, push in pairs:
        if run.policy == "sync" or run.origin not in base:
            continue
        rise = float(run.accuracy[last_quarter(run)].mean() - run.accuracy[0])
        if rise < LEAST_RISE:
            continue
        usual, usual_push = base[run.origin]
        x = pushed(run, push) - pushed(usual, usual_push)
        found.setdefault(task_of(run), []).append((run.policy, x, longer(run, usual)))
    chosen = {
        choice: {
            task: _mean([y for name, _, y in own if name in names]) for task, own in found.items()
        }
        for choice, names in CHOICES.items()
    }
    return {
        "chosen": _of_rewards(runs, [*found]) | chosen,
        "share": {task: _share([(x, y) for _, x, y in own]) for task, own in found.items()},
        "forecast": {task: _forecast(runs, task) for task in found},
    }


def _of_rewards(runs: Sequence[LearningRun], tasks: Sequence[str]) -> dict[str, Any]:
    """As ``chosen``, of `OF_REWARDS`."""
    base = {r.origin: r for r in runs if r.policy == "sync" and r.seed == 0}
    return {
        choice: {
            task: _mean(
                [
                    longer(run, base[run.origin])
                    for run in runs
                    if run.policy in names and run.origin in base and task_of(run) == task
                ]
            )
            for task in tasks
        }
        for choice, names in OF_REWARDS.items()
    }


def _mean(values: list[float]) -> tuple[float, float | None] | None:
    if not values:
        return None
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return float(np.mean(values)), error


def _share(points_: list[tuple[float, float]]) -> Mapping[str, float]:
    x, y = np.array(points_).T
    share = float(x @ y / (x @ x))
    left = y - share * x
    return {
        "share": share,
        "error": float(np.sqrt(left @ left / max(len(x) - 1, 1) / (x @ x))),
        "runs": len(x),
    }


def _forecast(runs: Sequence[LearningRun], task: str) -> Mapping[str, float]:
    own = [run for run in within_reach(runs) if task_of(run) == task]
    errors = []
    for policy in sorted({run.policy for run in own}):
        law = fit_lengths([points(run) for run in own if run.policy != policy])
        assert law is not None
        for run in own:
            if run.policy == policy:
                tokens, start = mean_tokens(run), float(run.accuracy[0])
                told = tokens[0] * mean_length(lengths_of(law), start, run.accuracy)
                part = last_quarter(run)
                errors.append(abs(float(told[part].mean() / tokens[part].mean()) - 1.0))
    return {"median_error": float(np.median(errors)), "runs": len(errors)}
