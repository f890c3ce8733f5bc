"""The law against real vLLM and torch: the committed runs of the built-in task (a 0.6M-parameter
model, 60 updates of 128 rollouts), which were made before evaluations were.

A step's accuracy over all rollouts that finished in it stands for an evaluation of the weights
before it. The law is fitted to synchronous runs alone, and to the prior; then it says what other
policies' curves are. Little is learned in 60 updates, so a time to a target says nothing here: the
mean and the end of the curve do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.learning.means import by_policy, means
from benchmarks.measured import runs
from rollcast.calibration.fits.learning import LearningRun, fit, known_from, law_of
from rollcast.calibration.folder import RunFolder
from rollcast.calibration.judge.learning import Judged, judge
from rollcast.calibration.learning import curve_of
from rollcast.simulator.learning.data import prior

FITTED = ("sync-0", "sync-1", "sync-2", "sync-more-3", "sync-more-4", "sync-more-5")
POLICIES = ("april", "sagc", "pods", "prefix", "all")
SEEDS = (0, 1, 2)
TOGETHER = 5  # steps whose rollouts make an evaluation


def curve(name: str) -> LearningRun:
    """The curve of a committed run, ``TOGETHER`` steps at a time."""
    run = RunFolder.open(runs("real/runs") / name)
    finished = run.rollouts["finished"] == 1
    steps = len(run.steps["step"])
    count = np.bincount(run.rollouts["step"][finished], minlength=steps).astype(float)
    right = np.nan_to_num(run.steps["accuracy"]) * count
    starts = np.arange(0, steps, TOGETHER)
    answers, rights = np.add.reduceat(count, starts), np.add.reduceat(right, starts)
    middle = np.minimum(starts + TOGETHER // 2, steps)
    return curve_of(run, middle, rights / answers, answers)


def judged() -> list[Judged]:
    """Mean and end of the curves of unseen policies."""
    fitted = fit([curve(name) for name in FITTED], *known_from(prior()))
    [origin] = fitted.origins
    law = law_of(fitted, origin, "", prior())
    found: list[Judged] = []
    for policy in POLICIES:
        for seed in SEEDS:
            run = curve(f"{policy}-{seed}")
            start = float(law.domain.start[0] + law.domain.start[1]) / 2
            found += [one for one in judge(law, run, start, 1.0, ()) if one.said is None]
    return found


def rows(found: Sequence[Judged]) -> list[dict[str, Any]]:
    """One row a policy: means over seeds, and how many intervals hold."""
    return [
        {"policy": policy, "area": means(own, "area"), "last": means(own, "last")}
        for policy, own in by_policy(found).items()
    ]
