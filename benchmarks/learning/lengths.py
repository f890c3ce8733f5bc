"""How lengths react to what is trained on, at the accuracy that a run has reached.

A run's mean length is held against that of the synchronous run of the same warm start at the same
accuracy. And the law of lengths, fitted to a task's other policies, is held against the last
quarter of each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.learning import tables
from benchmarks.learning.arms import LONG_SEED
from benchmarks.learning.validation import task_of, within_reach
from rollcast.calibration.fits.learning import LearningRun, points
from rollcast.calibration.fits.learning_lengths import fit_lengths
from rollcast.calibration.judge.learning import mean_tokens
from rollcast.simulator.learning.lengths import lengths_of, mean_length

LEAST_RISE = 0.1
"""Of the accuracy; without it a run says nothing of lengths at an accuracy."""
CHOICES = {
    "APRIL": ("april-1.5", "april-2"),
    "SAGC": ("sagc",),
    "PODS, greatest variance": ("pods-4-of-16", "pods-8-of-16", "pods-4-of-8", "pods-8-of-32"),
    "PODS, percentile or random": ("pods-4-of-16-percentile", "pods-4-of-16-random"),
    "PODS, greatest reward": ("pods-4-of-16-reward",),
    "a cap that cuts": ("cap-5", "cap-6"),
    "a cap, cut ones masked": ("cap-5-masked", "cap-6-masked"),
    "tail batching": ("tail-batching",),
    "tail batching, more thrown away": ("tail-batching-more", "tail-batching-most"),
}


def last_quarter(run: LearningRun) -> slice:
    """Its evaluations."""
    return slice(-max(len(run.updates) // 4, 1), None)


def longer(run: LearningRun, base: LearningRun) -> float:
    """Log of its mean length over that of ``base`` at the same accuracy, in the last quarter."""
    rising = np.maximum.accumulate(base.accuracy) + 1e-6 * np.arange(len(base.accuracy))
    usual = np.interp(run.accuracy, rising, np.log(mean_tokens(base)))
    return float((np.log(mean_tokens(run)) - usual)[last_quarter(run)].mean())


def rows(runs: Sequence[LearningRun]) -> dict[str, Any]:
    """``chosen``: by choice and task, how much longer responses are at an accuracy (mean over runs
    and its standard error, or None for one run; None where accuracy does not rise). ``forecast``:
    by task, median error of the last quarter's mean length of policies that the law of lengths had
    not seen, and of how many. runs: of the campaign."""
    base = {run.origin: run for run in runs if (run.policy, run.seed) == ("sync", 0)}
    found: dict[tuple[str, str], list[float]] = {}
    for run in (*runs, *tables.curves(tables.rows(tables.LENGTHS))):
        rise = float(run.accuracy[last_quarter(run)].mean() - run.accuracy[0])
        if run.seed != LONG_SEED and rise >= LEAST_RISE:
            one = longer(run, base[run.origin])
            found.setdefault((task_of(run), run.policy), []).append(one)
    tasks = sorted({task_of(run) for run in runs})
    return {
        "chosen": {
            choice: {
                task: _mean([one for name in names for one in found.get((task, name), ())])
                for task in tasks
            }
            for choice, names in CHOICES.items()
        },
        "forecast": {task: _forecast(runs, task) for task in tasks},
    }


def _mean(values: list[float]) -> tuple[float, float | None] | None:
    if not values:
        return None
    error = float(np.std(values, ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    return float(np.mean(values)), error


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
