"""A prior: what fits to several tasks have in common, as wide as they differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from rollcast.calibration.fits.learning import (
    CONCENTRATION,
    Fit,
    LearningRun,
    deviations,
    domain_of,
    fit,
    known_from,
    points,
)
from rollcast.calibration.fits.learning_lengths import fit_lengths
from rollcast.simulator.learning.law import PARAMETERS, Law, LengthLaw
from rollcast.simulator.learning.signals import FloatArray

_LEVEL = 2  # the first of `PARAMETERS`, log speed and slowing, are a set-up's own
_LEVEL_SD = (3.5, 1.0)  # of them, before a curve of somebody else's is fitted


def fits_elsewhere(set_ups: Mapping[str, Sequence[LearningRun]], law: Law) -> dict[str, Fit]:
    """Curves of others' runs by set-up: each has a log speed and slowing of its own, and the rest
    of the ``law``'s, since no set-up of theirs varies it."""
    mean, covariance = known_from(law)
    covariance[:_LEVEL] = covariance[:, :_LEVEL] = 0.0
    covariance[range(_LEVEL), range(_LEVEL)] = np.square(_LEVEL_SD)
    return {name: fit(runs, mean, covariance) for name, runs in set_ups.items()}


def over_tasks(fits: Mapping[str, Fit], source: str, elsewhere: Iterable[Fit] = ()) -> Law:
    """The mean over tasks, each fitted by itself, as wide as they differ. elsewhere: fits to runs
    of others (`fits_elsewhere`); speed and slowing are the mean over these and the tasks, each
    counted once, and starts may be like theirs.

    With few tasks their standard deviation is itself unsure: it is widened as Student's t would.
    """
    tasks = [_by_origin(fitted) for fitted in fits.values()]
    within = [
        np.mean([fitted.of(name)[1] for name in fitted.origins], axis=0) for fitted in fits.values()
    ]
    mean, variance = _over([task.mean(axis=0) for task in tasks], np.concatenate(tasks))
    elsewhere = list(elsewhere)
    level = [task.mean(axis=0)[:_LEVEL] for task in tasks]
    level += [_by_origin(fitted).mean(axis=0)[:_LEVEL] for fitted in elsewhere]
    if len(level) > len(tasks):
        mean[:_LEVEL], variance[:_LEVEL] = _over(level, np.array(level))
    covariance = np.diag(variance) + np.mean(within, axis=0)
    scaled = [
        replace(run, rate=run.rate / fitted.rate) for fitted in fits.values() for run in fitted.runs
    ]
    spreads = [deviations(fitted) for fitted in fits.values()]
    again = [spread.run_sd**2 for spread in spreads if spread.freedom]
    domain = domain_of(scaled, 1.0, *fits.values())
    first = [float(run.accuracy[0]) for fitted in elsewhere for run in fitted.runs]
    start = [*domain.start, *first]
    return Law(
        parameters=dict(zip(PARAMETERS, mean.tolist(), strict=True)),
        covariance=tuple(map(tuple, covariance.tolist())),
        run_sd=float(np.sqrt(np.mean(again))) if again else 0.0,
        policy_sd=float(np.sqrt(np.mean([spread.policy_sd**2 for spread in spreads]))),
        level_sd=float(np.sqrt(np.mean([fitted.level_sd**2 for fitted in fits.values()]))),
        level_speed=float(np.mean([fitted.level_speed for fitted in fits.values()])),
        concentration=CONCENTRATION,
        domain=replace(domain, start=(min(start), max(start))),
        source=source,
        lengths=lengths_over_tasks(fits.values()),
    )


def _by_origin(fitted: Fit) -> FloatArray:
    """Parameters, shape (origins, 5)."""
    return np.array([fitted.of(name)[0] for name in fitted.origins])


def _over(tasks: Sequence[FloatArray], everything: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean over tasks, and the variance of another one: that of ``everything``, widened."""
    from scipy.stats import t

    count = len(tasks)
    wider = float(t.ppf(0.95, max(count - 1, 1)) / t.ppf(0.95, 10_000))
    between = everything.var(axis=0, ddof=1) if len(everything) > 1 else 0 * everything[0]
    return np.mean(tasks, axis=0), np.asarray(between * wider**2 * (1 + 1 / count))


def lengths_over_tasks(fits: Iterable[Fit]) -> LengthLaw | None:
    """The mean drift of lengths over tasks, whose errors are how tasks differ."""
    laws = [fit_lengths([points(run) for run in fitted.runs]) for fitted in fits]
    known = [law for law in laws if law is not None]
    if not known:
        return None
    rows = np.array([(law.right_slope, law.wrong_slope, law.ratio) for law in known])
    right, wrong, ratio = rows.mean(axis=0).tolist()
    errors = rows.std(axis=0, ddof=1) if len(known) > 1 else np.abs(rows[0])
    left = float(np.sqrt(np.mean([law.spread**2 for law in known])))
    of_right, of_wrong, of_ratio = errors.tolist()
    return LengthLaw(right, wrong, ratio, of_right, of_wrong, of_ratio, left)
