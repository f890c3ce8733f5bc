"""Lengths that react: right and wrong answers differ in length, and accuracy changes.

A law may know how long right and wrong answers are at an accuracy (`LengthLaw`). The simulated
steps then drift by it, and the time of later ones follows the mean length at their accuracy.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.answer import Progress, planned_curve
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.law import LengthLaw
from rollcast.simulator.plan import StepPlan
from rollcast.simulator.workload.section import WorkloadSection

FloatArray = NDArray[np.float64]

FIELD = "learning.lengths"
_MOST = 1.0  # a step's drift of the log length
_EDGE = 1e-6  # an accuracy of 0 or 1 has no log-odds


def mean_length(
    law: LengthLaw,
    start: float,
    accuracy: FloatArray,
    slopes: tuple[FloatArray | float, FloatArray | float] | None = None,
) -> FloatArray:
    """Mean length at an accuracy over the one at the start, in the shape of ``accuracy``. slopes:
    of right and of wrong answers, that broadcast against it; the law's own by default."""
    right_slope, wrong_slope = slopes or (law.right_slope, law.wrong_slope)
    share = np.clip(accuracy, _EDGE, 1 - _EDGE)
    rise = np.log(share / (1 - share)) - np.log(start / (1 - start))
    right, wrong = np.exp(right_slope * rise), law.ratio * np.exp(wrong_slope * rise)
    mean = share * right + (1 - share) * wrong
    return np.asarray(mean / (start + (1 - start) * law.ratio))


def length_law(learning: Learning) -> LengthLaw:
    """Raises ScenarioError (``learning.lengths``) where the law knows no lengths."""
    law = learning.law.lengths
    if law is None:
        raise ScenarioError(
            FIELD,
            f"needs a law that knows lengths, and {learning.law.source} does not; leave it out",
        )
    return law


def drifting(
    section: WorkloadSection, learning: Learning, plan: StepPlan, steps: int
) -> WorkloadSection:
    """The workload with its lengths drifting as in ``steps`` updates as planned, beside the drift
    that it has. Raises ScenarioError (``learning.lengths``) for lengths that cannot."""
    law, lengths = length_law(learning), section.lengths
    if lengths is None or "drift_per_step" not in {field.name for field in fields(lengths)}:
        raise ScenarioError(
            FIELD,
            "needs workload.lengths that drift: a family, a preset or figures; those of a trace or "
            "of measured groups are as they are",
        )
    curve = planned_curve(plan, learning, steps)
    if isinstance(curve, str):  # said with the run's figures
        return section
    own = getattr(lengths, "drift_per_step", None) or 0.0
    drift = float(np.log(mean_length(law, learning.start, curve[-1:])[0])) / steps
    drift = min(max(own + drift, -_MOST), _MOST)
    return replace(section, lengths=replace(lengths, drift_per_step=drift))  # type: ignore[arg-type]


def reacting(
    progress: Progress, learning: Learning, seed: int, steps: slice, power: float
) -> Progress:
    """The progress with updates that take the simulated ones' seconds times the ``power`` of their
    mean lengths over the simulated ones'. steps: the simulated steady ones; the start-up stays."""
    law, start = length_law(learning), learning.start
    own = mean_length(law, start, progress.accuracy)
    usual = float(np.exp(np.mean(np.log(own[steps]))))
    rng = np.random.default_rng([seed, 1])
    slopes = tuple(
        slope + error * rng.standard_normal((len(progress.drawn), 1))
        for slope, error in (
            (law.right_slope, law.right_slope_error),
            (law.wrong_slope, law.wrong_slope_error),
        )
    )
    drawn = mean_length(law, start, progress.drawn, (slopes[0], slopes[1]))
    return replace(
        progress,
        seconds=_scaled(progress.seconds, (own / usual) ** power, steps.start),
        drawn_seconds=_scaled(progress.seconds, (drawn / usual) ** power, steps.start),
    )


def _scaled(seconds: FloatArray, factors: FloatArray, first: int) -> FloatArray:
    """The clock after updates that take so many times their time, from the ``first`` on."""
    each = np.diff(seconds) * np.where(np.arange(len(seconds) - 1) < first, 1.0, factors[..., :-1])
    return np.concatenate((np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)), axis=-1)
