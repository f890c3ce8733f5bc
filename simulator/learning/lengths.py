"""Lengths that react: right and wrong answers differ in length, and accuracy changes.

A law may know how long right and wrong answers are at an accuracy (`LengthLaw`). The simulated
steps then drift by it, and the time of later ones follows the mean length at their accuracy.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollcast.simulator.core.plan import StepPlan
from rollcast.simulator.errors import ScenarioError
from rollcast.simulator.learning.answer import Progress, planned_curve
from rollcast.simulator.learning.build import Learning
from rollcast.simulator.learning.law import LengthLaw
from rollcast.simulator.workload.base import Workload
from rollcast.simulator.workload.section import WorkloadSection

FloatArray = NDArray[np.float64]

FIELD = "learning.lengths"
_MOST = 1.0  # a step's drift of the log length
_EDGE = 1e-6  # an accuracy of 0 or 1 has no log-odds


class Lengths(NamedTuple):
    """The figures of a `LengthLaw`, or draws of them that broadcast against accuracies."""

    right_slope: FloatArray | float
    wrong_slope: FloatArray | float
    ratio: FloatArray | float


def lengths_of(law: LengthLaw) -> Lengths:
    """The fitted figures."""
    return Lengths(law.right_slope, law.wrong_slope, law.ratio)


def drawn_lengths(law: LengthLaw, draws: int, seed: int) -> Lengths:
    """Draws of the figures, each of shape (draws, 1); the same for one seed."""
    normal = np.random.default_rng([seed, 1]).standard_normal((3, draws, 1))
    spread = math.sqrt(math.log1p((law.ratio_error / law.ratio) ** 2))
    return Lengths(
        law.right_slope + law.right_slope_error * normal[0],
        law.wrong_slope + law.wrong_slope_error * normal[1],
        law.ratio * np.exp(spread * normal[2]),
    )


def mean_length(figures: Lengths, start: float, accuracy: FloatArray) -> FloatArray:
    """Mean length at an accuracy over the one at the start, in the shape of ``accuracy``."""
    share = np.clip(accuracy, _EDGE, 1 - _EDGE)
    rise = np.log(share / (1 - share)) - np.log(start / (1 - start))
    right = np.exp(figures.right_slope * rise)
    wrong = figures.ratio * np.exp(figures.wrong_slope * rise)
    mean = share * right + (1 - share) * wrong
    return np.asarray(mean / (start + (1 - start) * figures.ratio))


def length_law(learning: Learning) -> LengthLaw:
    """Raises ScenarioError (``learning.lengths``) where the law knows no lengths."""
    law = learning.law.lengths
    if law is None:
        raise ScenarioError(
            FIELD,
            f"needs a law that knows lengths, and {learning.law.source} does not; leave it out",
        )
    return law


def as_drawn(learning: Learning, workload: Workload, size: int) -> Learning:
    """The law with the ratio of wrong over right lengths that the scenario's own rewards state, by
    a correlation or by a cap that cuts responses; as it is where they state none, or where the law
    is of the user's own runs. size: of a group."""
    law = learning.law.lengths
    ratio = None if law is None or learning.own else drawn_ratio(workload, size)
    if law is None or ratio is None:
        return learning
    known = replace(law, ratio=ratio, ratio_error=0.0)
    return replace(learning, law=replace(learning.law, lengths=known))


def check_drifts(section: WorkloadSection, learning: Learning) -> None:
    """Raises ScenarioError (``learning.lengths``) for a law that knows no lengths, and for lengths
    that cannot drift."""
    length_law(learning)
    lengths = section.lengths
    if lengths is None or "drift_per_step" not in {field.name for field in fields(lengths)}:
        raise ScenarioError(
            FIELD,
            "needs workload.lengths that drift: a family, a preset or figures; those of a trace or "
            "of measured groups are as they are",
        )


def drifting(
    section: WorkloadSection, learning: Learning, plan: StepPlan, steps: int
) -> WorkloadSection:
    """The workload with its lengths drifting as in ``steps`` updates as planned, beside the drift
    that it has (`check_drifts`)."""
    law, lengths = length_law(learning), section.lengths
    curve = planned_curve(plan, learning, steps)
    if isinstance(curve, str):  # said with the run's figures
        return section
    own = getattr(lengths, "drift_per_step", None) or 0.0
    drift = float(np.log(mean_length(lengths_of(law), learning.start, curve[-1:])[0])) / steps
    drift = min(max(own + drift, -_MOST), _MOST)
    return replace(section, lengths=replace(lengths, drift_per_step=drift))  # type: ignore[type-var]


def reacting(
    progress: Progress, learning: Learning, seed: int, steps: slice, power: float, own: FloatArray
) -> Progress:
    """The progress with updates that take the simulated ones' seconds times the ``power`` of their
    mean lengths over the simulated ones'. steps: the simulated steady ones; the start-up stays.
    own: mean lengths at the law's parameters (`mean_length`), shape (updates + 1,)."""
    usual = float(np.exp(np.mean(np.log(own[steps]))))
    figures = drawn_lengths(length_law(learning), len(progress.drawn), seed)
    drawn = mean_length(figures, learning.start, progress.drawn)
    return slowed(progress, (own / usual) ** power, (drawn / usual) ** power, steps.start)


_ASKED = 16384  # rollouts that are drawn, in a twentieth of a second
_SURE = 3.0  # standard errors that tell a ratio from 1


def drawn_ratio(workload: Workload, size: int) -> float | None:
    """Mean length of wrong over right answers among rollouts that are drawn in groups of ``size``.

    None where rewards are not right (1) or wrong (0), where all are alike, where rollouts have
    turns, and where the ratio is no further from 1 than chance takes it.
    """
    groups = max(_ASKED // size, 2)
    drawn = [workload.draw(group, size) for group in range(groups)]
    reward = np.array([one.rewards for one in drawn], dtype=float)
    if any(one.trajectories is not None for one in drawn) or not np.isin(reward, (0, 1)).all():
        return None
    tokens = np.array([one.new_tokens for one in drawn], dtype=float)
    right, wrong = tokens * reward, tokens * (1.0 - reward)
    counts = np.array([reward.sum(), (1.0 - reward).sum()])
    if not counts.all():
        return None
    means = np.array([right.sum(), wrong.sum()]) / counts
    # By group, since the rollouts of a prompt are alike in length.
    away = ((1 - reward) * (tokens - means[1])).sum(axis=1) / counts[1] / means[1]
    away -= (reward * (tokens - means[0])).sum(axis=1) / counts[0] / means[0]
    ratio = float(means[1] / means[0])
    return ratio if abs(np.log(ratio)) > _SURE * np.sqrt((away**2).sum()) else None


def slowed(progress: Progress, own: FloatArray, drawn: FloatArray, first: int) -> Progress:
    """The progress with updates that take so many times their seconds, from the ``first`` on: by
    update, shape (updates + 1,), and by draw, shape (draws, updates + 1)."""
    clock = progress.seconds if progress.drawn_seconds is None else progress.drawn_seconds
    return replace(
        progress,
        seconds=_scaled(progress.seconds, own, first),
        drawn_seconds=_scaled(clock, drawn, first),
    )


def _scaled(seconds: FloatArray, factors: FloatArray, first: int) -> FloatArray:
    """The clock after updates that take so many times their time, from the ``first`` on."""
    each = np.diff(seconds, axis=-1) * np.where(
        np.arange(seconds.shape[-1] - 1) < first, 1.0, factors[..., :-1]
    )
    return np.concatenate((np.zeros((*each.shape[:-1], 1)), np.cumsum(each, axis=-1)), axis=-1)
